"""--gpus, --workers, --ray: what is wrong with them is one line; what several workers do is what one does."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import REPO, kernelgen, refused

from kernelgen import devices
from kernelgen.cli import fleet, main
from kernelgen.devices import Card
from kernelgen.devices.device import Device
from kernelgen.devices.facts import H200
from kernelgen.errors import NoDeviceError
from kernelgen.fleet import checkup, on_ray
from kernelgen.fleet.local import Place
from kernelgen.fleet.model import Kind, Worker

TWO = Device(
    "cuda", True, H200, driver="580",
    cards=tuple(Card("NVIDIA H200", (("CUDA_VISIBLE_DEVICES", str(n)),)) for n in range(2)),
)  # fmt: skip


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find", lambda *_: TWO)


MISTAKES = [
    (["--gpus", "all", "--ray", "local"], 2, "--gpus uses GPUs of this machine"),
    (["--gpus", "all", "--workers", "2"], 2, "--workers is for machines without a GPU"),
    (["--workers", "0"], 2, "--workers: must be a whole number from 1 to 1024, not '0'"),
    (["--each-device"], 2, "--each-device applies to parallel runs: give --gpus, --workers or --ray"),
    (["--resume"], 2, "--resume applies to parallel runs"),
    (["--ray", "ray://10.0.0.1:10001"], 2, "that is Ray Client's address"),
    (["--ray", "somewhere"], 2, "must be local, or HOST:PORT"),
    (["--ray", "127.0.0.1:1"], 2, "--ray 127.0.0.1:1: nothing answers there (Connection refused)"),
]


@pytest.mark.parametrize(("options", "code", "line"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_one_line(options: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "relu", *options]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("error: ")
    assert line in told.err


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["tune", "--gpus", "all"], "tune needs a NAME"),
        (["tune", "relu", "--workers", "x"], "--workers: must be a whole number"),
        (
            ["check", "relu", "--target", "ascend910b3", "--workers", "1"],
            "--target works on this machine's CPU; leave out",
        ),
        (["bench", "--self-test", "--workers", "1"], "--self-test tests the timer of this machine; leave --gpus"),
        (["bench", "relu", "--each-device"], "--each-device applies to parallel runs"),
        (
            ["optimize", "relu", "--adopt", "x.py", "--workers", "1", "--device", "cpu"],
            "--adopt works on one operator on this machine",
        ),
    ],
)
def test_commands_say_what_they_do_not_take(command: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_the_tests_of_operators_side_by_side_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    for name in ("relu", "broadcast"):
        shutil.copytree(REPO / "operators" / name, tmp_path / "operators" / name)
    only = ("--only", "[] D=1 float32", "--json", "--device", "cpu")
    side_by_side = kernelgen("check", "relu", "broadcast", *only, "--workers", "2", cwd=tmp_path)
    one_by_one = kernelgen("check", "relu", "broadcast", *only, cwd=tmp_path)
    assert side_by_side.returncode == one_by_one.returncode, side_by_side.stderr
    found, wanted = (json.loads(done.stdout) for done in (side_by_side, one_by_one))
    assert list(found) == list(wanted)
    assert found["broadcast"].keys() == wanted["broadcast"].keys()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("gpus", "line"),
    [
        ("9", "--gpus 9: there is no GPU 9; here are 0 to 1"),
        ("0,2", "--gpus 0,2: there is no GPU 2; here are 0 to 1"),
        ("one", "--gpus one: must be all, or numbers such as 0,2"),
        ("", "--gpus : must be all, or numbers such as 0,2"),
        ("-1", "--gpus -1: must be all"),
    ],
)
def test_gpus_that_are_not_here(gpus: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "relu", f"--gpus={gpus}"]) == 2
    assert f"error: {line}" in capsys.readouterr().err


def test_no_gpu_at_all(tmp_path: Path) -> None:
    line = refused("optimize", "relu", "--gpus", "all", cwd=tmp_path, code=3, CUDA_VISIBLE_DEVICES="")
    assert line == "error: --gpus all: no GPU on this machine; --workers N works on the CPU, with predicted times"


def test_unlike_gpus_are_named_and_never_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = replace(TWO, cards=(TWO.cards[0], Card("NVIDIA A100", TWO.cards[1].variables)))
    asked = fleet.Fleet("all", None, None, False)
    with pytest.raises(
        fleet.UsageError, match=r"different devices \(0 is NVIDIA H200, 1 is NVIDIA A100\) are not mixed"
    ):
        fleet.places(asked, mixed, None)
    assert [place.worker.name for place in fleet.places(replace(asked, gpus="1"), mixed, None)] == ["gpu 1"]
    kinds = {place.worker.kind.device for place in fleet.places(replace(asked, each=True), mixed, None)}
    assert kinds == {"NVIDIA H200", "NVIDIA A100"}


def test_each_worker_sees_its_gpu_and_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    found = fleet.places(fleet.Fleet("all", None, None, False), TWO, None)
    assert [dict(p.variables) for p in found] == [
        {"CUDA_VISIBLE_DEVICES": str(n), "KERNELGEN_JOBS": "8"} for n in range(2)
    ]
    assert "KERNELGEN_JOBS" not in fleet.places(fleet.Fleet("all", None, None, False), TWO, 4)[0].variables


def test_a_worker_whose_clock_is_off_is_set_aside_with_the_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [Place(Worker(f"gpu {n}", Kind("a", ())), {"N": str(n)}, True) for n in range(2)]

    def said(variables: dict[str, str]) -> tuple[dict[str, object], str]:
        covered = (19, 14)[int(variables["N"])]
        return checkup.judged({"results": [{"runs": 20, "covered": covered, "median_width": 0.01}]})

    monkeypatch.setattr(checkup, "self_test", said)
    assert [place.worker.name for place in fleet._tested(places)] == ["gpu 0"]
    assert places[0].worker.seen["self_test_covered"] == 19
    assert capsys.readouterr().err == (
        "gpu 1 is set aside: its A/A self-test held 1.00 in 14 of 20 intervals, 15 at the least are wanted\n"
    )
    with pytest.raises(NoDeviceError, match="no GPU is usable"):
        fleet._tested(places[1:])


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["optimize", "relu", "--ray", "local"]) == 2
    assert capsys.readouterr().err == f"error: --ray local: {on_ray.HOW_TO_GET_IT}\n"


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    line = refused("optimize", "relu", "--device", "cpu", "--workers", "1", cwd=tmp_path)
    assert line == "error: logs: cannot write here: File exists"


def test_nothing_to_resume(tmp_path: Path) -> None:
    line = refused("optimize", "relu", "--device", "cpu", "--workers", "1", "--resume", cwd=tmp_path)
    assert line == "error: --resume: logs/ has no interrupted run with these operators and options"


def test_a_spec_that_is_wrong_does_not_keep_others_from_running(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\n")
    options = ("--device", "cpu", "--workers", "1", "--rounds", "1", "--candidates", "1", "--json")
    done = kernelgen("optimize", "relu", "bad.yaml", *options, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["bad.yaml"]["error"].startswith("bad.yaml:1:1: ")
    assert document["relu"]["reason"] == "finished 1 round"
    assert (tmp_path / "operators" / "relu" / "relu_triton.py").is_file()
    alone = kernelgen("optimize", "relu", *options[2:][2:], "--device", "cpu", "--dry-run", cwd=tmp_path)
    assert json.loads(alone.stdout)["generate"] is False
