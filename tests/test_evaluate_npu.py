"""The evaluator of an NPU: what can be seen without one, on the NPU that is simulated in torch and with a profiler's file."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelgen import devices, outcomes
from kernelgen.analysis import Work
from kernelgen.devices import npu as device
from kernelgen.diagnose import Seen, diagnose, evidence
from kernelgen.evaluate import Candidate, evaluator, npu_profile, source_hash
from kernelgen.evaluate.compiling import Compiled
from kernelgen.evaluate.npu import NpuEvaluator
from kernelgen.judge import npu, simulated, timing
from kernelgen.outcomes import CaseTiming, Counters, StaticFacts, Status
from kernelgen.plan import KernelPlan, Schedule, TableRow
from kernelgen.predict_tiles import predict
from kernelgen.spec.model import Case, OperatorSpec, Place, TensorSpec
from kernelgen.worker.client import Failed, Worker

QUARTET = Path(__file__).parent / "quartets" / "scale"
SOURCE = (QUARTET / "scale_triton.py").read_text()
CASE = Case((("...", (4,)), ("D", 100)), (("T", "float32"),), "[4] D=100 float32")
SCHEDULE = Schedule.make("flat", BLOCK_SIZE=1024, multibuffer=True)
DETAILS = """\
Name,Type,Accelerator Core,Duration(us),Block Dim,aiv_time(us),aiv_vec_ratio,aiv_scalar_ratio,aiv_mte2_ratio,aiv_mte3_ratio
ZerosLike,ZerosLike,AI_VECTOR_CORE,9.0,40,8.0,0.9,0.1,0.1,0.9
scale_kernel,scale_kernel,AI_VECTOR_CORE,20.0,40,19.0,0.31,{scalar},0.45,0.4
"""


@pytest.fixture
def on_an_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NpuEvaluator]:
    """The evaluator that a machine with an NPU gets; no worker of it is started."""
    found = device.Npu("Ascend910B3", 65_452_113_920, 20, 40, "8.5.0")
    monkeypatch.setattr(device, "_probe", lambda: (found, ""))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tensor = TensorSpec("x", ("...", "D"), "T")
    spec = OperatorSpec(
        name="scale", summary="Twice the input.", inputs=(tensor,), outputs=(TensorSpec("out", ("...", "D"), "T"),),
        dtypes=(("T", ("float32",)),), constraints=(), reference="def scale(x):\n    return x * 2\n",
        reference_place=Place(1, 1), accuracy=(), performance=(CASE,),
    )  # fmt: skip
    plan = KernelPlan(spec, "npu_pointwise", None, (TableRow((), SCHEDULE),))
    with evaluator(devices.find("npu"), plan, QUARTET, tmp_path / "store", lambda _: Work(800, 800, 400)) as made:
        assert isinstance(made, NpuEvaluator)
        yield made


def candidate() -> Candidate:
    return Candidate(SOURCE, source_hash(SOURCE), 0, SCHEDULE, (CASE,), "as it is")


def profiled(found: NpuEvaluator, text: str, monkeypatch: pytest.MonkeyPatch) -> Counters:
    asked: dict[str, Any] = {}
    launch = SimpleNamespace(kernel="scale_kernel", waves=1.0, grid=(40,), tile_elements=1024)
    facts = Compiled((launch,), "digest")  # type: ignore[arg-type]

    def call(op: str, args: dict[str, object], limit_s: float) -> dict[str, Any]:
        asked[op] = args
        return {"kernel_details": text}

    monkeypatch.setattr(found._compiler, "compile", lambda *_: {CASE.label: facts})
    monkeypatch.setattr(found.runner, "call", call)
    counters = found.profile(candidate(), CASE)
    assert set(asked) == ({"details"} if counters.source.partition(" (")[0] != npu_profile.MSPROF else set())
    return counters


def test_nothing_else_is_started_on_an_npu(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(on_an_npu.second, "call", lambda op, args, limit_s: asked.append(op))
    on_an_npu.expect((CASE,), counters=True)
    with on_an_npu._in_silence():
        pass
    assert asked == []


def test_an_npu_that_is_here_is_measured(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are the worker's; torch.compile is not asked for."""
    assert on_an_npu.measures
    asked = []

    def call(op: str, args: dict[str, Any], limit_s: float) -> dict[str, Any]:
        asked.append((op, args["against"]))
        return {"left_out": "", "time_us": 10.0, "against_us": 20.0, "speedup": 2.0, "interval": [1.9, 2.1]}

    monkeypatch.setattr(on_an_npu.runner, "call", call)
    (found,) = on_an_npu.baselines(candidate(), (CASE,)).timings
    assert asked == [("baseline", "eager")]
    assert (found.source, found.speedup) == ("measured", 2.0)


