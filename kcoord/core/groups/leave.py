"""LeaveGroup: members leave, one by one or very many at once, in groups of either protocol.

A request may name every member of a large group, which is too much for one turn. So it is worked off in steps: each
step does for its share of the members what a request for them alone would do, with records of its own, and a turn has
one such step. The connection waits, and the last step answers for all. Others are served in between and see a group
that some members have left already. After a crash in between, or when the group is removed or changes its protocol,
the rest goes on from what the group is then. A broker does all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

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
# What a member takes, in bytes of the turn's budget: a step of full size uses up a turn.
MEMBER_COST: Final = 300


@final
class LeaveGroupStep(Continuation):
    """A LeaveGroup request, and what is done of it."""

    def __init__(self, request: Request, body: LeaveGroupRequest) -> None:
        super().__init__(request.request_id)
        self.group_id = body.group_id
        self.is_single = request.version < MANY_MEMBERS_VERSION
        self.identities = [MemberIdentity(body.member_id)] if self.is_single else body.members
        # What is before this position is done.
        self.position = 0
        self.is_first = True
        self.responses: list[MemberResponse] = []
        # Members of a consumer group that left: an answer does not depend on how often the request names one.
        self.left: dict[str, bool] = {}
        self.left_instances: dict[str, str] = {}

    def next_share(self, members_max: int) -> list[MemberIdentity]:
        """The members of the next step, which count as done from here on."""
        start = self.position
        self.is_first = start == 0
        self.position = min(start + members_max, len(self.identities))
        return self.identities[start : self.position]

    def is_done(self) -> bool:
        return self.position == len(self.identities)

    def add(self, identity: MemberIdentity, error_code: int) -> None:
        self.responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error_code))

    def response(self) -> LeaveGroupResponse:
        if self.is_single:
            return LeaveGroupResponse(error_code=self.responses[0].error_code)
        return LeaveGroupResponse(error_code=errors.NONE, members=self.responses)


# Removes a share of the members from the group, and notes an answer for each.
Leave = Callable[[LeaveGroupStep, list[MemberIdentity], Now, Outcome], None]


@final
class LeaveGroups:
    """`leave_classic` and `leave_consumer` remove members of groups of either protocol."""

    def __init__(self, store: GroupStore, leave_classic: Leave, leave_consumer: Leave) -> None:
        self.store = store
        self.leave_classic = leave_classic
        self.leave_consumer = leave_consumer
        self.step_members_max = STEP_MEMBERS_MAX
        # What steps took since the engine last asked, in bytes of the turn's budget.
        self.cost = 0

    def handle_leave_group(self, request: Request, body: LeaveGroupRequest, now: Now) -> Outcome:
        out = Outcome()
        if body.group_id == "":
            out.reply(request.request_id, LeaveGroupResponse(error_code=errors.INVALID_GROUP_ID))
            return out
        step = LeaveGroupStep(request, body)
        if len(step.identities) > self.step_members_max:
            # To read the request was work already.
            out.continuations.append(step)
            return out
        return self.handle_leave_group_step(step, now)

    def handle_leave_group_step(self, step: LeaveGroupStep, now: Now) -> Outcome:
        out = Outcome()
        share = step.next_share(self.step_members_max)
        group = self.store.consumer_groups.get(step.group_id)
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
            # Its group may be gone by now, and the records of earlier steps count.
            out.replies.append(self.store.reply_after_all(step.request_id, step.response()))
        return out
