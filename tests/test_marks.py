"""What `make test` leaves out to be quick is looked at by `make test-all` alone, and never all that there is of a kind."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from marks import COLLECTED, SLOW

from kernelgen import devices
from kernelgen.spec.model import FAMILIES

TESTS = Path(__file__).resolve().parent
OPERATORS = TESTS.parent / "operators"


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Every test there is; skipped where pytest was given some of them."""
    if any(Path(named).resolve() != TESTS for named in request.config.option.file_or_dir):
        pytest.skip("looks at the whole suite: name no file")
    return request.config.stash[COLLECTED]


@pytest.fixture
def quick(collected: list[pytest.Item]) -> list[pytest.Function]:
    """What `make test` runs."""
    return [
        item
        for item in collected
        if isinstance(item, pytest.Function) and not any(item.get_closest_marker(mark) for mark in ("slow", "gpu"))
    ]


def called(items: list[pytest.Function], name: str) -> list[pytest.Function]:
    found = [item for item in items if item.originalname == name]
    assert found, f"no test is called {name}"
    return found


def test_what_is_listed_as_slow_is_there(collected: list[pytest.Item]) -> None:
    there = {item.nodeid for item in collected}
    modules = {name.partition("::")[0] for name in there}
    gone = {name for name in SLOW - there if name.partition("::")[0] in modules}  # Ray's are there where Ray is
    assert gone == set()
    assert all((TESTS.parent / name.partition("::")[0]).exists() for name in SLOW)


def test_every_family_has_a_quick_operator(quick: list[pytest.Function]) -> None:
    shipped = called(quick, "test_a_shipped_operator_is_accurate")
    folders = {item.callspec.params["file"].parent for item in shipped}  # the test of gradients runs their parts
    definitions = [path for folder in folders for path in folder.rglob("definition.md")]
    told = [re.search(r"\| kernels \| (.*) \|", path.read_text("utf-8")) for path in definitions]
    families = {word for found in told if found for word in re.findall(r"\w+", found[1])}
    assert families >= set(FAMILIES)
    assert called(quick, "test_the_gradients_agree_with_autograd")


def test_every_kind_of_random_reference_is_drawn(quick: list[pytest.Function]) -> None:
    drawn = called(quick, "test_a_few_random_references_agree_with_torch")
    assert {item.callspec.params["family"] for item in drawn} == drawn[0].module.FAMILIES.keys()


def test_every_device_has_a_quick_test(quick: list[pytest.Function]) -> None:
    functions = {item.function for item in quick}
    sources = {*map(inspect.getsource, functions), *(str(getattr(item, "callspec", "")) for item in quick)}
    names = {m.name for m in pkgutil.iter_modules(devices.__path__)} & {"cpu", "cuda", "npu"}
    assert names == {"cpu", "cuda", "npu"}
    for name in names:
        assert any(f'"{name}"' in source for source in sources), name


def test_every_guard_stops_a_quick_attack(collected: list[pytest.Item], quick: list[pytest.Function]) -> None:
    def stops(items: list[pytest.Function]) -> set[str]:
        """The beginnings of verdicts that attacks must end in."""
        found = called(items, "test_an_attack_is_stopped")
        return {getattr(i.callspec.params["attack"], i.callspec.params["form"])[1] for i in found}

    everything = [item for item in collected if isinstance(item, pytest.Function)]
    assert stops(quick) == stops(everything)


def test_what_needs_a_gpu_is_skipped_where_there_is_none() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_devices.py", "-k", "the_gpu_here"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "needs an NVIDIA GPU: torch.cuda.is_available() is false" in done.stdout
    assert " 1 skipped, " in done.stdout
