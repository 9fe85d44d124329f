"""Requests of the classic protocol, which groups of both protocols get: a consumer group may have classic members.

The group decides who handles them. LeaveGroup decides that for each member (`groups/leave.py`).
"""

from __future__ import annotations

from typing import final

from kcoord.core.classic.join import ClassicJoin
from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.classic.sync import ClassicSync
from kcoord.core.consumer.mixed_join import MixedJoin
from kcoord.core.consumer.mixed_members import MixedMembers
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import Now, Outcome, Request
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest
from kcoord.protocol.sync_group import SyncGroupRequest


@final
class ClassicRequests:
    def __init__(
        self,
        groups: GroupStore,
        joins: ClassicJoin,
        syncs: ClassicSync,
        membership: ClassicMembership,
        mixed_joins: MixedJoin,
        mixed_members: MixedMembers,
    ) -> None:
        self.groups = groups
        self.joins = joins
        self.syncs = syncs
        self.membership = membership
        self.mixed_joins = mixed_joins
        self.mixed_members = mixed_members

    def handle_join_group(self, request: Request, body: JoinGroupRequest, now: Now) -> Outcome:
        if body.group_id in self.groups.consumer_groups:
            return self.mixed_joins.handle_join_group(request, body, now)
        return self.joins.handle_join_group(request, body, now)

    def handle_sync_group(self, request: Request, body: SyncGroupRequest, now: Now) -> Outcome:
        if body.group_id in self.groups.consumer_groups:
            return self.mixed_members.handle_sync_group(request, body, now)
        return self.syncs.handle_sync_group(request, body, now)

    def handle_heartbeat(self, request: Request, body: HeartbeatRequest, now: Now) -> Outcome:
        if body.group_id in self.groups.consumer_groups:
            return self.mixed_members.handle_heartbeat(request, body, now)
        return self.membership.handle_heartbeat(request, body, now)