def test_the_profilers_file_is_what_is_diagnosed(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel's row is left alone; unit shares, programs and bandwidth are the evidence."""
    counters = profiled(on_an_npu, DETAILS.format(scalar="0.12"), monkeypatch)
    source = "torch-npu's profiler (no msprof on the path)"
    assert counters.source == source
    assert dict(counters.busy) == {"vector": 0.31, "scalar": 0.12, "mte2": 0.45, "mte3": 0.4}
    assert counters.block_dim == 40
    facts = on_an_npu.device.npu
    assert counters.kernels_us == 20.0
    assert counters.dram_utilisation is None  # the file has no traffic
    timing = CaseTiming(CASE.label, "measured", 20.0, "eager", 40.0, 2.0, None, floor_us=1.0)
    seen = Seen(timing, Work(800, 800, 400), (), counters)
    shown = {name: (value, source) for name, value, source in evidence(seen, facts)}
    assert shown["loads (MTE2) busy"] == ("45 %", source)
    assert shown["programs side by side"] == ("40", source)
    assert shown["time of the kernels alone"] == ("20.00 µs", source)
    assert shown["DRAM throughput"] == ("not read", "-")
    assert "L2, L1 hit rate" not in shown
    assert Counters.from_json(outcomes.to_json(counters)) == counters


OPPROF = {
    "OpBasicInfo": (
        "Op Name,Op Type,Task Duration(us),Block Dim,Mix Block Dim,Device Id,Pid,Current Freq,Rated Freq,\n"
        "scale_kernel,vector,12.5,40,0,0,1,1800,1800,\n"
    ),
    "PipeUtilization": (
        "block_id,sub_block_id,aic_time(us),aic_cube_ratio,aiv_time(us),aiv_vec_ratio,aiv_scalar_ratio,aiv_mte2_ratio,"
        "aiv_mte3_ratio,\n0,vector0,NA,NA,3.0,0.2,0.1,0.8,0.4,\n1,vector0,NA,NA,3.0,0.2,0.1,0.8,0.4,\n"
    ),
    "Memory": (
        "block_id,sub_block_id,aic_main_mem_read_bw(GB/s),aiv_main_mem_read_bw(GB/s),aiv_main_mem_write_bw(GB/s),\n"
        "0,vector0,NA,200.0,100.0,\n1,vector0,NA,200.0,100.0,\n"
    ),
}
MSPROF_SCRIPT = """\
#!{python}
import json, pathlib, subprocess, sys
options = dict(one.split("=", 1) for one in sys.argv[2:] if one.startswith("--"))
program = sys.argv[2 + len(options):]
assert sys.argv[1] == "op" and options["--kernel-name"] == "scale_kernel", sys.argv
subprocess.run(program, check=True)
for kind, text in json.loads({files!r}).items():
    path = pathlib.Path(options["--output"], "OPPROF_20251121_ABC", "scale_kernel", "0", f"{{kind}}_20251121.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
"""
"""Stands where CANN's program would: it runs what it is given, and writes files of the form that msprof's have."""


@pytest.fixture
def msprof_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "msprof"
    program.parent.mkdir()
    program.write_text(MSPROF_SCRIPT.format(python=sys.executable, files=json.dumps(OPPROF)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(npu_profile, "_refusals", [])


@pytest.mark.usefixtures("msprof_on_the_path")
def test_msprof_is_asked_where_it_is(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the candidate, here on the simulated NPU; traffic that was counted says more than needed bytes do."""
    on_an_npu._crew.profile_environment["KERNELGEN_SIMULATED_NPU"] = "ascend910b3"
    counters = profiled(on_an_npu, "", monkeypatch)
    facts = on_an_npu.device.npu
    assert counters.source == "msprof op"
    assert (counters.kernels_us, counters.block_dim) == (12.5, 40)
    assert dict(counters.busy) == pytest.approx({"vector": 0.2, "scalar": 0.1, "mte2": 0.8, "mte3": 0.4})
    assert counters.dram_utilisation == pytest.approx(600e9 / facts.dram_bytes_per_s)
    seen = Seen(CaseTiming(CASE.label, "measured", 20.0, "eager", 40.0, 2.0, None), Work(800, 800, 400), (), counters)
    assert ("loads (MTE2) busy", "80 %", "msprof op") in evidence(seen, facts)


@pytest.mark.usefixtures("msprof_on_the_path")
def test_where_msprof_fails_torch_npu_is_asked(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked again, and the evidence says what was used instead, and why."""
    program = Path(shutil.which("msprof") or "")
    program.write_text("#!/bin/sh\necho asked >> $0.log\necho '[ERROR] no permission'\nexit 1\n")
    for _ in range(2):
        counters = profiled(on_an_npu, DETAILS.format(scalar="0.12"), monkeypatch)
        assert counters.source == "torch-npu's profiler (msprof wrote no files: [ERROR] no permission)"
    assert program.with_name("msprof.log").read_text() == "asked\n"


@pytest.mark.parametrize("scalar", ["0.12", "0.95"])
def test_a_busy_scalar_unit_is_named(scalar: str, on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = profiled(on_an_npu, DETAILS.format(scalar=scalar), monkeypatch)
    timing = CaseTiming(CASE.label, "measured", 20.0, "eager", 40.0, 2.0, None, floor_us=1.0)
    found = diagnose((Seen(timing, Work(800, 800, 400), (), counters),), on_an_npu.device.npu, ("block_size",))
    assert found.bottleneck == "latency"
    assert ("scalar unit is busy 95 %" in found.ranked[0].reason) == (scalar == "0.95")


def test_a_profile_without_the_kernel_says_so(on_an_npu: NpuEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = profiled(on_an_npu, DETAILS.replace("scale_kernel,", "other_kernel,").format(scalar=0), monkeypatch)
    assert counters.source == "not available: the profile has no run of scale_kernel"
    assert not counters.read


def test_memory_is_copied_there_with_its_guards_and_back() -> None:
    """A write beside an input, a view of an input and an output on the host are what the judge must see."""
    simulated.install()
    memory = torch.zeros(12)
    view = memory.as_strided((2, 3), (4, 1), 2)

    def writes_beside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.device.type == "npu"
        assert x.stride() == (4, 1)
        x.as_strided((1,), (1,), 0).fill_(7.0)
        return x + 1, x.t()

    added, same = npu.on_npu(writes_beside)(view)
    assert memory[0] == 7.0
    assert added.device.type == "cpu"
    assert torch.equal(added, view + 1)
    assert same.data_ptr() == view.data_ptr()
    assert same.stride() == (1, 4)
    with pytest.raises(TypeError, match="an output is on cpu"):
        npu.on_npu(lambda x: torch.ones(3))(view)


def test_the_stage_times_by_events() -> None:
    """One launch a sample, no graphs; on the simulated NPU its figures are only looked at for their form."""
    simulated.install()

    def make() -> tuple[torch.Tensor, ...]:
        return (torch.ones(100).to("npu"),)

    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = x + 1
        return x

    functions = (slow, lambda x: x + 1)
    found = timing.compare(*functions, make, blocks=3, pairs=5, time_cap_s=1.0, stage=npu.NpuStage(functions, make))
    assert found.speedup > 3
    assert (found.launches, found.graphed, found.swapped_sets) == (1, False, True)
    assert found.a_call_us is not None


def test_a_simulated_time_is_never_compared(tmp_path: Path) -> None:
    """The worker of an NPU hands a simulated time out under that name, and refuses what would make a speedup of it."""
    variables = {"KERNELGEN_SIMULATED_NPU": "ascend910b3"}
    request: dict[str, object] = {
        "folder": str(QUARTET), "name": "scale", "path": str(QUARTET / "scale_triton.py"), "case": CASE.to_json(),
    }  # fmt: skip
    with Worker("npu", variables, tmp_path) as worker:
        assert "simulated" in worker.call("canary", {}, 120)["npu"]
        answer = worker.call("time", request, 120)
        assert answer["simulated"] is True
        assert answer["time_us"] > 0
        for op in ("race", "compare", "baseline", "details"):
            with pytest.raises(Failed, match="its times are simulated and compared with nothing") as failure:
                worker.call(op, request, 120)
            assert failure.value.status == Status.LAUNCH_ERROR


def test_a_kernel_that_reduces_what_others_left_has_little_of_the_work() -> None:
    """It runs on one core, which would else be predicted to move half of the bytes."""
    facts = devices.find("npu", "ascend910b3").npu

    def launch(kernel: str, programs: int, tiles: int) -> StaticFacts:
        return StaticFacts(
            kernel=kernel, arch=facts.arch, grid=(programs,), num_warps=1, registers=0, spill_bytes=0, shared_bytes=0,
            occupancy=1.0, waves=tiles / programs, load_bytes=0, store_bytes=0, overlapped=True, tile_elements=4096,
            row_bytes=16384,
        )  # fmt: skip

    work = Work(4 << 30, 4, 8 << 30)
    rows = launch("rows_kernel", facts.vector_cores, 1 << 18)
    alone = predict(work, (rows,), facts).seconds
    both = predict(work, (rows, launch("finish_kernel", 1, 2)), facts).seconds
    assert alone < both < 1.05 * alone
