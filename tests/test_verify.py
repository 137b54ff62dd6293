"""What `new` says that it has seen of a kernel: only what ran, and a fault of ours before anything is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import contents, kernelgen

from kernelgen import families, frontend, generation, lint, render, verify
from kernelgen.cli import main
from kernelgen.devices import find
from kernelgen.families.matmul import schedules
from kernelgen.outcomes import Status
from kernelgen.plan import Schedule
from kernelgen.spec import load_spec, parse_spec, shipped_specs
from kernelgen.spec.model import Case, OperatorSpec, Place, TensorSpec
from kernelgen.worker.client import Failed

SPEC = """\
name: op
inputs: [{name: x, shape: [M, D], dtype: T}]
outputs: [{name: out, shape: [M, D], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def op(x):
      return x * 2 + 1
accuracy: {shapes: [{M: 3, D: 129}, {M: 700, D: 40}]}
performance: {shapes: [{M: 256, D: 512}]}
"""

SOUND = (
    "def f(x):\n    if x:\n        a = 1\n    return a\n",
    "def f(x):\n    try:\n        a = 1\n    except ValueError as e:\n        raise e\n    else:\n        a += 1\n    return a\n",
    "def f(x):\n    return [b for a, b in x if (c := a)], c\n",
    "def f(x):\n    g = lambda y: h(y)\n    h = len\n    return g(x)\n",
    "class A:\n    def int(self): ...\n    def f(self) -> int: ...\n",
    "def f(x):\n    match x:\n        case [a, *b] if a:\n            return b\n",
)
WRONG = {
    "def f(:\n": "1: not Python: ",
    "def f(x):\n    return y\n": "2: 'y' is not defined",
    "def f(x):\n    z = x + at\n    at = 1\n    return z\n": "2: 'at' is used before it is assigned",
    "def f(x):\n    if x:\n        at = 1\n    else:\n        x = at\n": "5: 'at' is used before it is assigned",
    "def f(x):\n    n += x\n": "2: 'n' is used before it is assigned",
    "A = B\nB = 1\n": "1: 'B' is used before it is assigned",
    "def f(x):\n    return [a for a in x if b]\n": "2: 'b' is not defined",
}


@pytest.mark.parametrize("source", SOUND)
def test_what_is_right_is_never_called_wrong(source: str) -> None:
    assert lint.findings(source) == []


@pytest.mark.parametrize("source", WRONG)
def test_a_name_without_a_value_is_found(source: str) -> None:
    (found,) = lint.findings(source)
    assert found.startswith(WRONG[source])


def broken(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Generate another kernel than was meant."""
    real = render.quartet

    def quartet(plan: object) -> dict[str, str]:
        files = real(plan)  # type: ignore[arg-type]
        assert old in files["op_triton.py"]
        return {**files, "op_triton.py": files["op_triton.py"].replace(old, new)}

    monkeypatch.setattr(render, "quartet", quartet)


def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spec: str = SPEC
) -> str:
    (tmp_path / "op.yaml").write_text(spec)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "op"]) == 1
    assert list(contents(tmp_path)) == ["op.yaml"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("spec: ")]
    assert "nothing was written. This is a fault of kernelgen" in line
    return line


def test_a_kernel_with_a_name_that_has_no_value_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELGEN_VERIFY", "no")
    broken(monkeypatch, "* 2", "* two")
    line = refused(tmp_path, monkeypatch, capsys)
    assert line.startswith("error: op.yaml: the generated op_triton.py is wrong at line ")
    assert "'two' is not defined" in line
    assert main(["new", "op", "--force"]) == 0
    assert "* two" in (tmp_path / "operators" / "op" / "op_triton.py").read_text()


@pytest.mark.parametrize(
    ("new", "said"),
    [("* 3", "op [M=3 D=129 float32]: out: error "), ("* tl.no_such(x)", "op [M=3 D=129 float32]: ")],
    ids=["wrong", "fails"],
)
def test_a_kernel_that_is_wrong_is_not_written(
    new: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, "* 2", new)
    monkeypatch.setenv("KERNELGEN_VERIFY", "yes")
    assert f"error: op.yaml: the generated kernel is wrong: {said}" in refused(tmp_path, monkeypatch, capsys)


