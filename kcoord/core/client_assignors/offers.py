"""Client-side assignors (KIP-848's client-side mode, which no release has): which one a group uses, and who computes.

The rule of the KIP: a client-side assignor is used if all members support a common one; of several, the one that
members prefer. Otherwise a server assignor computes. All members means all: with one released client, or one classic
member, the server computes. Common means that the version ranges of all members overlap, and that some member can read
the metadata of all (KIP-268; during an upgrade that is one of the upgraded members).

One member computes at a time: the first that sends a heartbeat and is able to. Each answer to its heartbeats asks it,
until it fetches the group's state. It has its rebalance timeout for all of this; then the next able member is asked. No
member is fenced for not computing.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.groups.computation import NO_EPOCH, ClientComputation
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import (
    NO_ANSWER,
    STATIC_LEAVE_EPOCH,
    AssignorAnswer,
    ConsumerMember,
)
from kcoord.core.outcome import DEBUG, WARNING, Fact, Now, Outcome
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_heartbeat import Assignment as AssignmentMessage
from kcoord.protocol.consumer_group_heartbeat import ClientAssignor as AssignorMessage
from kcoord.protocol.records.consumer_group_member_metadata import ClientAssignor

# Each one's metadata is in every member's record. Clients have one or two.
CLIENT_ASSIGNORS_MAX: Final = 16


@final
class Choice:
    """An assignor that all members support, and the versions of their metadata for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.supporters = 0
        self.votes = 0
        self.minimum_version = 0
        self.maximum_version = 0
        self.lowest_version = 0
        self.highest_version = 0

    def add(self, assignor: ClientAssignor) -> None:
        """Count another member that supports it."""
        is_first = self.supporters == 0
        self.supporters += 1
        if is_first or assignor.minimum_version > self.minimum_version:
            self.minimum_version = assignor.minimum_version
        if is_first or assignor.maximum_version < self.maximum_version:
            self.maximum_version = assignor.maximum_version
        if is_first or assignor.metadata_version < self.lowest_version:
            self.lowest_version = assignor.metadata_version
        if is_first or assignor.metadata_version > self.highest_version:
            self.highest_version = assignor.metadata_version


def choose(group: ConsumerGroup, before: ConsumerMember | None, updated: ConsumerMember | None) -> Choice | None:
    """The client-side assignor of the group, once `updated` has replaced `before` (None: the group as it is).

    None if a server assignor computes. Each member votes for the first one in its list that all support. In a tie the
    name that sorts first wins.
    """
    if updated is not None and (not updated.client_assignors or updated.classic is not None):
        return None
    if group.client_assignor_members < len(group.members) - (0 if updated is None else 1):
        return None
    members = [member for member in group.members.values() if member is not before]
    if updated is not None:
        members.append(updated)
    choices: dict[str, Choice] = {}
    for member in members:
        if member.classic is not None:
            return None
        for assignor in member.client_assignors:
            choice = choices.get(assignor.name)
            if choice is None:
                choice = Choice(assignor.name)
                choices[assignor.name] = choice
            choice.add(assignor)
    common: dict[str, Choice] = {}
    for name, choice in choices.items():
        if choice.supporters == len(members) and choice.minimum_version <= choice.maximum_version:
            for member in members:
                if can_read(member, name, choice.lowest_version, choice.highest_version):
                    common[name] = choice
                    break
    return _most_liked(members, common)


def _most_liked(members: list[ConsumerMember], common: dict[str, Choice]) -> Choice | None:
    for member in members:
        for assignor in member.client_assignors:
            liked = common.get(assignor.name)
            if liked is not None:
                liked.votes += 1
                break
    best: Choice | None = None
    for choice in common.values():
        if best is None or choice.votes > best.votes or (choice.votes == best.votes and choice.name < best.name):
            best = choice
    return best


def chosen_name(group: ConsumerGroup) -> str | None:
    """The name of the client-side assignor that the group uses, for people."""
    if not group.members:
        return None
    choice = choose(group, None, None)
    return None if choice is None else choice.name


def can_read(member: ConsumerMember, name: str, lowest_version: int, highest_version: int) -> bool:
    assignor = member.client_assignor(name)
    return (
        assignor is not None
        and assignor.minimum_version <= lowest_version
        and highest_version <= assignor.maximum_version
    )


