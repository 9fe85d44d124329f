"""The tests of the admin client that need nothing newer, against Kafka 3.9."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.test_admin import (  # noqa: F401
    test_a_classic_group,
    test_a_partition_that_does_not_exist,
    test_all_offsets_of_a_group_in_one_call,
    test_delete_offsets,
    test_groups_that_do_not_exist,
    test_log_dirs,
    test_offsets_of_partitions_and_deleted_records,
    test_offsets_of_several_groups,
    test_remove_members,
    test_stable_offsets_wait_for_a_transaction,
    test_times_of_records,
    test_topics,
)
from tests.harness.real_broker import RealBroker

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker(release="3.9.2") as running:
        yield running


@pytest.fixture
def bootstrap(broker: RealBroker) -> str:
    return broker.bootstrap