NO_WINDOW = """\
name: op
inputs: [{name: x, shape: [B, C, H], dtype: T}, {name: w, shape: [J, C, 3], dtype: T}]
outputs: [{name: out, shape: [B, J, H], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def op(x, w):
      return F.conv1d(x, w, padding=1)
accuracy:
  shapes:
    - {B: 2, C: 3, H: 5, J: 4}
    - {B: 1, C: 1, H: 0, J: 1}
"""


def test_sizes_that_the_reference_does_not_take_are_a_mistake_of_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELGEN_VERIFY", "yes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "op.yaml").write_text(NO_WINDOW)
    assert main(["new", "op"]) == 2
    said = capsys.readouterr().err
    assert "op.yaml:11:7: B=1 C=1 H=0 J=1 float32: the reference cannot be computed: Calculated padded" in said
    assert not (tmp_path / "operators").exists()
    (tmp_path / "op.yaml").write_text(NO_WINDOW.replace("H: 0", "H: 2"))
    assert main(["new", "op"]) == 0


RESIDUAL = """\
name: op
inputs: [{name: x, shape: [M, K], dtype: T}, {name: w, shape: [N, K], dtype: T}, {name: r, shape: [M, N], dtype: T}]
outputs: [{name: out, shape: [M, N], dtype: T}]
dtypes: {T: [float16]}
reference: |
  def op(x, w, r):
      return r + F.linear(x, w)
accuracy: {shapes: [{M: 3, N: 9, K: 129}]}
performance: {shapes: [{M: 8192, N: 4096, K: 4096}]}
"""


def test_a_schedule_that_the_device_has_no_room_for_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELGEN_VERIFY", "yes")
    monkeypatch.setattr(schedules, "SHARED_BYTES", 1 << 20)  # the first table believes in more than there is
    monkeypatch.setattr(schedules, "_many_rows", lambda body: schedules._fitting(body, schedules._PERSISTENT))
    monkeypatch.setattr(verify, "LIMIT_S", 120.0)
    monkeypatch.setattr(verify, "ENOUGH_S", 120.0)
    line = refused(tmp_path, monkeypatch, capsys, RESIDUAL)
    assert "op [M=8192 K=4096 N=4096 float16], line 9 of SCHEDULES (2 itemsize: boxes " in line
    assert "persistent=True" in line
    assert "LaunchError: op_boxes_persistent_kernel with 8 warps" in line
    assert "245784 bytes of shared memory fits no SM of NVIDIA H200 (at most 232448 bytes a program)" in line


def test_tiles_that_the_epilogue_loads_are_counted() -> None:
    spec = parse_spec(RESIDUAL, "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    (case,) = spec.performance
    staying = Schedule.make(
        "boxes", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3, persistent=True
    )
    assert "shared memory" in str(families.legal(plan, staying, case))
    assert families.legal(plan, staying.replace(persistent=False, num_stages=4), case) is None
    cases = verify.covering(plan)  # the last line serves what has more bytes an element, which no dtype of this has
    assert {families.row_of(plan, case) for case in cases} == set(range(len(plan.table) - 1))
    assert all(families.has_room(plan, case) for case in cases)


def test_a_tile_that_is_stored_is_as_wide_as_its_dtype() -> None:
    """Half precision multiplied and kept in float32: 278,552 bytes for sm_90, where half of it would do."""
    made = OperatorSpec(
        "op", "", (TensorSpec("x", ("M", "K"), "T"), TensorSpec("w", ("K", "N"), "T")),
        (TensorSpec("out", ("M", "N"), "float32"),), (("T", ("float16", "bfloat16")),), (),
        "def op(x, w):\n    return x.float() @ w.float()\n", Place(1, 1), (), (),
    )  # fmt: skip
    plan = families.lower(made, *frontend.trace(made))
    case = Case((("M", 8192), ("K", 4096), ("N", 4096)), (("T", "float16"),))
    assert all(families.legal(plan, row.schedule, case) is None for row in plan.table if row.schedule.get("persistent"))
    staying = Schedule.make(
        "boxes", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3, persistent=True
    )
    assert "shared memory" in str(families.legal(plan, staying, case))


def test_new_says_what_ran_and_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "op.yaml").write_text(SPEC)
    done = kernelgen("new", "op", "--json", cwd=tmp_path, KERNELGEN_VERIFY="yes")
    said = json.loads(done.stdout)["verified"]
    assert said == {
        "ran": ["op [M=3 D=129 float32]"], "compiled": ["op (1 of 1 schedules)"], "arch": "sm_90",
        "left_out": [], "faults": [], "refused": [],
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["new", "op", "--no-verify"]) == 0
    assert "not run, not compiled\n" in capsys.readouterr().out


