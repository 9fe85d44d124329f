"""The controls of a test: rules for requests, and questions about what passed.

Any thread but the server's may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar, Unpack, final

from kcoord.server.listen.limits import plain_host
from kcoord.server.logs import ServerLog
from kcoord.server.pump import read_clocks
from kcoord.server.server import Server
from kcoord.server.settings.listeners import format_address
from kcoord.server.settings.load import Config
from kcoord.server.thread import ServerThread
from kcoord.testing.double import faults
from kcoord.testing.double.clock import VirtualClock
from kcoord.testing.double.cluster import Cluster, Node
from kcoord.testing.double.double import Double
from kcoord.testing.double.exchanges import Exchange, ExchangeLog
from kcoord.testing.double.faults import Action, Change, Rule, Rules, error_code
from kcoord.testing.double.releases import Caps
from kcoord.testing.double.selector import NAMES, Conditions, Selector, TopicNames
from kcoord.testing.waiting import TIMEOUT_S, WaitTimeout, refuse_on_event_loop

T = TypeVar("T")

# Of what passed, a failed wait shows the last ones.
SHOWN_MAX: Final = 15


@final
class Fault:
    """A rule, in force until it has acted `times` times or is removed; a with statement removes it at its end."""

    def __init__(self, controls: Controls, rule: Rule) -> None:
        self._controls = controls
        self._rule = rule

    @property
    def hits(self) -> int:
        """On how many requests it has acted."""
        return self._rule.hits

    def wait(self, hits: int = 1, timeout: float = TIMEOUT_S) -> None:
        """Wait until it has acted on this number of requests. Raises WaitTimeout, or what a change raised."""
        rule = self._rule
        is_change = rule.action.kind == faults.ANSWER
        self._controls._wait_passed(
            lambda: (rule.changed if is_change else rule.hits) >= hits, f"{hits} x {self}", timeout
        )
        if self._rule.error is not None:
            raise self._rule.error

    def remove(self) -> None:
        """End the rule. Requests that it delays or holds go on."""
        self._controls._remove(self._rule)

    # For `hold`, where it reads better.
    release = remove

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __str__(self) -> str:
        return str(self._rule)


class Controls:
    """The part of the fixture that controls requests.

    Methods take the conditions of a Selector (`api`, `group`, `topic`, ...) and how often the rule acts.

    `times`: on how many requests (None: on all). `skip`: how many matching ones pass first. `probability` with `seed`:
    on a random choice that is the same in every run.
    """

    def __init__(
        self,
        config: Config,
        clock: VirtualClock | None = None,
        log: ServerLog | None = None,
        brokers: int = 1,
    ) -> None:
        if not 1 <= brokers <= len(config.listeners):
            raise ValueError(f"{brokers} brokers need as many listeners, there are {len(config.listeners)}")
        self._brokers = brokers
        # The replicas of topics that ask for no number: all brokers, or what the settings say. The log has one.
        factor = config.core.default_replication_factor
        if brokers > 1 and factor > brokers:
            raise ValueError(f"default.replication.factor is {factor}, there are {brokers} brokers")
        self._default_factor = brokers if factor == 1 else factor
        if brokers > 1:
            config.core.default_replication_factor = 1
        self._clock = clock
        self._rules = Rules()
        self._exchanges = ExchangeLog()
        self._double: Double | None = None
        clocks = read_clocks if clock is None else clock
        self._thread = ServerThread(config, interpose=self._interpose, clocks=clocks, log=log)

    def _interpose(self, server: Server) -> Double:
        """Called by a server that starts, on its thread."""
        names = _topic_names(server)
        cluster = None
        if self._brokers > 1:
            cluster = Cluster(_nodes(server, self._brokers), names, self._default_factor)
        self._double = Double(server, names, self._rules, self._exchanges, cluster)
        return self._double

    def _own_address(self) -> str:
        """Where the fixture's own requests go: to a broker that is up."""
        double = self._double
        if double is None or double.cluster is None:
            return self._thread.bootstrap
        node = next(iter(double.cluster.up()), None)
        if node is None:
            raise RuntimeError("all brokers are stopped")
        return format_address(node.host, node.port)

    def clear_faults(self) -> None:
        """Remove all rules, close the connections that they have disturbed, and forget what has passed."""
        self._call(lambda double: double.forget())

    def _call(self, function: Callable[[Double], T]) -> T:
        def work(_: Server) -> T:
            assert self._double is not None
            return function(self._double)

        return self._thread.call(work)

    # --- rules

    def fail(
        self,
        api: str | None = None,
        *,
        error: str,
        handled: bool = False,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Answer with an error, at the level that the API has.

        The request is not handled; with `handled` it is, and the client gets the error all the same. With `topic` or
        `partition` only these get the error, and the rest of the request is handled. A Produce without acks has no
        answer: its connection is closed.
        """
        action = Action(faults.FAIL_AFTER if handled else faults.FAIL, error_code=error_code(error))
        return self._add(api, action, times, skip, probability, seed, conditions)

    def delay(
        self,
        api: str | None = None,
        *,
        seconds: float,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Handle the request later, and everything that its connection sends after it."""
        action = Action(faults.DELAY, ms=round(seconds * 1000))
        return self._add(api, action, times, skip, probability, seed, conditions)

    def hold(
        self,
        api: str | None = None,
        *,
        times: int | None = None,
        skip: int = 0,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Hold the request, and everything that its connection sends after it, until `release()`."""
        return self._add(api, Action(faults.HOLD), times, skip, 1.0, faults.DEFAULT_SEED, conditions)

    def drop(
        self,
        api: str | None = None,
        *,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Lose the request: it is not handled, and its connection stays open without any further answer."""
        return self._add(api, Action(faults.DROP), times, skip, probability, seed, conditions)

    def drop_answer(
        self,
        api: str | None = None,
        *,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Handle the request and lose its answer: the client does not know whether it was handled."""
        return self._add(api, Action(faults.DROP_ANSWER), times, skip, probability, seed, conditions)

    def cut(
        self,
        api: str | None = None,
        *,
        at: str = "after",
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Close the connection: `before` the request is handled, `after` that, or in the `middle` of the answer."""
        if at not in faults.CUTS:
            raise ValueError(f"at is one of {', '.join(faults.CUTS)}")
        return self._add(api, Action(faults.CUTS[at]), times, skip, probability, seed, conditions)

    def throttle(
        self,
        api: str | None = None,
        *,
        ms: int,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Answer with this throttle time, as a broker whose quota is used up."""
        action = Action(faults.THROTTLE, ms=ms)
        return self._add(api, action, times, skip, probability, seed, conditions)

    def answer(
        self,
        api: str,
        change: Mapping[str, object] | Change,
        *,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = faults.DEFAULT_SEED,
        **conditions: Unpack[Conditions],
    ) -> Fault:
        """Handle the request, and change the answer.

        `change` has values by field, with names as in `requests()`: `{"topics.partitions.error_code": 6}` sets it in
        all partitions. Or it is a function of the request and the answer, both decoded. The server calls it on its own
        thread, so it must not use the fixture. What it raises comes out of `wait`, and the answer stays as it was.
        """
        made = change if callable(change) else None
        if not callable(change):
            Selector(api=api)
            made = faults.field_change(api, change)
        return self._add(api, Action(faults.ANSWER, change=made), times, skip, probability, seed, conditions)

    @contextmanager
    def refuse_connections(self, *, cut: bool = True) -> Iterator[None]:
        """In this block new connections are closed at once; with `cut` the present ones too, at its beginning."""

        def refuse(double: Double) -> None:
            double.is_refusing = True
            if cut:
                double.cut_all()

        def accept(double: Double) -> None:
            double.is_refusing = False

        self._call(refuse)
        try:
            yield
        finally:
            self._call(accept)

    def cut_connections(self) -> int:
        """Close all connections now. Returns how many there were."""
        return self._call(lambda double: double.cut_all())

    def offer(self, kafka_release: str = "", **newest: int) -> None:
        """Offer new connections what brokers of a release did, such as "2.8", or APIs up to a version: `Fetch=11`.

        Present connections are closed, so that all clients ask again. `offer()` offers everything again.
        """
        unknown = [name for name in newest if name not in NAMES]
        if unknown:
            raise ValueError(f"there is no API {unknown[0]!r}")
        caps = Caps(kafka_release, {NAMES[name]: version for name, version in newest.items()})

        def work(double: Double) -> None:
            double.caps = caps if kafka_release or newest else None
            double.cut_all()

        self._call(work)

    def faults(self) -> list[str]:
        """The rules that are in force, and what they have hit."""
        return [str(rule) for rule in self._rules.rules]

    def _add(
        self,
        api: str | None,
        action: Action,
        times: int | None,
        skip: int,
        probability: float,
        seed: int,
        conditions: Conditions,
    ) -> Fault:
        selector = Selector(api=api, **conditions)
        rule = self._call(lambda double: double.rules.add(selector, action, times, skip, probability, seed))
        return Fault(self, rule)

    def _remove(self, *rules: Rule) -> None:
        def work(double: Double) -> None:
            for rule in rules:
                double.rules.remove(rule)
            double.go_on()

        self._call(work)

    # --- what passed

    def requests(self, api: str | None = None, **conditions: Unpack[Conditions]) -> list[Exchange]:
        """The requests since the last reset that meet the conditions, the oldest first, each with its answer."""
        names = _no_topic_names if self._double is None else self._double.topic_name
        selector = Selector(api=api, **conditions)
        return [one for one in self._exchanges.all() if selector.matches(one.request, one.connection, names)]

    def wait_request(
        self,
        api: str | None = None,
        *,
        count: int = 1,
        answered: bool = True,
        timeout: float = TIMEOUT_S,
        **conditions: Unpack[Conditions],
    ) -> Exchange:
        """Wait for a request (the `count`-th one since the last reset), and for its answer. Raises WaitTimeout."""

        def found() -> list[Exchange]:
            every = self.requests(api, **conditions)
            return [one for one in every if not answered or one.latency_ms is not None]

        wanted = f"request {count} of {Selector(api=api, **conditions)}"
        self._wait_passed(lambda: len(found()) >= count, wanted, timeout)
        return found()[count - 1]

    def _wait_passed(self, is_there: Callable[[], bool], wanted: str, timeout: float) -> None:
        refuse_on_event_loop()
        if not self._exchanges.wait(is_there, timeout):
            raise WaitTimeout(f"waited {timeout:g} s for {wanted}\n{self._passed()}")

    def _passed(self) -> str:
        """The rules and the last requests, for the message of a failed wait."""
        lines = ["  rules:"] if self._rules.rules else []
        lines += [f"    {rule}" for rule in self._rules.rules]
        last = self._exchanges.all()[-SHOWN_MAX:]
        lines.append(f"  last requests: {'none' if not last else ''}")
        lines += [f"    {one!r}" for one in last]
        if forgotten := self._exchanges.forgotten:
            lines.append(f"  {forgotten} older requests are not remembered and were not searched")
        return "\n".join(lines)


def _nodes(server: Server, brokers: int) -> list[Node]:
    """The brokers, as clients are to reach them."""
    nodes: list[Node] = []
    for number, listener in enumerate(server.config.listeners[:brokers], 1):
        host, port = server.addresses[number - 1]
        host = listener.advertised_host or plain_host(host)
        nodes.append(Node(number, host, listener.advertised_port or port, f"rack-{number}"))
    return nodes


def _no_topic_names(_: bytes) -> str:
    return ""


def _topic_names(server: Server) -> TopicNames:
    def name_of(topic_id: bytes) -> str:
        assembly = server.assembly
        topic = None if assembly is None else assembly.engine.core.topics.by_id(topic_id)
        return "" if topic is None else topic.name

    return name_of
