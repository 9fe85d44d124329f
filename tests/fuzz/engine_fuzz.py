"""Throws damaged requests at a whole engine and watches that nothing breaks.

    python -m tests.fuzz.engine_fuzz --executions 1000000 --seed 1
    python -m tests.fuzz.engine_fuzz --seconds 60 --seed 1

Each execution is one piece of input on a connection: a valid request of any API and version, with random content,
damaged in one of several ways, or plain noise. After each, the connection must have been answered, be waiting for an
event the core knows about, or be closed with a reason; nothing but that may happen. Every so often an honest client on
another connection goes through a commit and reads it back, and must get the right answer.

A failure prints the seed and the number of the execution, which reproduce it.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from typing import Any

from kcoord.codegen.schema import Field, Message, Struct, load_all
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.protocol import apis
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.errors import NONE
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.wire.primitives import BytesWriter, Reader, write_int16, write_int32, write_nullable_string
from tests.harness.engine import REPOSITORY, open_memory_engine, take_output

NAMES = [
    "t",
    "topic-a",
    "__consumer_offsets",
    "__transaction_state",
    "",
    "x" * 300,
    "bad name",
    "g",
    "group",
    "é",
    "consumer",
    "range",
    "connect",
]
TOPIC = "honest"
TRANSACTIONAL_ID = "honest-producer"
# Transactional ids that exist; their producers have the ids 0 and 1, which random requests often have.
OTHER_IDS = ("t", "g")
TRANSACTION_KEY_TYPE = 1
HONEST_EVERY = 500
FRESH_ENGINE_EVERY = 20_000


class Generator:
    """Random messages of every API and version, from the schemas."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        messages = [m for m in load_all(REPOSITORY / "schemas") if m.type == "request"]
        self.requests = {m.api_key: m for m in messages if m.api_key is not None}
        self.modules: dict[str, Any] = {}
        for message in self.requests.values():
            api = apis.APIS[int(message.api_key or 0)]
            module = importlib.import_module(f"kcoord.protocol.{_module_name(api.name)}")
            self.modules[message.name] = module

    def request(self) -> tuple[int, int, bytes]:
        api_key = self.rng.choice(sorted(self.requests))
        message = self.requests[api_key]
        version = self.rng.randint(message.valid.low, message.valid.high)
        body = self.struct(message, message.root, version)
        w = BytesWriter()
        apis.encode_request(w, api_key, body, version)
        return api_key, version, w.getvalue()

    def struct(self, message: Message, struct: Struct, version: int) -> Any:
        values = {}
        for field in struct.fields:
            present = field.tagged if field.tag >= 0 else field.versions
            if present.low <= version <= present.high and self.rng.random() < 0.9:
                values[field.attribute] = self.value(message, field, version)
        return getattr(self.modules[message.name], struct.name)(**values)

    def value(self, message: Message, field: Field, version: int) -> Any:
        if field.nullable.low <= version <= field.nullable.high and self.rng.random() < 0.2:
            return None
        if field.is_array:
            return [self.one(message, field, version) for _ in range(self.rng.choice((0, 1, 1, 2, 5)))]
        return self.one(message, field, version)

    def one(self, message: Message, field: Field, version: int) -> Any:
        rng = self.rng
        if field.struct is not None:
            return self.struct(message, field.struct, version)
        kind = field.element
        if kind == "string":
            return rng.choice(NAMES)
        if kind in ("bytes", "records"):
            return rng.randbytes(rng.choice((0, 5, 61, 200)))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        if kind == "float64":
            return rng.random()
        bits = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}[kind]
        small = rng.choice((0, 1, 2, 5, 10000))
        choice = rng.random()
        if choice < 0.6:
            return min(small, (1 << bits) - 1)
        if choice < 0.8 and not kind.startswith("u"):
            return -1
        return rng.getrandbits(bits)


def _module_name(name: str) -> str:
    out = ""
    for index, character in enumerate(name):
        if character.isupper() and index:
            out += "_"
        out += character.lower()
    return out


