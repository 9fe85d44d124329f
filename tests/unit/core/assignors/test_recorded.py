"""Targets of random groups with different subscriptions, as digests.

`tests/interop/test_assignors.py` compares such targets with those of Kafka's jar, but it needs Java. The digests are of
the targets that were equal to Kafka's, so a change of them without that test is a mistake.
"""

from __future__ import annotations

import hashlib
import random

import pytest

from kcoord.core.assignors.spec import Assignment, GroupSpec, MemberSpec
from kcoord.core.assignors.uniform import UniformAssignor
from tests.unit.core.assignors.groups import Topics

GROUPS = 60
# By the number of subscriptions that the members share: one for each member counts as 0.
DIGESTS = {
    0: "692ed7e43fb14b9a0a33d24f5c3a6c7b3193fbf6415f1aed3853b0f70f9fe68a",
    2: "b9fc45e1b3233116de1742c8a039f329539076f894c62330ff34b16269ee4425",
    5: "fd73bc19699365c0301643c33ecd55bc5a7851d641d00fbcd717304c6f2553a3",
}


def random_group(r: random.Random, subscription_count: int) -> tuple[GroupSpec, Topics]:
    """Up to 40 members with targets from nothing to everything, some of which two members have or nobody may have."""
    topics = Topics({})
    topics.counts = {r.randbytes(16): r.randint(1, r.choice([3, 20, 200])) for _ in range(r.randint(1, 8))}
    topic_ids = sorted(topics.counts)
    names = [f"m{number:02}" for number in range(r.randint(2, r.choice([4, 10, 40])))]
    targets: dict[str, Assignment] = {name: {} for name in names}
    kept = r.choice([0.0, 0.3, 0.9, 1.0])
    holders = [r.choice(names) for _ in range(r.randint(1, len(names)))]
    for topic_id in topic_ids:
        for partition in range(topics.counts[topic_id] + r.choice([0, 0, 2])):
            for _ in range(r.choice([1, 1, 1, 2])):
                own = targets[r.choice(holders)].setdefault(topic_id, [])
                if r.random() < kept and partition not in own:
                    own.append(partition)
    shared = [sorted(r.sample(topic_ids, r.randint(0, len(topic_ids)))) for _ in range(subscription_count)]
    members: dict[str, MemberSpec] = {}
    for name in names:
        own_topics = sorted(r.sample(topic_ids, r.randint(0, len(topic_ids))))
        target = {topic_id: own for topic_id, own in targets[name].items() if own}
        members[name] = MemberSpec(name, None, None, r.choice(shared) if shared else own_topics, target)
    return GroupSpec(members, False), topics


@pytest.mark.parametrize("subscription_count", DIGESTS)
def test_targets_are_those_that_were_compared_with_kafka(subscription_count: int) -> None:
    r = random.Random(subscription_count)
    digest = hashlib.sha256()
    for _ in range(GROUPS):
        group, topics = random_group(r, subscription_count)
        result = UniformAssignor().assign(group, topics)
        for member_id in sorted(result):
            for topic_id, partitions in result[member_id].items():
                digest.update(f"{member_id} {topic_id.hex()} {partitions}\n".encode())
    assert digest.hexdigest() == DIGESTS[subscription_count]
