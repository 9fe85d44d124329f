"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources.

Configurations are set on topics, on groups (KIP-848's `consumer.` keys) and on the running broker: for this node or,
with an empty name, for every node. They are records of the metadata log. The result of an alteration is checked as a
whole before anything is written. If the check fails, nothing of that resource changes, and other resources are
unaffected.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.admin.broker_configs import BrokerConfigs, BrokerDef
from kcoord.core.config import CoreConfig
from kcoord.core.outcome import MESSAGE_CHARS_MAX, Outcome, Reply, Request
from kcoord.core.topics.config_defs import (
    BROKER_ASSIGNMENT_INTERVAL,
    BROKER_RETENTION,
    GROUP_CONFIGS,
    LIST,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT,
    SOURCE_GROUP,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    TOPIC_CONFIGS,
    ConfigDef,
    check_topic_configs,
    dynamic_definition,
    parse_integer,
    split_list,
)
from kcoord.core.topics.registry import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    TOO_MANY_RECORDS,
    TopicRegistry,
    check_topic_name,
)
from kcoord.protocol.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kcoord.protocol.alter_configs import AlterConfigsResourceResponse as ReplacedResourceResponse
from kcoord.protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kcoord.protocol.errors import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    POLICY_VIOLATION,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcoord.protocol.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.wire.message import Message

OP_SET: Final = 0
OP_DELETE: Final = 1
OP_APPEND: Final = 2
OP_SUBTRACT: Final = 3

DESCRIBABLE: Final = (
    RESOURCE_TOPIC,
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
)
# Resources and configurations in one answer, at some 2 µs each: about 440 topics with all configurations, or 7,500 with
# one. Kafka has no limit.
DESCRIBED_ENTRIES_MAX: Final = 15000
TOO_MANY_DESCRIBED: Final = "Too many configurations at once."
# Configurations that one request may alter, as in Kafka's controller, and resources that it may name.
ALTERED_MAX: Final = 10000
# From this many keys on they are looked up by hash.
FEW_KEYS: Final = 8
NO_CLIENT_METRICS: Final = "Client metrics subscriptions are not supported by this server."
NO_LOGGERS: Final = "Loggers cannot be set over the protocol on this server."


def _config_result(
    body: DescribeConfigsRequest,
    definition: ConfigDef | BrokerDef,
    is_read_only: bool,
    value: str | None,
    source: int,
    synonyms: list[DescribeConfigsSynonym],
) -> DescribeConfigsResourceResult:
    """One configuration, with what the request asks for."""
    return DescribeConfigsResourceResult(
        definition.name,
        value,
        is_read_only,
        source,
        False,
        synonyms if body.include_synonyms else [],
        definition.kind,
        definition.doc if body.include_documentation else None,
    )


@final
class Problem:
    """The reason why a resource cannot be described or altered."""

    def __init__(self, error_code: int, message: str | None) -> None:
        self.error_code = error_code
        self.message = None if message is None else message[:MESSAGE_CHARS_MAX]


NO_PROBLEM: Final = Problem(NONE, None)


