"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.groups.classic import CONSUMER_PROTOCOL_TYPE, DEAD, STABLE, ClassicGroup
from kcoord.core.groups.records import group_tombstones
from kcoord.core.groups.store import GroupStore
from kcoord.core.offsets.state import tombstone_bytes_max, tombstone_weight
from kcoord.core.outcome import (
    INFO,
    MESSAGE_CHARS_MAX,
    Continuation,
    CoordinatorRecord,
    Fact,
    LogId,
    Outcome,
    Request,
)
from kcoord.protocol import errors
from kcoord.protocol.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kcoord.protocol.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kcoord.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kcoord.protocol.records.group_metadata import GroupMetadataKey

# The value if the request did not ask for authorized operations.
OPERATIONS_NOT_ASKED: Final = -2147483648
# Without an authorizer all operations of a group are authorized: bits READ 3, DELETE 6, DESCRIBE 8, DESCRIBE_CONFIGS
# 10, ALTER_CONFIGS 11.
GROUP_OPERATIONS: Final = 0b110101001000

# Groups and members of one answer, at some 4 µs each, or those of one group if that has more. Further groups are
# answered with COORDINATOR_LOAD_IN_PROGRESS, and clients retry them: however often a small request names a large group,
# its answer stays small. Kafka has no limit.
DESCRIBED_MEMBERS_MAX: Final = 10_000

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"

# Groups and offsets that one turn deletes, at some 10 µs each. Offsets of groups with long ids count for more, since
# each tombstone repeats the id.
DELETED_IN_TURN_MAX: Final = 1000


@final
class DeleteGroupsStep(Continuation):
    """The rest of a DeleteGroups request. One step writes to one log, and a turn deletes a limited number."""

    def __init__(
        self,
        request_id: int,
        group_ids: list[str],
        position: int,
        results: list[DeletableGroupResult],
        offsets_deleted: int,
    ) -> None:
        super().__init__(request_id)
        self.group_ids = group_ids
        # What this turn may still delete.
        self.left = DELETED_IN_TURN_MAX
        # How many bytes of tombstones the batch of this step may still get.
        self.bytes_left = 0
        # The groups before this position are done.
        self.position = position
        self.results = results
        self.offsets_deleted = offsets_deleted


