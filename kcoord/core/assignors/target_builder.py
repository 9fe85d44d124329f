"""From one target assignment of a group to the next.

A `TargetBuilder` is soft state of a group: it knows the subscriptions of the members, is updated when they change, and
computes which targets differ. The targets themselves are hard state, a dict that the group owns and only replay writes;
the builder reads it. When `compute` is called again, the dict should contain the previous results. If it does not
(their records could not be stored), everything is computed anew from what the dict has.

With the uniform assignor a `Balancer` is kept between computations and updated with members that join and leave, so
that the work follows the change and not the size of the group. If members subscribe to different topics, it is also
updated with members that change their subscription. After any other change (topics, the assignor, members of an equal
subscription that get different ones or the reverse) the computation is a full one.
"""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.balancer import Balancer
from kcoord.core.assignors.check import checked_assignment
from kcoord.core.assignors.heterogeneous import HeterogeneousBalancer
from kcoord.core.assignors.homogeneous import HomogeneousBalancer
from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import (
    Assignment,
    Assignor,
    AssignorError,
    GroupSpec,
    MemberSpec,
    TopicDescriber,
)
from kcoord.core.assignors.uniform import UniformAssignor
from kcoord.wire.causes import caused_by


@final
class _Subscription:
    """Topics that some members of the group subscribe to, and the number of those members."""

    def __init__(self, topic_ids: list[bytes]) -> None:
        self.topic_ids = topic_ids
        self.member_count = 0


