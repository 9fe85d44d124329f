"""What can be checked of the container files without a container engine."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import yaml

DOCKER = Path(__file__).resolve().parents[2] / "docker"


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


def instructions(stage: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of one stage of the Dockerfile."""
    found: list[tuple[str, str]] = []
    current = ""
    for line in (DOCKER / "Dockerfile").read_text().splitlines():
        match = re.match(r"([A-Z]+) (.*)", line)
        if not match:
            continue
        if match[1] == "FROM":
            current = match[2].rpartition(" AS ")[2]
        elif current == stage:
            found.append((match[1], match[2]))
    return found


def test_compose_file_follows_the_compose_specification() -> None:
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    jsonschema.validate(compose(), schema, cls=jsonschema.validators.validator_for(schema))


def test_clients_wait_for_a_healthy_server() -> None:
    services = compose()["services"]
    assert services["kcoord"]["healthcheck"]["test"] == ["CMD", "kcoord", "health"]
    for name in ("producer", "consumer"):
        assert services[name]["depends_on"] == {"kcoord": {"condition": "service_healthy"}}
        script = services[name]["command"][0]
        assert (DOCKER / script.lstrip("/")).is_file(), script


def test_build_targets_are_stages_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM .* AS (\w+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE))
    for name, service in compose()["services"].items():
        assert service["build"]["target"] in stages, name
        context = DOCKER / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).is_file()


def test_the_image_runs_as_a_numeric_user_and_has_a_health_check() -> None:
    server = dict(instructions("server"))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", server["USER"])
    assert server["VOLUME"] == "/data"
    assert server["EXPOSE"] == "9092"
    assert server["STOPSIGNAL"] == "SIGTERM"
    assert server["HEALTHCHECK"].endswith('CMD ["kcoord", "health"]')
    # Flags would win over the variables that a user sets.
    assert json.loads(server["CMD"]) == ["serve"]
    variables = [arguments for name, arguments in instructions("server") if name == "ENV"]
    assert "KCOORD_LISTEN=0.0.0.0:9092 KCOORD_DATA=/data" in variables


def test_the_build_stage_is_the_script_that_ci_runs() -> None:
    runs = [arguments for name, arguments in instructions("build") if name == "RUN"]
    assert runs == ["sh /src/docker/build-steps.sh /src /opt/kcoord"]
