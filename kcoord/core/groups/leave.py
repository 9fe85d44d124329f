"""LeaveGroup: one member or very many leave, in groups of both protocols.

A request may name every member of a large group, which is too much work for one turn. So it is processed in steps, one
per turn. Each step removes its share of the members, and writes its own records, as if a request named only them. The
connection waits, and the last step answers for all steps. Other requests are served in between and see a group that
some members have left. If the group is removed or changes its protocol in between, the next step works on the group
that it finds; after a crash the remaining members are still there. A broker does all in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import Continuation, Now, Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

# From this version on a request names several members.
MANY_MEMBERS_VERSION: Final = 3
# Members that one step removes, at some 10 µs each.
STEP_MEMBERS_MAX: Final = 1000
# Member ids that the server makes are shorter. A request may name only the instance.
MEMBER_ID_BYTES: Final = 256
TOMBSTONES_PER_MEMBER: Final = 3
# The cost of one member, in bytes of the turn's budget: a full step uses up a turn.
MEMBER_COST: Final = 300


@final
class LeaveGroupStep(Continuation):
    """A LeaveGroup request and its progress."""

    def __init__(self, request: Request, body: LeaveGroupRequest) -> None:
        super().__init__(request.request_id)
        self.group_id = body.group_id
        self.is_single = request.version < MANY_MEMBERS_VERSION
        self.identities = [MemberIdentity(body.member_id)] if self.is_single else body.members
        # The members before this position are done.
        self.position = 0
        self.is_first = True
        self.responses: list[MemberResponse] = []
        # Members of a consumer group that left. With these the answer is the same when a request names a member twice.
        self.left: dict[str, bool] = {}
        self.left_instances: dict[str, str] = {}

    def next_share(self, members_max: int) -> list[MemberIdentity]:
        """The members of the next step. They count as done from now on."""
        start = self.position
        self.is_first = start == 0
        self.position = min(start + members_max, len(self.identities))
        return self.identities[start : self.position]

    def members_within(self, members_max: int, bytes_max: int) -> int:
        """How many of the next members of a consumer group have tombstones of at most so many bytes; one at least."""
        count = 0
        identities = self.identities
        for i in range(self.position, min(self.position + members_max, len(identities))):
            size = tombstone_bytes(self.group_id, identities[i].member_id) + MEMBER_ID_BYTES
            bytes_max -= TOMBSTONES_PER_MEMBER * size
            if bytes_max < 0:
                break
            count += 1
        return max(1, count)

    def is_done(self) -> bool:
        return self.position == len(self.identities)

    def add(self, identity: MemberIdentity, error_code: int) -> None:
        self.responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error_code))

    def response(self) -> LeaveGroupResponse:
        if self.is_single:
            return LeaveGroupResponse(error_code=self.responses[0].error_code)
        return LeaveGroupResponse(error_code=errors.NONE, members=self.responses)


# Removes a share of the members from the group, and adds a response for each.
Leave = Callable[[LeaveGroupStep, list[MemberIdentity], Now, Outcome], None]


@final
class LeaveGroups:
    """`leave_classic` and `leave_consumer` remove members of groups of either protocol."""

    def __init__(self, store: GroupStore, leave_classic: Leave, leave_consumer: Leave, batch_bytes_max: int) -> None:
        self.batch_bytes_max = batch_bytes_max
        self.store = store
        self.leave_classic = leave_classic
        self.leave_consumer = leave_consumer
        self.step_members_max = STEP_MEMBERS_MAX
        # The cost of steps since the engine last asked, in bytes of the turn's budget.
        self.cost = 0

    def handle_leave_group(self, request: Request, body: LeaveGroupRequest, now: Now) -> Outcome:
        out = Outcome()
        if body.group_id == "":
            out.reply(request.request_id, LeaveGroupResponse(error_code=errors.INVALID_GROUP_ID))
            return out
        step = LeaveGroupStep(request, body)
        if len(step.identities) > self.step_members_max:
            # Reading so large a request is enough for this turn.
            out.continuations.append(step)
            return out
        return self.handle_leave_group_step(step, now)

    def handle_leave_group_step(self, step: LeaveGroupStep, now: Now) -> Outcome:
        out = Outcome()
        group = self.store.consumer_groups.get(step.group_id)
        members_max = self.step_members_max
        if group is not None:
            members_max = step.members_within(members_max, self.batch_bytes_max // 2)
        share = step.next_share(members_max)
        if group is not None:
            self.leave_consumer(step, share, now, out)
        else:
            self.leave_classic(step, share, now, out)
        self.cost += MEMBER_COST * len(share)
        if not step.is_done():
            out.continuations.append(step)
        elif out.records or (step.is_first and group is None):
            out.reply(step.request_id, step.response())
        elif step.is_first and group is not None:
            out.replies.append(Reply(step.request_id, step.response(), group.log, group.end_offset))
        else:
            # The group may no longer exist, but the answer still has to wait for the records of earlier steps.
            out.replies.append(self.store.reply_after_all(step.request_id, step.response()))
        return out
