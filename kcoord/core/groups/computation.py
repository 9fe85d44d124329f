"""Which member of a group is asked to compute the next assignment with its own assignor (KIP-848, client-side mode)."""

from __future__ import annotations

from typing import Final, final

NO_EPOCH: Final = -1


@final
class ClientComputation:
    """Soft state: after a restart the next heartbeat of a member that can compute starts again.

    One member computes at a time. `member_id` is "" while none was asked. Members that gave no result in time, or an
    invalid one, are in `passed_over` until all members are.
    """

    def __init__(self, assignor: str) -> None:
        self.assignor = assignor
        # The epoch of the group for which this assignor was chosen; NO_EPOCH: choose again.
        self.epoch = NO_EPOCH
        # The range of metadata versions of all members, which the computing member must be able to read.
        self.lowest_version = 0
        self.highest_version = 0
        self.member_id = ""
        self.deadline_ms = 0
        # The group epoch whose state the member fetched last. It is not asked for this one again.
        self.prepared_epoch = NO_EPOCH
        self.passed_over: dict[str, bool] = {}
        # The member that was passed over last.
        self.last_id = ""

    def pass_over(self) -> None:
        """Let another member compute."""
        self.passed_over[self.member_id] = True
        self.last_id = self.member_id
        self.member_id = ""
        self.prepared_epoch = NO_EPOCH