@final
class TargetBuilder:
    """Computes a group's target assignment; the module's docstring states which object owns what."""

    def __init__(self, assignor: Assignor, topics: TopicDescriber, targets: dict[str, Assignment]) -> None:
        self._assignor = assignor
        self._topics = topics
        self._targets = targets
        # The `target` in these is only updated by full computations.
        self._members: dict[str, MemberSpec] = {}
        self._subscriptions: dict[tuple[bytes, ...], _Subscription] = {}
        self._balancer: Balancer | None = None
        # Members that joined or changed their subscription since the balancer was last used.
        self._joined: dict[str, bool] = {}
        self._resubscribed: dict[str, bool] = {}
        # The results of the last computation, which `targets` must contain for the balancer to be valid.
        self._answered: dict[str, Assignment] = {}

    @property
    def assignor(self) -> Assignor:
        return self._assignor

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same existing topics. True for a group without members."""
        return len(self._subscriptions) <= 1

    def uses(self, topic_ids: dict[bytes, bool]) -> bool:
        """Whether the next computation may continue from one that had some of these topics."""
        return self._balancer is not None and self._balancer.uses(topic_ids)

    def set_assignor(self, assignor: Assignor) -> None:
        """Use `assignor` for the next computation."""
        self._assignor = assignor
        self._balancer = None

    def set_member(self, member_id: str, instance_id: str | None, rack_id: str | None, topic_ids: list[bytes]) -> None:
        """A member joined, or its subscription, rack or instance changed.

        `topic_ids`: subscribed and existing topics, ascending, without duplicates. Call it again for every member whose
        topics were created or deleted.
        """
        member = self._members.get(member_id)
        if member is None:
            shared = self._subscribe(topic_ids)
            self._members[member_id] = MemberSpec(member_id, instance_id, rack_id, shared, {})
            self._joined[member_id] = True
            if member_id in self._targets:
                self._balancer = None
            return
        member.instance_id = instance_id
        member.rack_id = rack_id
        if member.topic_ids != topic_ids:
            old = member.topic_ids
            member.topic_ids = self._subscribe(topic_ids)
            self._unsubscribe(old)
            self._resubscribed[member_id] = True

    def remove_member(self, member_id: str) -> None:
        """A member left for good. Unknown members are ignored."""
        member = self._members.pop(member_id, None)
        if member is None:
            return
        self._unsubscribe(member.topic_ids)
        self._joined.pop(member_id, None)
        self._resubscribed.pop(member_id, None)
        self._answered.pop(member_id, None)
        balancer = self._balancer
        if balancer is not None and balancer.has(member_id):
            balancer.remove(member_id)

    def replace_static_member(self, old_id: str, new_id: str) -> None:
        """A static member returned under a new member id and inherits subscription and target of the old one.

        The caller stores the old target under the new id in the targets, and removes the old id. A `set_member` of the
        new id may follow if its subscription differs. Raises KeyError if there is no such member.
        """
        member = self._members.pop(old_id)
        self._members[new_id] = MemberSpec(new_id, member.instance_id, member.rack_id, member.topic_ids, {})
        if self._joined.pop(old_id, False):
            self._joined[new_id] = True
        if self._resubscribed.pop(old_id, False):
            self._resubscribed[new_id] = True
        self._answered.pop(old_id, None)
        balancer = self._balancer
        if balancer is not None and balancer.has(old_id):
            balancer.rename(old_id, new_id)
            self._answered[new_id] = balancer.assignment(new_id)

    def compute(self) -> list[tuple[str, Assignment]]:
        """Members whose target differs from `targets`, with their new targets, sorted by member id.

        A member that is not in `targets` is included even if it gets nothing. Members that left are not. After an
        `AssignorError` the builder can still be used.
        """
        if not self._members:
            self._balancer = None
            return []
        if isinstance(self._assignor, UniformAssignor):
            return self._compute_uniform()
        self._balancer = None
        return self._compute_in_full()

    def _subscribe(self, topic_ids: list[bytes]) -> list[bytes]:
        """Count a subscriber of exactly these topics. Returns the list that all such subscribers share."""
        key = tuple(topic_ids)
        subscription = self._subscriptions.get(key)
        if subscription is None:
            subscription = _Subscription(topic_ids)
            self._subscriptions[key] = subscription
        subscription.member_count += 1
        return subscription.topic_ids

    def _unsubscribe(self, topic_ids: list[bytes]) -> None:
        key = tuple(topic_ids)
        subscription = self._subscriptions[key]
        subscription.member_count -= 1
        if subscription.member_count == 0:
            del self._subscriptions[key]

    def _compute_uniform(self) -> list[tuple[str, Assignment]]:
        balancer = self._balancer
        # Set again only if this succeeds: a balancer that failed half way is not valid.
        self._balancer = None
        if balancer is not None and self._is_current(balancer):
            if isinstance(balancer, HeterogeneousBalancer):
                for member_id in self._resubscribed:
                    if member_id not in self._joined:
                        balancer.change(member_id, self._members[member_id].topic_ids)
            for member_id in self._joined:
                balancer.add_new(member_id, self._members[member_id].topic_ids)
            answered = {member_id: balancer.assignment(member_id) for member_id in balancer.balance()}
        else:
            balancer = self._new_balancer()
            balancer.balance()
            answered = balancer.assignments()
        if self._targets:
            answered = {member_id: found for member_id, found in answered.items() if self._differs(member_id, found)}
        self._answered = answered
        self._joined = {}
        self._resubscribed = {}
        self._balancer = balancer
        return list(answered.items())

    def _new_balancer(self) -> Balancer:
        """A balancer with all members, sorted, before its first `balance`."""
        if not self.is_homogeneous:
            return HeterogeneousBalancer(self._spec(), self._topics)
        member_ids = sorted(self._members)
        topic_ids = self._members[member_ids[0]].topic_ids
        return HomogeneousBalancer(topic_ids, self._topics, member_ids, self._targets)

    def _is_current(self, balancer: Balancer) -> bool:
        """Whether the balancer suits the subscriptions, and its last results are what the targets contain."""
        if isinstance(balancer, HeterogeneousBalancer):
            changes = len(self._joined) + len(self._resubscribed)
            # After so many changes, a new balancer takes less time.
            if self.is_homogeneous or balancer.is_worn or 2 * changes > len(self._members):
                return False
        if isinstance(balancer, HomogeneousBalancer):
            for subscription in self._subscriptions.values():
                if subscription.topic_ids != balancer.topic_ids:
                    return False
        for member_id, assignment in self._answered.items():
            if self._targets.get(member_id) != assignment:
                return False
        return True

    def _compute_in_full(self) -> list[tuple[str, Assignment]]:
        group = self._spec()
        assignor = self._assignor
        if isinstance(assignor, RangeAssignor):
            result = assignor.assign(group, self._topics)
        else:
            result = _checked_result(assignor, group, self._topics)
        self._joined = {}
        self._resubscribed = {}
        answer: list[tuple[str, Assignment]] = []
        for member_id in group.members:
            if self._differs(member_id, result[member_id]):
                answer.append((member_id, result[member_id]))
        return answer

    def _spec(self) -> GroupSpec:
        """The group with its current targets, sorted by member id."""
        members: dict[str, MemberSpec] = {}
        for member_id in sorted(self._members):
            member = self._members[member_id]
            target = self._targets.get(member_id)
            member.target = {} if target is None else target
            members[member_id] = member
        return GroupSpec(members, self.is_homogeneous)

    def _differs(self, member_id: str, assignment: Assignment) -> bool:
        target = self._targets.get(member_id)
        return target is not assignment and (target is None or target != assignment)


def _checked_result(assignor: Assignor, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
    """The checked result of other people's code. Any exception it raises becomes an `AssignorError`."""
    try:
        return checked_assignment(group, topics, assignor.assign(group, topics))
    except AssignorError:
        raise
    except Exception as e:
        text = f"assignor {assignor.name!r} failed with {type(e).__name__}: {e}"
        raise caused_by(AssignorError(text), e) from e
