"""The evaluator of an NPU: what can be seen without one, on the NPU that is simulated in torch and with a profiler's file."""

from __future__ import annotations

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
from kernelgen.evaluate import Candidate, evaluator, source_hash
from kernelgen.evaluate.compiling import Compiled
from kernelgen.evaluate.npu import PROFILER, NpuEvaluator
from kernelgen.judge import npu, simulated, timing
from kernelgen.outcomes import CaseTiming, Counters, Status
from kernelgen.plan import Plan, Schedule, TableRow
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
    plan = Plan(spec, "npu_pointwise", None, (TableRow(None, SCHEDULE),))
    with evaluator(devices.find("npu"), plan, QUARTET, tmp_path / "store", lambda _: Work(800, 800, 400)) as made:
        assert isinstance(made, NpuEvaluator)
        yield made


def candidate() -> Candidate:
    return Candidate(SOURCE, source_hash(SOURCE), 0, SCHEDULE, (CASE,), "as it is")


def profiled(found: NpuEvaluator, text: str, monkeypatch: pytest.MonkeyPatch) -> Counters:
    asked: dict[str, Any] = {}
    facts = Compiled((SimpleNamespace(kernel="scale_kernel"),), "digest")  # type: ignore[arg-type]

    def call(op: str, args: dict[str, object], limit_s: float) -> dict[str, Any]:
        asked[op] = args
        return {"kernel_details": text}

    monkeypatch.setattr(found._compiler, "compile", lambda *_: {CASE.label: facts})
    monkeypatch.setattr(found.runner, "call", call)
    counters = found.profile(candidate(), CASE)
    assert set(asked) == {"details"}
    return counters


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
    assert counters.source == PROFILER
    assert dict(counters.busy) == {"vector": 0.31, "scalar": 0.12, "mte2": 0.45, "mte3": 0.4}
    assert counters.block_dim == 40
    facts = on_an_npu.device.npu
    assert counters.dram_utilisation == pytest.approx(1600 / (20e-6 * facts.dram_bytes_per_s))
    timing = CaseTiming(CASE.label, "measured", 20.0, "eager", 40.0, 2.0, None, floor_us=1.0)
    seen = Seen(timing, Work(800, 800, 400), (), counters)
    shown = {name: (value, source) for name, value, source in evidence(seen, facts)}
    assert shown["loads (MTE2) busy"] == ("45 %", PROFILER)
    assert shown["programs side by side"] == ("40", PROFILER)
    assert "L2, L1 hit rate" not in shown
    assert Counters.from_json(outcomes.to_json(counters)) == counters


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