def test_what_has_no_time_is_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def late(self: object, op: str, args: object, limit_s: float) -> object:
        raise Failed(Status.TIMEOUT, "late")

    monkeypatch.setattr(verify.Worker, "start", lambda self: None)
    monkeypatch.setattr(verify.Worker, "call", late)
    seen: list[verify.Verified] = []
    with verify.verifying(find("cpu")) as look:
        generation.new(parse_spec(SPEC, "op.yaml"), tmp_path, look=lambda made: seen.append(look(made)))
    (found,) = seen
    assert (found.ran, found.compiled, found.faults) == ((), (), ())
    assert [line.partition(":")[0] for line in found.left_out] == ["not run", "not compiled"]
    assert all(f"{verify.LIMIT_S:g} s; use `kernelgen check op`" in line for line in found.left_out)


@pytest.mark.parametrize(("device", "role"), [(("cpu", "sm_90"), "verify"), (("npu", "ascend910b3"), "interpret")])
def test_only_what_compiles_loads_what_compiling_takes(
    monkeypatch: pytest.MonkeyPatch, device: tuple[str, str], role: str
) -> None:
    """Triton beside an NPU may lack it, and a case is run all the same."""
    started: list[str] = []

    def start(self: verify.Worker) -> None:
        started.append(self._role)

    monkeypatch.setattr(verify.Worker, "start", start)
    with verify.verifying(find(*device)):
        pass
    assert started == [role]


def test_of_every_variant_the_largest_blocks_are_compiled_and_more_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[str] = []

    def call(self: object, op: str, args: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if op == "compile":
            compiled.extend(case["label"] for case in args["cases"])
        return {"left_out": "", "passed": True, "refused": False}

    monkeypatch.setattr(verify.Worker, "start", lambda self: None)
    monkeypatch.setattr(verify.Worker, "call", call)
    spec = parse_spec(SPEC.replace("x * 2 + 1", "torch.softmax(x, -1)"), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    lines = [plan.table[families.row_of(plan, case)].schedule for case in verify.covering(plan)]
    assert len({line.variant for line in lines}) < len(lines)
    for enough, count in ((0.0, len({line.variant for line in lines})), (120.0, len(lines))):
        compiled.clear()
        monkeypatch.setattr(verify, "ENOUGH_S", enough)
        with verify.verifying(find("cpu")) as look:
            seen: list[verify.Verified] = []
            generation.new(spec, tmp_path, look=lambda made, look=look, seen=seen: seen.append(look(made)))  # type: ignore[misc]
        assert len(compiled) == count
        assert seen[0].compiled == (f"op ({count} of {len(plan.table)} schedules)",)
        assert len(seen[0].left_out) == (count < len(lines))


def test_of_a_line_that_serves_less_than_one_element_no_case_is_made() -> None:
    """Its size was 0, by which the next limit was divided."""
    spec = parse_spec(SPEC.replace("x * 2 + 1", "torch.softmax(x, -1)"), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    reached, none = (replace(plan.table[0], upto=(("row_bytes", bytes_),)) for bytes_ in (4, 2))
    assert [dict(case.sizes)["D"] for case in verify._at_limits(plan, reached, spec.performance)] == [1, 2]
    assert not list(verify._at_limits(plan, none, spec.performance))


def test_a_line_beyond_the_limits_of_the_lines_before_it_is_compiled_too() -> None:
    """Rows of more products than a spec lists: the kernel that serves them was not compiled before somebody had them."""
    spec = load_spec(next(path for path in shipped_specs() if path.stem == "linear_softmax"))
    plan = families.lower(spec, *frontend.trace(spec))
    few = replace(spec, performance=spec.performance[:0])
    reached = {families.row_of(plan, case) for case in verify.covering(replace(plan, spec=few))}
    assert len(plan.table) > 2
    assert reached == set(range(len(plan.table)))