@final
class ConfigHandlers:
    def __init__(self, config: CoreConfig, topics: TopicRegistry) -> None:
        self.config = config
        self.topics = topics
        self.broker = BrokerConfigs(config)
        self.altered_max = ALTERED_MAX
        self.topic_names = list(TOPIC_CONFIGS)
        self.group_names = list(GROUP_CONFIGS)
        self.broker_names = sorted(self.broker.by_name)
        # During one request: descriptions of resources that are requested in full. Topics and groups that set nothing
        # share an entry without a name, and so do repetitions of the same resource.
        self._shown: dict[tuple[int, str], list[DescribeConfigsResourceResult]] = {}

    # --- DescribeConfigs -------------------------------------------------------------------------------------

    def handle_describe_configs(self, request: Request, body: DescribeConfigsRequest) -> Outcome:
        """Values in use with their sources. No keys, or an empty list of keys, means all."""
        out = Outcome()
        response = DescribeConfigsResponse()
        # One resource of an unknown type fails the whole request.
        for resource in body.resources:
            if resource.resource_type not in DESCRIBABLE:
                for each in body.resources:
                    message = f"Unexpected resource type {resource.resource_type}."
                    response.results.append(self._described(each, INVALID_REQUEST, message))
                out.reply(request.request_id, response)
                return out
        left = DESCRIBED_ENTRIES_MAX
        self._shown = {}
        for resource in body.resources:
            if left <= 0:
                response.results.append(self._described(resource, POLICY_VIOLATION, TOO_MANY_DESCRIBED))
                continue
            result = self._describe(request, resource, body)
            left -= 1 + len(result.configs)
            response.results.append(result)
        self._shown = {}
        out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))
        return out

    def _described(self, resource: DescribeConfigsResource, error_code: int, message: str) -> DescribeConfigsResult:
        message = message[:MESSAGE_CHARS_MAX]
        return DescribeConfigsResult(error_code, message, resource.resource_type, resource.resource_name)

    def _describe(
        self, request: Request, resource: DescribeConfigsResource, body: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        name = resource.resource_name
        kind = resource.resource_type
        result = self._described(resource, NONE, "")
        if kind == RESOURCE_TOPIC:
            problem = check_topic_name(name)
            if problem:
                return self._described(resource, INVALID_TOPIC_EXCEPTION, problem)
            if self.topics.get(name) is None:
                return self._described(resource, UNKNOWN_TOPIC_OR_PARTITION, "")
            self._describe_in_full(request, resource, body, result)
        elif kind == RESOURCE_BROKER:
            problem = "" if not name else self._broker_problem(name, " or empty string,", "Broker id")
            if problem:
                return self._described(resource, INVALID_REQUEST, problem)
            self._describe_in_full(request, resource, body, result)
        elif kind == RESOURCE_GROUP:
            if not name:
                return self._described(resource, INVALID_REQUEST, "Group name must not be empty")
            self._describe_in_full(request, resource, body, result)
        elif kind == RESOURCE_BROKER_LOGGER:
            problem = self._broker_problem(name, "", "Broker id") if name else "Broker id must not be empty"
            if problem:
                return self._described(resource, INVALID_REQUEST, problem)
        elif not name:
            message = "Client metrics subscription name must not be empty"
            return self._described(resource, INVALID_REQUEST, message)
        return result

    def _describe_in_full(
        self,
        request: Request,
        resource: DescribeConfigsResource,
        body: DescribeConfigsRequest,
        result: DescribeConfigsResult,
    ) -> None:
        """Add those configurations of an existing resource that the request asks for."""
        kind = resource.resource_type
        name = resource.resource_name
        is_plain = kind != RESOURCE_BROKER and not self.topics.configs_of(kind, name)
        key = (kind, "" if is_plain else name)
        is_whole = not resource.configuration_keys
        if is_whole:
            shown = self._shown.get(key)
            if shown is not None:
                result.configs = shown
                return
        if kind == RESOURCE_TOPIC:
            self._describe_topic(resource, body, result)
        elif kind == RESOURCE_GROUP:
            self._describe_group(resource, body, result)
        else:
            self._describe_broker(request, resource, body, result)
        if is_whole:
            self._shown[key] = result.configs

    def _broker_problem(self, name: str, alternative: str, label: str) -> str:
        """Check the name of a broker: an error message, or "" if it is this node's id."""
        node_id = self.config.node_id
        digits = name[1:] if name[:1] in ("-", "+") else name
        if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
            return f"{label} must be an integer, but it is: {name}"
        if int(name) != node_id:
            return f"Unexpected broker id, expected {node_id}{alternative} but received {name}"
        return ""

    def _asked_names(self, resource: DescribeConfigsResource, known: list[str]) -> list[str]:
        """The known names that the request asks for."""
        keys = resource.configuration_keys
        if not keys:
            return known
        if len(keys) <= FEW_KEYS:
            return [name for name in known if name in keys]
        asked = dict.fromkeys(keys)
        return [name for name in known if name in asked]

    def _describe_topic(
        self, resource: DescribeConfigsResource, body: DescribeConfigsRequest, result: DescribeConfigsResult
    ) -> None:
        own = self.topics.configs_of(RESOURCE_TOPIC, resource.resource_name)
        for name in self._asked_names(resource, self.topic_names):
            definition = TOPIC_CONFIGS[name]
            value = own.get(name)
            synonyms: list[DescribeConfigsSynonym] = []
            source = self.topics.default_source(name)
            if value is not None:
                value = definition.shown(value)
                source = SOURCE_TOPIC
                synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_TOPIC))
            else:
                value = definition.shown(self.topics.default_value(name))
            if body.include_synonyms:
                synonyms.extend(self._broker_synonyms_of(definition))
            result.configs.append(_config_result(body, definition, False, value, source, synonyms))

    def _broker_synonyms_of(self, definition: ConfigDef) -> list[DescribeConfigsSynonym]:
        """The broker's values for a topic's configuration, in order of precedence."""
        synonyms: list[DescribeConfigsSynonym] = []
        if not definition.broker_names:
            return synonyms
        name = definition.broker_names[0]
        value = self.topics.configs_of(RESOURCE_BROKER, str(self.config.node_id)).get(name)
        if value is not None:
            synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_DYNAMIC_BROKER))
        value = self.topics.configs_of(RESOURCE_BROKER, "").get(name)
        if value is not None:
            synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_DYNAMIC_DEFAULT))
        for each in definition.broker_names:
            value = self.config.static_values.get(each)
            if value is not None:
                synonyms.append(DescribeConfigsSynonym(each, value, SOURCE_STATIC_BROKER))
        # As on a broker: a setting with several names has no default under the first of them.
        if len(definition.broker_names) == 1:
            synonyms.append(DescribeConfigsSynonym(name, definition.default, SOURCE_DEFAULT))
        return synonyms

    def _describe_group(
        self, resource: DescribeConfigsResource, body: DescribeConfigsRequest, result: DescribeConfigsResult
    ) -> None:
        own = self.topics.configs_of(RESOURCE_GROUP, resource.resource_name)
        for name in self._asked_names(resource, self.group_names):
            definition = GROUP_CONFIGS[name]
            value = own.get(name)
            synonyms: list[DescribeConfigsSynonym] = []
            if value is not None:
                value = definition.shown(value)
                synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_GROUP))
            else:
                value = str(self.topics.groups.broker_value(name))
            synonyms.extend(self._broker_synonyms_of(definition))
            source = synonyms[0].source
            result.configs.append(_config_result(body, definition, False, value, source, synonyms))

    def _describe_broker(
        self,
        request: Request,
        resource: DescribeConfigsResource,
        body: DescribeConfigsRequest,
        result: DescribeConfigsResult,
    ) -> None:
        """This node with all configurations, or, without a name, those that were set for every node."""
        for_all = self.topics.configs_of(RESOURCE_BROKER, "")
        by_name = self.broker.by_name
        for name in self._asked_names(resource, self.broker_names):
            if not resource.resource_name and name not in for_all:
                continue
            definition = by_name[name]
            synonyms = self._broker_synonyms(definition, bool(resource.resource_name))
            value = definition.value
            source = SOURCE_DEFAULT
            if name == "advertised.listeners" and not value:
                # Clients see the address that they connected to.
                host = f"[{request.host}]" if ":" in request.host else request.host
                value = f"PLAINTEXT://{host}:{request.port}"
                synonyms = [DescribeConfigsSynonym(name, value, SOURCE_DEFAULT)]
            if synonyms:
                value = synonyms[0].value
                source = synonyms[0].source
            is_read_only = not definition.is_dynamic
            result.configs.append(_config_result(body, definition, is_read_only, value, source, synonyms))

    def _broker_synonyms(self, definition: BrokerDef, of_node: bool) -> list[DescribeConfigsSynonym]:
        name = definition.name
        synonyms: list[DescribeConfigsSynonym] = []
        if of_node:
            value = self.topics.configs_of(RESOURCE_BROKER, str(self.config.node_id)).get(name)
            if value is not None:
                synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_DYNAMIC_BROKER))
        value = self.topics.configs_of(RESOURCE_BROKER, "").get(name)
        if value is not None:
            synonyms.append(DescribeConfigsSynonym(name, value, SOURCE_DYNAMIC_DEFAULT))
        if of_node and definition.value is not None:
            source = SOURCE_STATIC_BROKER if name in self.config.static_values else SOURCE_DEFAULT
            synonyms.append(DescribeConfigsSynonym(name, definition.value, source))
        return synonyms

    # --- IncrementalAlterConfigs and AlterConfigs ------------------------------------------------------------

    def handle_incremental_alter_configs(self, request: Request, body: IncrementalAlterConfigsRequest) -> Outcome:
        """Set, delete and edit single values (KIP-339), or only validate the request."""
        out = Outcome()
        response = IncrementalAlterConfigsResponse()
        problems = self._alter_all(body.resources, False, body.validate_only, out)
        for resource, problem in zip(body.resources, problems, strict=True):
            response.responses.append(
                AlterConfigsResourceResponse(
                    problem.error_code, problem.message, resource.resource_type, resource.resource_name
                )
            )
        self._reply(request, response, out)
        return out

    def handle_alter_configs(self, request: Request, body: AlterConfigsRequest) -> Outcome:
        """Replace all configurations of each resource: those that the request does not name are deleted."""
        out = Outcome()
        response = AlterConfigsResponse()
        resources: list[AlterConfigsResource] = []
        for asked in body.resources:
            changes = [AlterableConfig(each.name, OP_SET, each.value) for each in asked.configs]
            resources.append(AlterConfigsResource(asked.resource_type, asked.resource_name, changes))
        problems = self._alter_all(resources, True, body.validate_only, out)
        for resource, problem in zip(resources, problems, strict=True):
            response.responses.append(
                ReplacedResourceResponse(
                    problem.error_code, problem.message, resource.resource_type, resource.resource_name
                )
            )
        self._reply(request, response, out)
        return out

    def _reply(self, request: Request, response: Message, out: Outcome) -> None:
        if out.records:
            out.reply(request.request_id, response)
        else:
            out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))

    def _alter_all(
        self, resources: list[AlterConfigsResource], replaces: bool, validate_only: bool, out: Outcome
    ) -> list[Problem]:
        """Add the records that alter these resources. Returns the result of each; NO_PROBLEM if it is altered.

        `replaces`: configurations that a resource has and that are not named are deleted.
        """
        counts: dict[tuple[int, str], int] = {}
        changes = 0
        for resource in resources:
            key = (resource.resource_type, resource.resource_name)
            counts[key] = counts.get(key, 0) + 1
            changes += len(resource.configs)
            if replaces:
                changes += len(self.topics.configs_of(resource.resource_type, resource.resource_name))
        problems: list[Problem] = []
        for resource in resources:
            records: list[ConfigRecord] = []
            if counts[(resource.resource_type, resource.resource_name)] > 1:
                problem: Problem | None = Problem(INVALID_REQUEST, "Each resource must appear at most once.")
            elif changes > self.altered_max or len(resources) > self.altered_max:
                problem = Problem(POLICY_VIOLATION, TOO_MANY_RECORDS)
            else:
                problem = self._alter(resource, replaces, records)
            if problem is None:
                problem = NO_PROBLEM
                if not validate_only:
                    for record in records:
                        out.add(self.topics.log, None, record)
            problems.append(problem)
        return problems

    def _alter(self, resource: AlterConfigsResource, replaces: bool, records: list[ConfigRecord]) -> Problem | None:
        """Add the records that alter a resource. Returns the problem if it cannot be altered."""
        problem = self._check_alteration(resource)
        if problem is not None:
            return problem
        kind = resource.resource_type
        name = resource.resource_name
        before = self.topics.configs_of(kind, name)
        after: dict[str, str] = {} if replaces else dict(before)
        if replaces:
            named = dict.fromkeys([change.name for change in resource.configs])
            for key in before:
                if key not in named:
                    records.append(ConfigRecord(kind, name, key, None))
        for change in resource.configs:
            current = before.get(change.name)
            operation = change.config_operation
            value: str | None = change.value
            if operation == OP_DELETE:
                value = None
            elif operation == OP_APPEND or operation == OP_SUBTRACT:
                if not self._is_list(kind, change.name):
                    return self._not_a_list(kind, change)
                value = self._edited(kind, change, current)
            if value is None:
                after.pop(change.name, None)
            else:
                after[change.name] = value
            if value != current:
                records.append(ConfigRecord(kind, name, change.name, value))
        return self._check_result(kind, name, after)

    def _check_alteration(self, resource: AlterConfigsResource) -> Problem | None:
        """The checks of a request that do not depend on its result."""
        kind = resource.resource_type
        if kind not in DESCRIBABLE:
            return Problem(INVALID_REQUEST, f"Unknown resource type {kind}")
        seen: dict[str, None] = {}
        nulls: list[str] = []
        for change in resource.configs:
            if change.name in seen:
                return Problem(INVALID_REQUEST, "Error due to duplicate config keys")
            seen[change.name] = None
            if change.value is None and change.config_operation != OP_DELETE:
                nulls.append(change.name)
        if nulls:
            return Problem(INVALID_REQUEST, "Null value not supported for : " + ", ".join(nulls))
        if kind == RESOURCE_BROKER_LOGGER:
            return Problem(INVALID_REQUEST, NO_LOGGERS)
        if kind == RESOURCE_CLIENT_METRICS:
            return Problem(INVALID_REQUEST, NO_CLIENT_METRICS)
        if kind == RESOURCE_BROKER and resource.resource_name:
            problem = self._broker_problem(resource.resource_name, ",", "Node id")
            if problem:
                return Problem(INVALID_REQUEST, problem)
        for change in resource.configs:
            if change.config_operation < OP_SET or change.config_operation > OP_SUBTRACT:
                if kind == RESOURCE_BROKER:
                    return Problem(INVALID_REQUEST, f"Unknown operations type {change.config_operation}")
                # A broker's answer too: its controller fails internally here.
                return Problem(UNKNOWN_SERVER_ERROR, None)
        return None

    def _definition(self, kind: int, name: str) -> ConfigDef | None:
        if kind == RESOURCE_TOPIC:
            return TOPIC_CONFIGS.get(name)
        if kind == RESOURCE_GROUP:
            return GROUP_CONFIGS.get(name)
        return dynamic_definition(name)

    def _is_list(self, kind: int, name: str) -> bool:
        definition = self._definition(kind, name)
        return definition is not None and definition.kind == LIST

    def _not_a_list(self, kind: int, change: AlterableConfig) -> Problem:
        appends = change.config_operation == OP_APPEND
        if kind == RESOURCE_BROKER:
            verb = "append" if appends else "subtract"
            message = f"Config value {verb} is not allowed for config key: {change.name}"
        else:
            verb = "APPEND" if appends else "SUBTRACT"
            message = f"Can't {verb} to key {change.name} because its type is not LIST."
        return Problem(INVALID_CONFIG, message)

    def _edited(self, kind: int, change: AlterableConfig, current: str | None) -> str:
        """A list after items were appended or subtracted. If nothing is set, it starts from the default."""
        if current is None:
            current = ""
            definition = self._definition(kind, change.name)
            if definition is not None and definition.broker_names:
                current = self.topics.default_value(definition.name)
        edited = (change.value or "").split(",")
        if change.config_operation == OP_APPEND:
            items = split_list(current)
            known = dict.fromkeys(items)
            for item in edited:
                if item not in known:
                    known[item] = None
                    items.append(item)
            return ",".join(items)
        # Each mention removes one occurrence.
        gone: dict[str, int] = {}
        for item in edited:
            gone[item] = gone.get(item, 0) + 1
        left: list[str] = []
        for item in split_list(current):
            if gone.get(item, 0) > 0:
                gone[item] -= 1
            else:
                left.append(item)
        return ",".join(left)

    def _check_result(self, kind: int, name: str, after: dict[str, str]) -> Problem | None:
        """Check the values that a resource would have after the alteration."""
        if kind == RESOURCE_TOPIC:
            if not name:
                return Problem(INVALID_REQUEST, "Default topic resources are not allowed.")
            problem = check_topic_name(name)
            if problem:
                return Problem(INVALID_TOPIC_EXCEPTION, problem)
            problem = check_topic_configs(after)
            if problem:
                return Problem(INVALID_CONFIG, problem)
            if self.topics.get(name) is None:
                return Problem(UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            return None
        if kind == RESOURCE_GROUP:
            if not name:
                return Problem(INVALID_REQUEST, "Default group resources are not allowed.")
            problem = self.topics.groups.check(after)
            return Problem(INVALID_CONFIG, problem) if problem else None
        return self._check_broker(name, after)

    def _check_broker(self, resource_name: str, after: dict[str, str]) -> Problem | None:
        fixed = [name for name in after if dynamic_definition(name) is None]
        if fixed:
            message = "Cannot update these configs dynamically: [" + ", ".join(sorted(fixed)) + "]"
            return Problem(INVALID_REQUEST, message)
        for name in sorted(after):
            definition = dynamic_definition(name)
            problem = "" if definition is None else definition.check(after[name])
            if definition is not None and problem:
                message = problem.replace(f"configuration {definition.name}:", f"configuration {name}:")
                return Problem(INVALID_REQUEST, message)
        # Valid for a topic, and not as the default for all topics.
        if parse_integer(after.get(BROKER_RETENTION, "").strip()) == 0:
            return Problem(INVALID_REQUEST, f"{BROKER_RETENTION} must be -1 (unlimited), or 1 or more")
        interval_ms = parse_integer(after.get(BROKER_ASSIGNMENT_INTERVAL, "").strip())
        node = self.topics.configs_of(RESOURCE_BROKER, str(self.config.node_id))
        # As on a broker: values for every node are not checked further while this node has its own value.
        if interval_ms is not None and (resource_name or BROKER_ASSIGNMENT_INTERVAL not in node):
            problem = self.topics.groups.interval_problem(BROKER_ASSIGNMENT_INTERVAL, interval_ms)
            if problem:
                return Problem(INVALID_REQUEST, problem)
        return None

    # --- ListConfigResources ---------------------------------------------------------------------------------

    def handle_list_config_resources(self, request: Request, body: ListConfigResourcesRequest) -> Outcome:
        """The resources that can be described or have configurations (KIP-1142). Version 0 is for
        client metrics only.
        """
        out = Outcome()
        response = ListConfigResourcesResponse()
        kinds = body.resource_types
        if request.version == 0:
            kinds = [RESOURCE_CLIENT_METRICS]
        elif not kinds:
            kinds = list(DESCRIBABLE)
        for kind in kinds:
            if kind not in DESCRIBABLE:
                response.error_code = UNSUPPORTED_VERSION
        if response.error_code == NONE:
            resources = response.config_resources
            if RESOURCE_GROUP in kinds:
                for name in sorted(self.topics.configs.get(RESOURCE_GROUP, {})):
                    resources.append(ConfigResource(name, RESOURCE_GROUP))
            if RESOURCE_BROKER_LOGGER in kinds:
                resources.append(ConfigResource(str(self.config.node_id), RESOURCE_BROKER_LOGGER))
            if RESOURCE_BROKER in kinds:
                resources.append(ConfigResource(str(self.config.node_id), RESOURCE_BROKER))
            if RESOURCE_TOPIC in kinds:
                for name in self.topics.sorted_names():
                    resources.append(ConfigResource(name, RESOURCE_TOPIC))
        out.replies.append(Reply(request.request_id, response, self.topics.log, self.topics.end_offset))
        return out