def frame_of(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    w = BytesWriter()
    write_int16(w, api_key)
    write_int16(w, version)
    write_int32(w, correlation_id)
    write_nullable_string(w, "fuzz")
    if version >= apis.APIS[api_key].flexible_version:
        w.append(0)
    data = w.getvalue() + body
    return len(data).to_bytes(4, "big") + data


def damage(rng: random.Random, frame: bytes) -> bytes:
    """One of several kinds of damage; the frame's size field is mostly made right again."""
    data = bytearray(frame)
    # Half of them stay whole, so that damage meets a server that has something to lose.
    kind = rng.randrange(18)
    if kind == 0 or kind > 8:
        return bytes(data)
    if kind == 1:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    if kind == 2:
        del data[rng.randrange(4, len(data)) :]
    elif kind == 3:
        at = rng.randrange(4, len(data))
        data[at:at] = rng.randbytes(rng.randint(1, 16))
    elif kind == 4:
        at = rng.randrange(4, len(data))
        data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00" * 4))
    elif kind == 5:
        at = rng.randrange(4, len(data))
        data[at : at + rng.randint(1, 20)] = b""
    elif kind == 6:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(4, len(data))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
    elif kind == 7:
        data[6:8] = rng.randrange(0, 20).to_bytes(2, "big")
    else:
        return rng.randbytes(rng.randint(1, 200))
    data[0:4] = (len(data) - 4).to_bytes(4, "big")
    return bytes(data)


class Honest:
    """A well-behaved client: commits a position and reads it back, alone and with a transaction."""

    def __init__(self, engine: Engine, now: Now) -> None:
        self.engine = engine
        self.session = engine.open_session("127.0.0.1", "127.0.0.1", 9092)
        self.offset = 0
        self.ask(apis.METADATA, 8, _metadata_request(), now)
        coordinator = FindCoordinatorRequest("", TRANSACTION_KEY_TYPE, [TRANSACTIONAL_ID])
        self.ask(apis.FIND_COORDINATOR, 4, coordinator, now)
        for transactional_id in (*OTHER_IDS, TRANSACTIONAL_ID):
            made = self.ask(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(transactional_id, 60_000), now)
            assert made.error_code == NONE, made
        self.producer_id, self.epoch = made.producer_id, made.producer_epoch

    def ask(self, api_key: int, version: int, message: Any, now: Now) -> Any:
        w = BytesWriter()
        apis.encode_request(w, api_key, message, version)
        self.engine.receive(self.session, frame_of(api_key, version, 7, w.getvalue()), now)
        data = b""
        while not data:
            self.engine.end_turn(now)
            self.engine.take_ready()
            data = take_output(self.session)
            if not self.engine.has_more():
                break
        assert not self.session.close_reason, f"honest client was closed: {self.session.close_reason}"
        assert len(data) > 8 and int.from_bytes(data[:4], "big") == len(data) - 4, "one whole answer is expected"
        assert data[4:8] == (7).to_bytes(4, "big"), "the answer belongs to another request"
        reader = Reader(data, 9 if version >= apis.APIS[api_key].flexible_version else 8)
        response = apis.decode_response(api_key, reader, version)
        reader.expect_end()
        return response

    def check(self, now: Now) -> None:
        self.offset += 1
        partition = OffsetCommitRequestPartition(0, self.offset, -1, "honest")
        commit = OffsetCommitRequest(
            "honest-group", -1, "", None, -1, [OffsetCommitRequestTopic(TOPIC, bytes(16), [partition])]
        )
        answer = self.ask(apis.OFFSET_COMMIT, 8, commit, now)
        assert isinstance(answer, OffsetCommitResponse)
        assert answer.topics[0].partitions[0].error_code == NONE, answer
        fetch = OffsetFetchRequest("honest-group", [OffsetFetchRequestTopic(TOPIC, [0])])
        found = self.ask(apis.OFFSET_FETCH, 7, fetch, now)
        assert isinstance(found, OffsetFetchResponse)
        assert found.topics[0].partitions[0].committed_offset == self.offset, found
        self.check_transaction(now)

    def check_transaction(self, now: Now) -> None:
        """Every other transaction is aborted. Each one increments the epoch."""
        is_commit = self.epoch % 2 == 0
        partition = TxnOffsetCommitRequestPartition(0, self.offset + 1, -1, "")
        commit = TxnOffsetCommitRequest(
            TRANSACTIONAL_ID, "honest-group", self.producer_id, self.epoch, -1, "", None,
            [TxnOffsetCommitRequestTopic(TOPIC, [partition])],
        )  # fmt: skip
        answer = self.ask(apis.TXN_OFFSET_COMMIT, 5, commit, now)
        assert answer.topics[0].partitions[0].error_code == NONE, answer
        end = EndTxnRequest(TRANSACTIONAL_ID, self.producer_id, self.epoch, is_commit)
        ended = self.ask(apis.END_TXN, 5, end, now)
        assert ended.error_code == NONE, ended
        self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch
        self.offset += is_commit
        fetch = OffsetFetchRequest("honest-group", [OffsetFetchRequestTopic(TOPIC, [0])], require_stable=True)
        found = self.ask(apis.OFFSET_FETCH, 7, fetch, now)
        assert found.topics[0].partitions[0].committed_offset == self.offset, found


def _metadata_request() -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=TOPIC)], True)


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = Generator(self.rng)
        self.mono_ms = 1_000
        self.fresh()
        self.closed = 0
        self.answered = 0
        self.parked = 0

    def now(self) -> Now:
        return Now(self.mono_ms, 1_700_000_000_000 + self.mono_ms)

    def fresh(self) -> None:
        self.engine = open_memory_engine(self.now(), self.rng)
        self.honest = Honest(self.engine, self.now())
        self.session = self.open()

    def open(self) -> Session:
        return self.engine.open_session("127.0.0.2", "127.0.0.1", 9092)

    def step(self) -> None:
        """One execution."""
        rng = self.rng
        api_key, version, body = self.generator.request()
        data = damage(rng, frame_of(api_key, version, rng.getrandbits(31), body))
        self.mono_ms += rng.choice((0, 0, 1, 50))
        now = self.now()
        session = self.session
        if rng.random() < 0.1:
            cut = rng.randrange(len(data) + 1)
            self.engine.receive(session, data[:cut], now)
            self.engine.receive(session, data[cut:], now)
        else:
            self.engine.receive(session, data, now)
        self.engine.fire_timers(now)
        self.engine.end_turn(now)
        self.engine.take_ready()
        self.engine.take_facts()
        output = take_output(session)
        if output:
            self.answered += 1
        if session.close_reason:
            self.closed += 1
        elif session.parked_request_id:
            self.parked += 1
        if session.close_reason or session.parked_request_id or rng.random() < 0.02:
            self.engine.close_session(session, now)
            self.session = self.open()