@final
class ClientAssignors:
    """Chooses the member that computes, and the heartbeat answers that ask it to."""

    def ask(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        updated: ConsumerMember,
        epoch: int,
        now: Now,
        out: Outcome,
    ) -> bool:
        """Whether a member computes the assignment for `epoch`. Picks one if none is computing."""
        if group.computation is None and not updated.client_assignors:
            return False
        computation = group.computation
        has_none = not updated.client_assignors or updated.classic is not None
        if computation is None or computation.epoch != epoch or epoch != group.epoch or has_none:
            choice = choose(group, before, updated)
            if choice is None:
                group.computation = None
                return False
            computation = self._renew(group, choice, epoch)
        self._maybe_pick(group, computation, updated, epoch, now, out)
        return True

    def _renew(self, group: ConsumerGroup, choice: Choice, epoch: int) -> ClientComputation:
        computation = group.computation
        if computation is None or computation.assignor != choice.name:
            computation = ClientComputation(choice.name)
            group.computation = computation
        computation.lowest_version = choice.lowest_version
        computation.highest_version = choice.highest_version
        # The epoch that this request starts is not stored yet and may be discarded.
        computation.epoch = epoch if epoch == group.epoch else NO_EPOCH
        return computation

    def refresh(self, group: ConsumerGroup) -> ClientComputation | None:
        """The group's computation now; None if no member is to compute."""
        computation = group.computation
        if computation is None or group.assignment_epoch >= group.epoch:
            return None
        if computation.epoch == group.epoch and group.client_assignor_members == len(group.members):
            # The assignor was chosen for this epoch, and assignors change only with a new epoch.
            return computation
        choice = choose(group, None, None)
        if choice is None:
            group.computation = None
            return None
        return self._renew(group, choice, group.epoch)

    def _maybe_pick(
        self,
        group: ConsumerGroup,
        computation: ClientComputation,
        updated: ConsumerMember,
        epoch: int,
        now: Now,
        out: Outcome,
    ) -> None:
        picked_id = computation.member_id
        if picked_id and now.mono_ms >= computation.deadline_ms:
            fields: dict[str, object] = {
                "group": group.group_id,
                "epoch": epoch,
                "assignor": computation.assignor,
                "member": picked_id,
                "error": "no assignment within its rebalance timeout",
            }
            out.facts.append(Fact(WARNING, "consumer_group_client_assignor_failed", fields))
            computation.pass_over()
        elif picked_id:
            picked = updated if updated.member_id == picked_id else group.members.get(picked_id)
            if picked is None or not self._can_compute(computation, picked):
                computation.member_id = ""
        if computation.member_id or not self._can_compute(computation, updated):
            return
        if not self._is_next(group, computation, updated):
            return
        computation.member_id = updated.member_id
        computation.deadline_ms = now.mono_ms + updated.rebalance_timeout_ms
        computation.prepared_epoch = NO_EPOCH
        asked: dict[str, object] = {
            "group": group.group_id,
            "epoch": epoch,
            "assignor": computation.assignor,
            "member": updated.member_id,
        }
        out.facts.append(Fact(DEBUG, "consumer_group_assignment_asked", asked))

    def _is_next(self, group: ConsumerGroup, computation: ClientComputation, updated: ConsumerMember) -> bool:
        """Whether this member is the next to be asked. Once all were passed over, it starts again."""
        passed_over = computation.passed_over
        if updated.member_id not in passed_over:
            return True
        is_alone = True
        for member in group.members.values():
            if member.member_id != updated.member_id and self._can_compute(computation, member):
                is_alone = False
                if member.member_id not in passed_over:
                    return False
        computation.passed_over = {computation.last_id: True}
        return is_alone or updated.member_id != computation.last_id

    def _can_compute(self, computation: ClientComputation, member: ConsumerMember) -> bool:
        return (
            member.member_epoch != STATIC_LEAVE_EPOCH
            and member.classic is None
            and can_read(member, computation.assignor, computation.lowest_version, computation.highest_version)
        )

    def should_compute(self, group: ConsumerGroup, member_id: str, epoch: int, target_epoch: int, joins: bool) -> bool:
        """Whether the answer to a heartbeat asks this member to compute."""
        computation = group.computation
        if computation is None or computation.member_id != member_id or target_epoch >= epoch:
            return False
        if joins:
            # A member that rejoins has forgotten that it was asked.
            computation.prepared_epoch = NO_EPOCH
        return computation.prepared_epoch != epoch


def answer_for(group: ConsumerGroup, member: ConsumerMember, target_epoch: int) -> AssignorAnswer:
    """The client-side assignor's answer for a member, with the target assignment of that epoch."""
    if not group.answers or target_epoch != group.assignment_epoch or not member.client_assignors:
        return NO_ANSWER
    if member.member_id not in group.members and member.instance_id is not None:
        # The member replaces another one once this request is stored.
        return group.answer(group.static_members.get(member.instance_id, ""))
    return group.answer(member.member_id)


def check_client_assignors(assignors: list[AssignorMessage]) -> None:
    """Check the fields on their own. Raises GroupError."""
    if len(assignors) > CLIENT_ASSIGNORS_MAX:
        raise GroupError(errors.INVALID_REQUEST, f"There are more than {CLIENT_ASSIGNORS_MAX} client-side assignors.")
    names: dict[str, bool] = {}
    for assignor in assignors:
        name = assignor.name
        if not name.strip():
            raise GroupError(errors.INVALID_REQUEST, "The name of a client-side assignor can't be empty.")
        if name in names:
            raise GroupError(errors.INVALID_REQUEST, f"Client-side assignor {name[:200]} occurs twice.")
        names[name] = True
        if not assignor.minimum_version <= assignor.metadata_version <= assignor.maximum_version:
            raise GroupError(
                errors.INVALID_REQUEST,
                f"Metadata of client-side assignor {name[:200]} has version {assignor.metadata_version}, which is "
                f"not among its own {assignor.minimum_version} to {assignor.maximum_version}.",
            )


def stored_assignors(assignors: list[AssignorMessage]) -> list[ClientAssignor]:
    """The assignors in the form of record 5."""
    return [
        ClientAssignor(
            one.name,
            one.minimum_version,
            one.maximum_version,
            one.reason,
            one.metadata_version,
            one.metadata_bytes,
        )
        for one in assignors
    ]


def set_answer(message: AssignmentMessage, answer: AssignorAnswer) -> None:
    error, version, metadata = answer
    message.error = error
    message.metadata_version = version
    message.metadata_bytes = metadata


def assignors_text(member: ConsumerMember) -> str:
    """The assignors as a text for people."""
    if not member.client_assignors:
        return "none"
    texts = [
        f"{one.name[:100]} v{one.metadata_version} of {one.minimum_version}-{one.maximum_version}, "
        f"{len(one.metadata_bytes)} bytes, reason {one.reason}"
        for one in member.client_assignors
    ]
    return "; ".join(texts)
