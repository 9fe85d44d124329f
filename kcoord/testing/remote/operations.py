"""The operations of the HTTP interface, made from the methods of the fixture.

A method's name, parameters, types and docstring are the operation's, so there is one definition of each. Three kinds of
results are more than data: a rule, whose id the caller uses later; a state that lasts until it is ended, which gets an
id as well; and requests of clients, which become JSON.
"""

from __future__ import annotations

import inspect
import threading
import types
import typing
from contextlib import AbstractContextManager
from typing import Any, Final, final

from kcoord.server.exchange import plain
from kcoord.testing.double.controls import Fault
from kcoord.testing.double.exchanges import Exchange
from kcoord.testing.double.selector import NAMES, Conditions
from kcoord.testing.fixture import KcoordServer
from kcoord.testing.phantoms import Phantom
from kcoord.testing.state.life import Snapshot
from kcoord.testing.state.records import Position, Record
from kcoord.testing.state.seed import parse_records

# Methods of KcoordServer that are operations.
METHODS: Final = (
    "fail", "delay", "hold", "drop", "drop_answer", "cut", "throttle", "answer",
    "cut_connections", "refuse_connections", "offer", "faults", "clear_faults", "requests", "wait_request", "reset",
    "coordinator_loading", "coordinator_unavailable", "coordinator_moved", "classic_only",
    "expire_member", "remove_member", "force_rebalance", "fence_producer", "phantom",
    "bump_group_epoch", "bump_leader_epoch", "fence_instance", "abort_transaction",
    "wait_stable", "wait_members", "wait_empty", "wait_committed", "wait_lag", "state", "committed", "lag",
    "advance", "now_ms",
    "create_topic", "delete_topic", "topics", "produce", "records", "commit", "seed", "full_disk",
    "apply_retention", "compact",
    "snapshot", "start", "stop", "restart", "kill",
    "brokers", "leader", "coordinator", "stop_broker", "start_broker", "move_leader", "move_coordinator",
    "add_broker", "set_rack",
)  # fmt: skip
# Methods of a phantom member, which the parameter `id` names.
PHANTOM_METHODS: Final = {
    "phantom_state": "assignment",
    "phantom_wait_assigned": "wait_assigned",
    "phantom_wait_over": "wait_over",
    "phantom_go_silent": "go_silent",
    "phantom_stop_polling": "stop_polling",
    "phantom_resume": "resume",
    "phantom_leave": "leave",
    "phantom_kill": "kill",
}
TIMEOUT_S_MAX: Final = 600.0
RECORD_FIELDS: Final = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
JSON_TYPES: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
}
# Parameters whose types in Python are wider than JSON: a seed is a document here, and not the name of a file.
HINTS: Final[dict[tuple[str, str], Any]] = {
    ("seed", "source"): dict,
    ("create_topic", "configs"): dict | None,
    ("phantom", "topics"): list,
    ("answer", "change"): dict,
    ("produce", "value"): str | dict | list | None,
    ("produce", "key"): str | dict | None,
    ("produce", "headers"): dict | list | None,
    ("commit", "offsets"): list,
}


class BadRequest(Exception):
    """The request is wrong; the text says why."""


@final
class Parameter:
    """One parameter of an operation, with its JSON schema."""

    def __init__(self, name: str, hint: Any, default: object) -> None:
        self.name = name
        self.is_required = default is inspect.Parameter.empty
        self.schema = schema_of(hint)
        if not self.is_required and default is not None:
            self.schema = {**self.schema, "default": default}
        self._hint = hint

    def read(self, value: Any) -> Any:
        """The value for Python. Raises BadRequest."""
        allowed = typing.get_args(self._hint) or (self._hint,)
        if isinstance(value, bool) and bool not in allowed:
            raise BadRequest(f"{self.name} is no boolean")
        if isinstance(value, int) and int not in allowed and float in allowed:
            value = float(value)
        if not isinstance(value, tuple(allowed)):
            names = " or ".join(str(schema_of(one)["type"]) for one in allowed)
            raise BadRequest(f"{self.name} is of type {names}, not {value!r}")
        if self.name == "timeout" and not (isinstance(value, int | float) and 0 <= value <= TIMEOUT_S_MAX):
            raise BadRequest(f"timeout is between 0 and {TIMEOUT_S_MAX:g} seconds")
        return value


