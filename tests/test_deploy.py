"""docs/deploy: linted where the linters are, and what the files say of kernelgen is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelgen.cli import main

FOLDER = Path(__file__).parent.parent / "docs" / "deploy"
KUBERNETES = "1.33"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def pods() -> Iterator[tuple[str, Any]]:
    """The documents of Kubernetes' own kinds, and the pods within the RayJob."""
    for document in documents("job.yaml"):
        yield document["kind"], document
    cluster = documents("rayjob.yaml")[0]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        yield "Pod", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}


def test_the_dockerfile_is_linted() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install 'kernelgen[deploy]'")
    done = subprocess.run([hadolint, FOLDER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_manifests_are_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'kernelgen[deploy]'")
    for kind, document in pods():
        validate.validate(document, KUBERNETES, strict=True)
        broken = {**document, "spec": {**document["spec"], "restartPolicie": "Never"}}
        with pytest.raises(validate.ValidationError):
            validate.validate(broken, KUBERNETES, strict=True)
        assert kind == document["kind"]


def test_containers_are_of_images_that_the_dockerfile_makes() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (FOLDER / "Dockerfile").read_text("utf-8"), re.MULTILINE))
    text = "".join((FOLDER / name).read_text("utf-8") for name in ("compose.yaml", "job.yaml", "rayjob.yaml"))
    assert set(re.findall(r"image: kernelgen:(\w+)$", text, re.MULTILINE)) <= stages
    targets = {service["build"]["target"] for service in documents("compose.yaml")[0]["services"].values()}
    assert targets <= stages


def test_commands_have_the_options_that_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    job = documents("job.yaml")[1]["spec"]["template"]["spec"]["containers"][0]["args"]
    entry = documents("rayjob.yaml")[0]["spec"]["entrypoint"].partition("kernelgen ")[2]
    compose = re.findall(r"kernelgen (optimize .*)", (FOLDER / "compose.yaml").read_text("utf-8"))
    for command in (" ".join(job), entry, *compose):
        assert main([command.split()[0], "--help"]) == 0
        told = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", command):
            assert option in told, (option, command)


def test_no_ray_is_open_to_all() -> None:
    """Every place that starts Ray asks for a key, and no port is published."""
    compose = documents("compose.yaml")[0]
    for service in compose["services"].values():
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert "ports" not in service
    for _, document in list(pods())[2:]:
        names = {variable["name"] for one in document["spec"]["containers"] for variable in one["env"]}
        assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= names
