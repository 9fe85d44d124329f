"""Features: what the metadata log says of them, and what clients are told."""

from __future__ import annotations

import pytest

from kcoord.core.topics.features import FinalizedFeatures, supported_features
from kcoord.engine.api_versions import api_versions_response
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from tests.unit.core.admin.admin_rig import AdminRig

REQUEST = ApiVersionsRequest("client", "1")


@pytest.fixture(params=[False, True])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the new group protocol is served."""
    is_served: bool = request.param
    monkeypatch.setattr(apis.APIS[apis.CONSUMER_GROUP_HEARTBEAT], "served", is_served)
    return is_served


def advertised(rig: AdminRig, version: int) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]], int]:
    """Supported and finalized features with their lowest and highest levels, and the epoch."""
    answer = api_versions_response(REQUEST, version, rig.topics.features)
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    finalized = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
    return supported, finalized, answer.finalized_features_epoch


def feature_records(rig: AdminRig) -> list[tuple[str, int]]:
    return [(one.name, one.feature_level) for one in rig.log if isinstance(one, FeatureLevelRecord)]


def test_a_new_log_begins_with_the_levels_of_what_is_served(served: bool) -> None:
    rig = AdminRig()
    levels = [("metadata.version", 30)] + ([("group.version", 1)] if served else []) + [("transaction.version", 2)]
    assert feature_records(rig) == levels
    assert [type(one) for one in rig.log[: len(levels)]] == [FeatureLevelRecord] * len(levels)
    rig.open()
    assert rig.topics.loaded(bytes(16)).records == []
    assert rig.topics.features.levels == dict(levels)


def test_api_versions_depends_on_the_version(served: bool) -> None:
    rig = AdminRig()
    metadata = {"metadata.version": (7, 30)}
    others = ({"group.version": (0, 1)} if served else {}) | {"transaction.version": (0, 2)}
    finalized = {"metadata.version": (30, 30)} | ({"group.version": (1, 1)} if served else {})
    finalized |= {"transaction.version": (2, 2)}
    # Clients of version 3 cannot read a lowest level of 0.
    assert advertised(rig, 3) == (metadata, finalized, 2 if served else 1)
    assert advertised(rig, 4) == (metadata | others, finalized, 2 if served else 1)


def test_a_log_with_lower_levels_is_upgraded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apis.APIS[apis.CONSUMER_GROUP_HEARTBEAT], "served", False)
    rig = AdminRig()
    monkeypatch.setattr(apis.APIS[apis.CONSUMER_GROUP_HEARTBEAT], "served", True)
    rig.open()
    finalized = {"metadata.version": (30, 30), "transaction.version": (2, 2)}
    assert advertised(rig, 4)[1] == finalized
    rig.apply(rig.topics.loaded(bytes(16)))
    assert feature_records(rig) == [("metadata.version", 30), ("transaction.version", 2), ("group.version", 1)]
    assert advertised(rig, 4)[1:] == (finalized | {"group.version": (1, 1)}, len(rig.log) - 1)
    assert rig.topics.loaded(bytes(16)).records == []


def test_levels_of_unknown_features_are_neither_listed_nor_lowered() -> None:
    rig = AdminRig()
    for name, level in (("metadata.version", 99), ("kraft.version", 1), ("share.version", 1)):
        rig.topics.replay_metadata(FeatureLevelRecord(name, level), 50)
    assert advertised(rig, 4)[1]["metadata.version"] == (30, 30)
    assert not {"kraft.version", "share.version"} & set(advertised(rig, 4)[1])
    assert rig.topics.loaded(bytes(16)).records == []


def test_level_0_is_none() -> None:
    features = FinalizedFeatures()
    features.replay("metadata.version", 30, 4)
    features.replay("metadata.version", 0, 5)
    assert (features.levels, features.offset) == ({}, 5)
    assert features.missing() == supported_features()


def test_an_error_and_an_old_version_bear_no_features() -> None:
    rig = AdminRig()
    answer = api_versions_response(ApiVersionsRequest("", ""), 3, rig.topics.features)
    assert (answer.supported_features, answer.finalized_features_epoch) == ([], -1)