def schema_of(hint: Any) -> dict[str, Any]:
    if hint in JSON_TYPES:
        return dict(JSON_TYPES[hint])
    parts = [JSON_TYPES[one]["type"] for one in typing.get_args(hint)]
    return {"type": parts}


@final
class Operation:
    """One method as an operation: of the server, or of a phantom."""

    def __init__(self, name: str, owner: type = KcoordServer, method_name: str = "") -> None:
        self.name = name
        self.method_name = method_name or name
        method = getattr(owner, self.method_name)
        self.is_property = isinstance(method, property)
        function: Any = method.fget if isinstance(method, property) else method
        self.doc = inspect.getdoc(function) or ""
        hints = typing.get_type_hints(inspect.unwrap(function))
        self.parameters: dict[str, Parameter] = {}
        if owner is Phantom:
            self.parameters["id"] = Parameter("id", int, inspect.Parameter.empty)
        for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                # The versions of APIs in `offer`, or the conditions of a rule.
                more = dict.fromkeys(NAMES, int) if name == "offer" else typing.get_type_hints(Conditions)
                for each, hint in more.items():
                    self.parameters[each] = Parameter(each, hint, None)
            elif parameter.name != "self":
                hint = HINTS.get((name, parameter.name), hints[parameter.name])
                self.parameters[parameter.name] = Parameter(parameter.name, hint, parameter.default)

    def arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """The arguments for the method. Raises BadRequest."""
        unknown = [name for name in body if name not in self.parameters]
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise BadRequest(f"{self.name} has no parameter {unknown[0]!r}; it has {known}")
        missing = [one.name for one in self.parameters.values() if one.is_required and one.name not in body]
        if missing:
            raise BadRequest(f"{self.name} needs {', '.join(missing)}")
        return {name: self.parameters[name].read(value) for name, value in body.items()}


OPERATIONS: Final = {name: Operation(name) for name in METHODS} | {
    name: Operation(name, Phantom, method) for name, method in PHANTOM_METHODS.items()
}
# Operations on what another one has made.
RULE_OPERATIONS: Final = {
    "rule": "On how many requests the rule has acted.",
    "wait_rule": "Wait until the rule has acted on `hits` requests.",
    "remove_rule": "End the rule; requests that it delays or holds go on.",
    "end": "End a state that lasts, such as `coordinator_loading` or `refuse_connections`.",
    "restore": "Continue with the state of a snapshot, by its id.",
}


