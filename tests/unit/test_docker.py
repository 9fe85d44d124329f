"""What can be checked of the container files without a container engine."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from kcoord.server.settings.load import load

DOCKER = Path(__file__).resolve().parents[2] / "docker"
ROOT = DOCKER.parent


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


def logical_lines() -> list[str]:
    """The Dockerfile without comments, and with continued lines in one."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    return re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines()


def instructions(stage: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of one stage of the Dockerfile."""
    found: list[tuple[str, str]] = []
    current = ""
    for line in logical_lines():
        match = re.match(r"([A-Z]+) (.*)", line)
        if not match:
            continue
        if match[1] == "FROM":
            current = match[2].rpartition(" AS ")[2]
        elif current == stage:
            found.append((match[1], match[2]))
    return found


def stages() -> set[str]:
    return set(re.findall(r"^FROM .* AS (\w+)$", "\n".join(logical_lines()), re.MULTILINE))


def test_compose_file_follows_the_compose_specification() -> None:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    jsonschema.validate(compose(), schema, cls=jsonschema.validators.validator_for(schema))


def test_clients_wait_for_a_healthy_server() -> None:
    services = compose()["services"]
    assert services["kcoord"]["healthcheck"]["test"] == ["CMD", "kcoord-health"]
    for name in ("producer", "consumer"):
        assert services[name]["depends_on"] == {"kcoord": {"condition": "service_healthy"}}
        script = services[name]["command"][0]
        assert (DOCKER / script.lstrip("/")).is_file(), script


def test_services_and_programs_on_the_host_use_the_same_port() -> None:
    """Each is advertised an address that it can reach: what it dialled, and the mapped port of the host."""
    service = compose()["services"]["kcoord"]
    inner, host = load(environ=service["environment"]).listeners
    assert (inner.name, inner.host, inner.port, inner.advertised_host) == ("INTERNAL", "0.0.0.0", 9092, "")
    published_ip, published, target = service["ports"][0].split(":")
    assert (host.name, host.host, str(host.port)) == ("HOST", "0.0.0.0", target)
    assert (host.advertised_host, str(host.advertised_port)) == (published_ip, published)
    assert compose()["services"]["producer"]["environment"]["BOOTSTRAP"] == f"kcoord:{inner.port}"
    # Examples of clients in the README work with it as they are.
    assert f"{published_ip}:{published}" in (ROOT / "README.md").read_text()


def test_build_targets_are_stages_of_the_dockerfile() -> None:
    for name, service in compose()["services"].items():
        assert service["build"]["target"] in stages(), name
        context = DOCKER / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).is_file()


def test_the_image_runs_as_a_numeric_user_and_has_a_health_check() -> None:
    server = dict(instructions("server"))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", server["USER"])
    assert server["VOLUME"] == "/data"
    assert server["EXPOSE"] == "9092"
    assert server["STOPSIGNAL"] == "SIGTERM"
    assert server["HEALTHCHECK"].endswith('CMD ["kcoord-health"]')
    # Flags would win over the variables that a user sets.
    assert json.loads(server["CMD"]) == ["serve"]
    variables = [arguments for name, arguments in instructions("server") if name == "ENV"]
    assert "KCOORD_LISTEN=0.0.0.0:9092 KCOORD_DATA=/data" in variables
    user, _, group = server["USER"].partition(":")
    runs = [arguments for name, arguments in instructions("server") if name == "RUN"]
    assert f"install -d -o {user} -g {group} -m 0750 /data" in runs[0]


def test_the_labels_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (labels,) = [arguments for name, arguments in instructions("server") if name == "LABEL"]
    found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', labels))
    assert found["title"] == project["name"]
    assert found["source"] == project["urls"]["Homepage"]
    # crc32c, a package of its own in the image, is the only one under a licence with conditions on copies.
    assert found["licenses"] == f"{project['license']} AND LGPL-2.1-or-later"
    assert found["version"] == "$VERSION" and set(found) >= {"description"}
    assert ("ARG", "VERSION=0.0.0") in instructions("server") and ("ARG", "VERSION=0.0.0") in instructions("package")


def copied(stage: str) -> list[str]:
    """What a stage copies from the build context."""
    lines = [arguments for name, arguments in instructions(stage) if name == "COPY" and "--from" not in arguments]
    return [word for line in lines for word in line.split()[:-1] if not word.startswith("--")]


def test_every_run_line_is_a_step_of_the_script_that_ci_runs() -> None:
    script = (DOCKER / "build-steps.sh").read_text()
    steps = set(re.findall(r"^([a-z]+)\)$", script, re.MULTILINE))
    used: set[str] = set()
    for stage in stages():
        for name, arguments in instructions(stage):
            if name == "RUN":
                match = re.search(r"sh \S*/build-steps\.sh ([a-z]+) ", arguments + " ")
                assert match, arguments
                used.add(match[1])
    assert used == steps


def test_only_what_is_compiled_repeats_the_compile_step() -> None:
    """In the order of the file: a step is repeated if something that was copied before it has changed."""
    lines = instructions("package")
    compiled = next(index for index, (_, arguments) in enumerate(lines) if "build-steps.sh compile" in arguments)
    before = {source for name, arguments in lines[:compiled] if name == "COPY" for source in arguments.split()[:-1]}
    assert before == {"docker/requirements-build.txt", "pyproject.toml", "tools", "pyspark_kcoord", "kcoord"}
    assert not [arguments for name, arguments in lines[:compiled] if name == "ARG"]
    assert copied("dependencies") == ["docker/build-steps.sh", "docker/requirements.txt"]
    # Neither is the compiler's stage what the image is made of.
    assert [arguments for name, arguments in instructions("server") if name == "COPY"] == [
        "--chmod=755 docker/health.py /usr/local/bin/kcoord-health",
        "--from=dependencies /opt/kcoord /opt/kcoord",
        "--from=package /package/opt/kcoord /opt/kcoord",
    ]


def test_the_build_context_has_what_is_copied_and_no_more() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    sources = {source for stage in stages() for source in copied(stage)}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in kept, source
        assert not any(fnmatch.fnmatch(source, rule) for rule in rules[1:] if rule[0] != "!"), source
    assert {source.split("/")[0] for source in sources} == kept


def test_nothing_depends_on_the_architecture() -> None:
    text = "\n".join(logical_lines()) + (DOCKER / "build-steps.sh").read_text() + (DOCKER / "compose.yaml").read_text()
    assert not re.search(r"amd64|x86_64|arm64|aarch64|--platform", text)
