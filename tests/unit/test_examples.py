"""The examples for CI systems and Kubernetes: valid for their schemas, and true to the image and the server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kcoord.server.settings.load import load
from kcoord.server.settings.table import SETTINGS
from tests.harness.ports import own_port

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"
KUBERNETES = ROOT / "examples" / "kubernetes"
KUBERNETES_VERSION = "1.37"
MANIFESTS = ["service.yaml", "statefulset.yaml", "poddisruptionbudget.yaml"]
STEP_SECONDS = 60.0


def read(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return loaded


# ---- CI


@pytest.mark.parametrize(
    ("name", "schema_name"),
    [("github-actions.yml", "github-workflows.json"), ("gitlab-ci.yml", "gitlab-ci.json")],
)
def test_ci_examples_follow_the_schema_of_their_system(name: str, schema_name: str) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / schema_name).read_text())
    # YAML 1.1 reads the key `on` as true.
    example = {"on" if key is True else key: value for key, value in read(CI / name).items()}
    jsonschema.validate(example, schema, cls=jsonschema.validators.validator_for(schema))


def settings_of_services() -> dict[str, dict[str, str]]:
    """The variables of each service that is a kcoord, by its example."""
    found = {}
    for name, job in read(CI / "github-actions.yml")["jobs"].items():
        for service in job.get("services", {}).values():
            assert service["image"] == "${{ vars.BROKER_IMAGE }}"
            found[f"github {name}"] = service["env"]
    gitlab = read(CI / "gitlab-ci.yml")
    for name, job in gitlab.items():
        for service in job.get("services", []) if name != "variables" else []:
            assert service["name"] == "$BROKER_IMAGE"
            # GitLab passes the job's variables to its services, too.
            found[f"gitlab {name}"] = gitlab["variables"] | job["variables"] | service["variables"]
    return found


def test_services_have_settings_that_the_server_accepts() -> None:
    image = {"KCOORD_LISTEN": "0.0.0.0:9092", "KCOORD_DATA": "/data"}
    found = settings_of_services()
    assert len(found) == 3
    for name, variables in found.items():
        config = load(environ=image | variables)
        assert [listener.port for listener in config.listeners] == [9092], name


def test_a_mapped_port_is_advertised_and_another_is_not() -> None:
    for name, job in read(CI / "github-actions.yml")["jobs"].items():
        for alias, service in job.get("services", {}).items():
            bootstrap = job["env"]["BOOTSTRAP"]
            if "ports" in service:
                assert service["ports"] == ["9092:9092"] and "container" not in job
                assert service["env"]["KCOORD_ADVERTISE"] == bootstrap == "127.0.0.1:9092", name
            else:
                assert "KCOORD_ADVERTISE" not in service["env"] and "container" in job
                assert bootstrap == f"{alias}:9092"
    job = read(CI / "gitlab-ci.yml")["service"]
    assert job["variables"]["BOOTSTRAP"] == f"{job['services'][0]['alias']}:9092"


def commands_that_start_a_server() -> dict[str, str]:
    github = read(CI / "github-actions.yml")["jobs"]["server-in-a-step"]["steps"]
    gitlab = read(CI / "gitlab-ci.yml")["server-in-the-job"]["script"]
    return {
        "github": next(step["run"] for step in github if step.get("name") == "Start kcoord"),
        "gitlab": "\n".join(line for line in gitlab if "kcoord serve" in line or "kcoord health" in line),
    }


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_step_that_starts_a_server_ends_when_it_serves(name: str, tmp_path: Path) -> None:
    script = commands_that_start_a_server()[name]
    assert script.count("127.0.0.1:9092") == 2
    script = script.replace("127.0.0.1:9092", f"127.0.0.1:{own_port()}")
    command = tmp_path / "kcoord"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m kcoord.cli.main "$@"\n')
    command.chmod(0o755)
    variables = {key: value for key, value in os.environ.items() if not key.startswith("KCOORD_")}
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path)}
    process = subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.wait(STEP_SECONDS) == 0
        # The server has its own files, and goes on after the step.
        assert "is healthy" in process.stdout.read()
        assert (tmp_path / "kcoord.out").read_text().startswith("kcoord ready ")
        assert (tmp_path / "kcoord.log").exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


# ---- docs


def test_the_docs_show_parts_of_the_examples() -> None:
    examples = [*CI.glob("*.yml"), ROOT / "docker" / "compose.yaml"]
    texts = [path.read_text() for path in examples]
    for page, count in (("ci.md", 3), ("containers.md", 1)):
        blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
        assert len(blocks) == count
        for block in blocks:
            shown = [textwrap.indent(block, " " * width) for width in range(0, 10, 2)]
            assert any(part in text for part in shown for text in texts), block


def test_the_command_to_run_the_image_advertises_the_port_that_it_publishes() -> None:
    text = (ROOT / "docs" / "containers.md").read_text()
    (command,) = re.findall(r"^    (docker run .*)$", text, re.MULTILINE)
    published = re.findall(r" -p (\S+):9092 ", command)
    assert published == re.findall(r" -e KCOORD_ADVERTISE=(\S+) ", command) == ["127.0.0.1:9092"]


# ---- Kubernetes


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_the_schema_of_kubernetes(name: str) -> None:
    assert kubernetes_validate.validate(read(KUBERNETES / name), KUBERNETES_VERSION, strict=True) == KUBERNETES_VERSION


def test_the_schema_check_finds_a_wrong_field() -> None:
    manifest = read(KUBERNETES / "statefulset.yaml")
    manifest["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_the_kustomization_names_every_manifest_and_the_image() -> None:
    kustomization = read(KUBERNETES / "kustomization.yaml")
    assert kustomization["resources"] == MANIFESTS
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*MANIFESTS, "kustomization.yaml"}
    (image,) = kustomization["images"]
    assert container()["image"] == f"{image['name']}:{image['newTag']}"


def pod() -> dict[str, Any]:
    found: dict[str, Any] = read(KUBERNETES / "statefulset.yaml")["spec"]["template"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_manifests_fit_together() -> None:
    stateful, service = read(KUBERNETES / "statefulset.yaml"), read(KUBERNETES / "service.yaml")
    budget = read(KUBERNETES / "poddisruptionbudget.yaml")
    labels = pod()["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert (stateful["spec"]["replicas"], budget["spec"]["minAvailable"]) == (1, 1)
    assert service["spec"]["clusterIP"] == "None"
    volumes = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes


def test_the_pod_fits_the_image() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    user, group = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)[0]
    security = pod()["spec"]["securityContext"]
    assert [str(security[name]) for name in ("runAsUser", "runAsGroup", "fsGroup")] == [user, group, group]
    assert f"EXPOSE {container()['ports'][0]['containerPort']}\n" in dockerfile
    assert [mount["mountPath"] for mount in container()["volumeMounts"]] == ["/data"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["exec"]["command"] == ["kcoord-health"], probe
    assert "/usr/local/bin/kcoord-health\n" in dockerfile


def test_the_pod_advertises_its_name() -> None:
    fields = {"metadata.name": "kcoord-0", "metadata.namespace": "tools"}
    values = {}
    for variable in container()["env"]:
        if "valueFrom" in variable:
            values[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            # Kubernetes replaces variables that stand before.
            values[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], variable["value"])
    (listener,) = load(environ={"KCOORD_LISTEN": "0.0.0.0:9092"} | values).listeners
    service = read(KUBERNETES / "service.yaml")["metadata"]["name"]
    assert (listener.advertised_host, listener.advertised_port) == (f"kcoord-0.{service}.tools.svc", 9092)


def test_whoever_stops_the_server_waits_longer_than_it_needs() -> None:
    (deadline_ms,) = [setting.default for setting in SETTINGS if setting.name == "shutdown.deadline.ms"]
    assert isinstance(deadline_ms, int)
    grace_s = pod()["spec"]["terminationGracePeriodSeconds"]
    compose = read(ROOT / "docker" / "compose.yaml")["services"]["kcoord"]["stop_grace_period"]
    assert compose == f"{grace_s}s"
    assert grace_s * 1000 >= 3 * deadline_ms