@final
class Executor:
    """Runs operations. Any thread may call it."""

    def __init__(self, server: KcoordServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._faults: dict[int, Fault] = {}
        self._states: dict[int, AbstractContextManager[object]] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._phantoms: dict[int, Phantom] = {}
        self._last_id = 0

    def run(self, name: str, body: dict[str, Any]) -> Any:
        """The result as JSON data. Raises BadRequest, and what the method raises."""
        if name in RULE_OPERATIONS:
            return self._run_on_rule(name, body)
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadRequest(f"there is no operation {name!r}; there are {', '.join([*OPERATIONS, *RULE_OPERATIONS])}")
        arguments = operation.arguments(body)
        if operation.is_property:
            return getattr(self._server, name)
        if name in PHANTOM_METHODS:
            return self._run_on_phantom(operation.method_name, arguments)
        if name == "reset":
            self._forget()
        if name == "produce":
            arguments = produce_arguments(**arguments)
        if name == "commit":
            arguments["offsets"] = given_offsets(arguments["offsets"])
        return self._result(getattr(self._server, name)(**arguments))

    def _result(self, value: Any) -> Any:
        if isinstance(value, Fault):
            return {"id": self._keep(self._faults, value), "rule": str(value)}
        if isinstance(value, AbstractContextManager) and not isinstance(value, Phantom):
            value.__enter__()
            return {"id": self._keep(self._states, value)}
        if isinstance(value, Snapshot):
            return {"id": self._keep(self._snapshots, value)}
        if isinstance(value, Phantom):
            return phantom_json(self._keep(self._phantoms, value), value)
        if isinstance(value, Exchange):
            return exchange_json(value)
        if isinstance(value, list):
            return [self._result(one) for one in value]
        if isinstance(value, Position):
            return value._asdict()
        if isinstance(value, Record):
            return {name: plain(getattr(value, name)) for name in RECORD_FIELDS}
        if isinstance(value, dict) and all(isinstance(key, tuple) for key in value):
            # Committed offsets.
            return [
                {"topic": topic, "partition": partition, "offset": offset}
                for (topic, partition), offset in sorted(value.items())
            ]
        return value

    def _keep(self, kept: dict[int, Any], value: object) -> int:
        with self._lock:
            self._last_id += 1
            kept[self._last_id] = value
            return self._last_id

    def _forget(self) -> None:
        with self._lock:
            states = list(self._states.values())
            self._states.clear()
            self._faults.clear()
            self._phantoms.clear()
        for state in states:
            state.__exit__(None, None, None)

    def _run_on_phantom(self, method: str, arguments: dict[str, Any]) -> Any:
        number = arguments.pop("id")
        phantom = self._phantoms.get(number)
        if phantom is None:
            raise BadRequest(f"there is no phantom {number}")
        getattr(phantom, method)(**arguments)
        return phantom_json(number, phantom)

    def _run_on_rule(self, name: str, body: dict[str, Any]) -> Any:
        unknown = [each for each in body if each not in ("id", "hits", "timeout")]
        number = body.get("id")
        if unknown or not isinstance(number, int):
            raise BadRequest(f"{name} needs the id that it is about")
        if name == "end":
            with self._lock:
                state = self._states.pop(number, None)
            if state is None:
                raise BadRequest(f"there is no state {number}")
            state.__exit__(None, None, None)
            return None
        if name == "restore":
            if number not in self._snapshots:
                raise BadRequest(f"there is no snapshot {number}")
            self._forget()
            self._server.restore(self._snapshots[number])
            return None
        fault = self._faults.get(number)
        if fault is None:
            raise BadRequest(f"there is no rule {number}")
        if name == "wait_rule":
            timeout = Parameter("timeout", float, None).read(body.get("timeout", 10.0))
            fault.wait(Parameter("hits", int, None).read(body.get("hits", 1)), timeout)
        elif name == "remove_rule":
            fault.remove()
        return {"id": number, "rule": str(fault), "hits": fault.hits}


def produce_arguments(topic: str, value: Any, **common: Any) -> dict[str, Any]:
    """Records as in a seed: text, or an object with their fields. Those apply that a record does not have itself."""
    given = value if isinstance(value, list) else [value]
    fields = [{**common, **(one if isinstance(one, dict) else {"value": one})} for one in given]
    return {"topic": topic, "value": parse_records(fields, topic)}


def given_offsets(given: list[Any]) -> dict[tuple[str, int], int]:
    """Offsets in the form in which `committed` returns them. Raises BadRequest."""
    try:
        return {(str(one["topic"]), int(one["partition"])): int(one["offset"]) for one in given}
    except (KeyError, TypeError, ValueError):
        raise BadRequest("offsets is a list of objects with topic, partition and offset") from None


def phantom_json(number: int, one: Phantom) -> dict[str, Any]:
    return {
        "id": number,
        "client_id": one.client_id,
        "member_id": one.member_id,
        "epoch": one.epoch,
        "assignment": [{"topic": topic, "partition": partition} for topic, partition in one.assignment()],
        "is_silent": one.is_silent,
        "is_over": one.is_over,
        "failure": None if one.failure is None else str(one.failure),
    }


def exchange_json(one: Exchange) -> dict[str, Any]:
    return {
        "api": one.api,
        "version": one.version,
        "connection": one.connection,
        "client_id": one.client_id,
        "time_ms": one.time_ms,
        "latency_ms": one.latency_ms,
        "errors": one.errors,
        "is_handled": one.is_handled,
        "is_sent": one.is_sent,
        "rule": None if one.rule is None else str(one.rule.action),
        "request": None if one.body is None else plain(one.body),
        "answer": None if one.answer is None else plain(one.answer),
    }
