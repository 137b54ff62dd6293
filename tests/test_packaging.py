"""The wheel has everything that `kernelgen new` needs where there is no checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

REPO = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(iter(WheelBuilder(str(REPO)).build(directory=str(folder), versions=["standard"]))))


def test_the_wheel_has_the_templates_and_the_specs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"kernelgen/specs/{path.name}" for path in (REPO / "specs").glob("*.yaml")}
    wanted |= {f"kernelgen/templates/{path.name}" for path in (REPO / "kernelgen" / "templates").glob("*.jinja")}
    wanted |= {"kernelgen/py.typed", "kernelgen/judge/__init__.py"}
    assert wanted - names == set()
    assert [name for name in names if name.startswith(("tests/", "operators/", "logs/"))] == []


def test_a_shipped_spec_is_found_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from kernelgen.spec import find_spec, load_spec; p, s = find_spec('broadcast.yaml'); print(p, s, load_spec(p).name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "site/kernelgen/specs/broadcast.yaml"), "True", "broadcast"]


def test_the_pages_that_messages_name_are_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", "from kernelgen.cli import main; main(['docs', 'spec']); main(['doctor'])"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout.startswith("# "), done.stderr
    assert "sqrt" in done.stdout
    assert "pip install -e" not in done.stdout, "nobody has a checkout there"