@final
class GroupAdmin:
    """`tombstones_of(group_id, at_most)` returns records that delete offsets of a group. All of a step are one batch of
    at most `batch_bytes_max` bytes.
    """

    def __init__(
        self,
        store: GroupStore,
        tombstones_of: Callable[[str, int], list[CoordinatorRecord]],
        batch_bytes_max: int,
    ) -> None:
        self.batch_bytes_max = batch_bytes_max
        self.store = store
        self.tombstones_of = tombstones_of
        self.described_members_max = DESCRIBED_MEMBERS_MAX

    # ---- DescribeGroups

    def handle_describe_groups(self, request: Request, body: DescribeGroupsRequest) -> Outcome:
        out = Outcome()
        described: list[DescribedGroup] = []
        operations = OPERATIONS_NOT_ASKED
        if request.version >= 3 and body.include_authorized_operations:
            operations = GROUP_OPERATIONS
        members = 0
        for group_id in body.groups:
            group = self.store.get(group_id)
            if group is not None and members and members + len(group.members) > self.described_members_max:
                described.append(
                    DescribedGroup(
                        error_code=errors.COORDINATOR_LOAD_IN_PROGRESS,
                        group_id=group_id,
                        authorized_operations=OPERATIONS_NOT_ASKED,
                    )
                )
            elif group is not None:
                described.append(self._describe(group, operations))
                members += 1 + len(group.members)
            elif request.version >= 6:
                # KIP-1043: an unknown group is distinguished from one that is Dead.
                shown = group_id[:MESSAGE_CHARS_MAX]
                is_other = group_id in self.store.consumer_groups
                described.append(
                    DescribedGroup(
                        error_code=errors.GROUP_ID_NOT_FOUND,
                        error_message=f"Group {shown} {'is not a classic group' if is_other else 'not found'}.",
                        group_id=group_id,
                        group_state=DEAD,
                        authorized_operations=OPERATIONS_NOT_ASKED,
                    )
                )
            else:
                described.append(
                    DescribedGroup(
                        group_id=group_id,
                        group_state=DEAD,
                        authorized_operations=operations,
                    )
                )
        out.replies.append(self.store.reply_after_all(request.request_id, DescribeGroupsResponse(groups=described)))
        return out

    def _describe(self, group: ClassicGroup, operations: int) -> DescribedGroup:
        """Only a Stable group has a chosen protocol, and so metadata to show."""
        is_stable = group.state == STABLE
        protocol_name = group.protocol_name if is_stable else None
        members: list[DescribedGroupMember] = []
        for member in group.members.values():
            members.append(
                DescribedGroupMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol_name) if is_stable else b"",
                    member.assignment,
                )
            )
        return DescribedGroup(
            error_code=errors.NONE,
            group_id=group.group_id,
            group_state=group.state,
            protocol_type=group.protocol_type if group.protocol_type is not None else "",
            protocol_data=protocol_name if protocol_name is not None else "",
            members=members,
            authorized_operations=operations,
        )

    # ---- ListGroups

    def handle_list_groups(self, request: Request, body: ListGroupsRequest) -> Outcome:
        """Filters ignore case; unknown values match nothing (KIP-518, KIP-848)."""
        out = Outcome()
        states: dict[str, bool] = {}
        for name in body.states_filter:
            states[name.lower().strip()] = True
        wants_classic = not body.types_filter
        wants_consumer = not body.types_filter
        for name in body.types_filter:
            if name.strip().lower() == CLASSIC_TYPE:
                wants_classic = True
            elif name.strip().lower() == CONSUMER_TYPE:
                wants_consumer = True
        listed: list[ListedGroup] = []
        if wants_classic:
            for group in self.store.groups.values():
                if not states or group.state.lower() in states:
                    listed.append(
                        ListedGroup(
                            group.group_id,
                            group.protocol_type if group.protocol_type is not None else "",
                            group.state,
                            CLASSIC_TYPE,
                        )
                    )
        if wants_consumer:
            for consumer_group in self.store.consumer_groups.values():
                state = consumer_group.state()
                if not states or state.lower() in states:
                    listed.append(ListedGroup(consumer_group.group_id, CONSUMER_PROTOCOL_TYPE, state, CONSUMER_TYPE))
        out.replies.append(self.store.reply_after_all(request.request_id, ListGroupsResponse(groups=listed)))
        return out

    # ---- DeleteGroups

    def handle_delete_groups(self, request: Request, body: DeleteGroupsRequest) -> Outcome:
        group_ids = list(dict.fromkeys(body.groups_names))
        return self._delete(DeleteGroupsStep(request.request_id, group_ids, 0, [], 0))

    def handle_delete_groups_step(self, step: DeleteGroupsStep) -> Outcome:
        return self._delete(step)

    def _delete(self, step: DeleteGroupsStep) -> Outcome:
        """Delete groups as long as they are in one log and within the turn's limit; the rest is one more step.

        The answer comes with the last step and waits for the records of all steps. A group whose offsets take several
        turns is checked again in each, so a member that joins meanwhile keeps the group, without the offsets deleted
        before.
        """
        out = Outcome()
        step.bytes_left = self.batch_bytes_max
        while step.position < len(step.group_ids):
            if step.left <= 0:
                step.left = DELETED_IN_TURN_MAX
                out.continuations.append(step)
                return out
            group_id = step.group_ids[step.position]
            error = errors.GROUP_ID_NOT_FOUND
            group = self.store.get(group_id)
            consumer_group = self.store.consumer_groups.get(group_id)
            own: list[CoordinatorRecord] = []
            if group is not None:
                error = group.validate_delete()
                own.append(CoordinatorRecord(GroupMetadataKey(group_id), None))
            elif consumer_group is not None:
                error = errors.NONE if consumer_group.is_empty() else errors.NON_EMPTY_GROUP
                own = group_tombstones(consumer_group)
            step.left -= 1
            if error != errors.NONE:
                step.results.append(DeletableGroupResult(group_id, error))
                step.position += 1
                continue
            log = self.store.log_of(group_id)
            if out.log is not None and not _same_log(out.log, log):
                out.follow_ups.append(step)
                return out
            if self._add_tombstones(group_id, log, own, step, out):
                step.results.append(DeletableGroupResult(group_id, errors.NONE))
                step.position += 1
        response = DeleteGroupsResponse(results=step.results)
        if out.records:
            out.reply(step.request_id, response)
        else:
            out.replies.append(self.store.reply_after_all(step.request_id, response))
        self._report_deleted(step, out)
        return out

    def _add_tombstones(
        self, group_id: str, log: LogId, own: list[CoordinatorRecord], step: DeleteGroupsStep, out: Outcome
    ) -> bool:
        """Add tombstones of a group. Returns whether the group is deleted with them; if not, more offsets remain.

        A group with very many offsets loses them first, turn by turn, and its own records with the last ones.
        """
        weight = tombstone_weight(group_id)
        offset_bytes = tombstone_bytes_max(group_id)
        own_bytes = len(own) * offset_bytes
        by_size = (step.bytes_left - own_bytes) // offset_bytes
        if by_size < 0 and out.records:
            step.left = 0
            return False
        if not out.records:
            by_size = max(1, by_size)
        at_most = min(step.left // weight, by_size)
        offsets = self.tombstones_of(group_id, at_most + 1)
        is_whole = len(offsets) <= at_most
        if not is_whole:
            offsets.pop()
            # The rest of this turn's limit is too small for the group.
            step.left = 0
        else:
            step.left -= len(offsets) * weight
        step.bytes_left -= own_bytes + len(offsets) * offset_bytes
        step.offsets_deleted += len(offsets)
        out.log = log
        out.records.extend(offsets)
        if is_whole:
            out.records.extend(own)
        return is_whole

    def _report_deleted(self, step: DeleteGroupsStep, out: Outcome) -> None:
        deleted = 0
        for result in step.results:
            if result.error_code == errors.NONE:
                deleted += 1
        if deleted:
            out.facts.append(Fact(INFO, "groups_deleted", {"groups": deleted, "offsets": step.offsets_deleted}))


def _same_log(a: LogId, b: LogId) -> bool:
    return a.partition == b.partition and a.topic == b.topic