def run(executions: int, seconds: float, seed: int, progress: bool = True) -> int:
    """Fuzz until either bound is reached; the number of executions. Raises on the first failure."""
    fuzzer = Fuzzer(seed)
    start = time.monotonic()
    done = 0
    try:
        while done < executions:
            fuzzer.step()
            done += 1
            if done % HONEST_EVERY == 0:
                fuzzer.honest.check(fuzzer.now())
                if time.monotonic() - start > seconds:
                    break
                if progress and done % 50_000 == 0:
                    print(f"{done:,} executions, {done / (time.monotonic() - start):,.0f}/s", flush=True)
            if done % FRESH_ENGINE_EVERY == 0:
                fuzzer.fresh()
    except BaseException:
        print(
            f"failed at execution {done} of seed {seed}; again with: "
            f"python -m tests.fuzz.engine_fuzz --seed {seed} --executions {done + 1}",
            file=sys.stderr,
        )
        raise
    took = time.monotonic() - start
    print(
        f"{done:,} executions in {took:.0f} s with seed {seed}: {fuzzer.answered:,} answered, "
        f"{fuzzer.parked:,} left waiting, "
        f"{fuzzer.closed:,} connections closed, the honest client unharmed"
    )
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Throw damaged requests at an engine.")
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    run(arguments.executions, arguments.seconds, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
