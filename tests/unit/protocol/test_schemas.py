"""The key words of schemas, where a mistake would make other bytes than Kafka's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kcoord.codegen.schema import SchemaError, load_message
from kcoord.protocol import fetch
from kcoord.protocol.records import consumer_group_current_member_assignment as current
from kcoord.protocol.records import consumer_group_member_metadata as member
from kcoord.wire.primitives import BytesWriter, Reader

FIELD = {"name": "F", "type": "[]int32", "versions": "0+", "nullableVersions": "0+", "tag": 0, "taggedVersions": "0+"}


def load(path: Path, field: dict[str, Any]) -> str | None:
    """The default of the only field of a message."""
    raw = {"name": "Thing", "type": "data", "validVersions": "0", "flexibleVersions": "0+", "fields": [field]}
    (path / "Thing.json").write_text(json.dumps(raw))
    return load_message(path / "Thing.json").root.fields[0].default


def test_a_default_null_has_quotes_or_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, FIELD) is None
    assert load(tmp_path, {**FIELD, "default": "null"}) == "null"
    with pytest.raises(SchemaError, match="without a default a field is empty"):
        load(tmp_path, {**FIELD, "default": None})


def member_bytes(value: member.ConsumerGroupMemberMetadataValue) -> bytes:
    w = BytesWriter()
    member.encode_consumer_group_member_metadata_value(w, value, 0)
    return w.getvalue()


def epochs_bytes(epochs: list[int] | None) -> bytes:
    w = BytesWriter()
    partitions = current.TopicPartitions(bytes(16), [], epochs)
    current.encode_consumer_group_current_member_assignment_value(
        w, current.ConsumerGroupCurrentMemberAssignmentValue(1, 0, 0, [partitions]), 0
    )
    return w.getvalue()


def test_null_is_written_and_empty_is_left_out() -> None:
    """As Kafka's Java classes do: tag 0, one byte, a zero."""
    value = member.ConsumerGroupMemberMetadataValue()
    assert value.classic_member_metadata == member.ClassicMemberMetadata()
    empty = member_bytes(value)
    value.classic_member_metadata = None
    null = member_bytes(value)
    assert empty[-1:] == b"\x00" and null == empty[:-1] + b"\x01\x00\x01\x00"
    for data, meant in ((empty, member.ClassicMemberMetadata()), (null, None)):
        decoded = member.decode_consumer_group_member_metadata_value(Reader(data), 0)
        assert decoded.classic_member_metadata == meant
    # An empty value that is written out is read as well.
    written = empty[:-1] + b"\x01\x00\x07\x01" + bytes(4) + b"\x01\x00"
    decoded = member.decode_consumer_group_member_metadata_value(Reader(written), 0)
    assert decoded.classic_member_metadata == member.ClassicMemberMetadata()


def test_null_epochs() -> None:
    null, empty = epochs_bytes(None), epochs_bytes([])
    assert null.count(b"\x01\x00\x01\x00") == 1 and len(null) == len(empty) + 3
    for data, meant in ((null, None), (empty, []), (epochs_bytes([7]), [7])):
        decoded = current.decode_consumer_group_current_member_assignment_value(Reader(data), 0)
        assert decoded.assigned_partitions[0].assignment_epochs == meant


def test_a_default_is_compared_without_making_one() -> None:
    """An answer may have tens of thousands of structs with several such fields each."""
    sources = Path(fetch.__file__).with_suffix(".py").parent.rglob("*.py")
    texts = [path.read_text() for path in sources]
    assert any("not _is_default_epoch_end_offset(" in text for text in texts)
    assert not [text for text in texts if re.search(r"[!=]= [A-Z]\w*\(\)", text)]
    for data in (fetch.PartitionData(7), fetch.PartitionData(7, diverging_epoch=fetch.EpochEndOffset(-1, 0))):
        w = BytesWriter()
        answer = fetch.FetchResponse(responses=[fetch.FetchableTopicResponse("t", partitions=[data])])
        fetch.encode_fetch_response(w, answer, 12)
        assert fetch.decode_fetch_response(Reader(w.getvalue()), 12) == answer
