"""Who of a group was asked to compute the next assignment with an assignor of its own (KIP-848, client-side mode)."""

from __future__ import annotations

from typing import Final, final

NO_EPOCH: Final = -1


@final
class ClientComputation:
    """Soft state: a restart forgets it, and the next heartbeat of a member that can compute begins anew.

    One member computes at a time. `member_id` is "" while nobody was asked; who did not answer in time, or wrongly,
    is in `passed_over` until everybody is.
    """

    def __init__(self, assignor: str) -> None:
        self.assignor = assignor
        # The hard group epoch for which this assignor was chosen; NO_EPOCH: it has to be chosen again.
        self.epoch = NO_EPOCH
        # Who computes must read the metadata of all: the versions they are in.
        self.lowest_version = 0
        self.highest_version = 0
        self.member_id = ""
        self.deadline_ms = 0
        # The group epoch whose state the member asked for last: it need not be told of that again.
        self.prepared_epoch = NO_EPOCH
        self.passed_over: dict[str, bool] = {}
        # Who was passed over last.
        self.last_id = ""

    def pass_over(self) -> None:
        """Somebody else is to compute."""
        self.passed_over[self.member_id] = True
        self.last_id = self.member_id
        self.member_id = ""
        self.prepared_epoch = NO_EPOCH
