"""The command lines of the generated test files, what they print, and the judge as a folder of its own."""

import ast
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import scaled_add_accuracy
import softmax_accuracy
import torch

from kernelgen import judge
from kernelgen.judge import device as devices
from kernelgen.judge import main, report

FOLDER = Path(judge.__file__).parent
SOFTMAX, CASES = softmax_accuracy.OPERATOR, softmax_accuracy.CASES
COMPARISON = judge.Comparison(1.2, 1.19, 1.21, "faster", 120.0, 100.0, 10, 0.004, a_call_us=130.0, b_call_us=110.0)


def wrong_operator():
    return judge.Operator(**{**vars(SOFTMAX), "kernel": torch.zeros_like})


def accuracy(*argv, operator=SOFTMAX, cases=CASES):
    return judge.accuracy_main(operator, cases, argv)


def test_a_line_for_every_case(capsys):
    assert accuracy("--only", "float16", "--skip", "hidden") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Testing softmax accuracy on ")
    assert lines[1].startswith("✓ [7, 3] D=129 float16 ")
    assert re.search(
        r"  max error \d\.\d\de-\d\d, at most \d+(\.\d)? % of its bound \(eager \d\.\d\de-\d\d\)$", lines[1]
    )
    if devices.find() == "cpu":
        assert lines[2].startswith("✓ [2048, 16] D=4096 float16  max error")
        assert "(run as [" in lines[2]
        assert lines[3] == "2 passed, 0 failed"


def test_a_failure_is_printed_with_its_reason_and_the_exit_code_is_1(capsys):
    assert accuracy("--only", "float32", "--no-hidden", operator=wrong_operator()) == 1
    out = capsys.readouterr().out
    assert "✗ [7, 3] D=129 float32  out: error" in out
    assert "0 passed, 1 failed" in out


@pytest.mark.parametrize("argv", [["--only", "zzz"], ["--skip", "["], ["--only", "float32", "--skip=float32"]])
@pytest.mark.parametrize("test", [judge.accuracy_main, judge.performance_main])
def test_that_no_case_is_left_is_a_usage_error_of_one_line(test, argv, capsys):
    assert test(SOFTMAX, CASES, [*argv, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"error: {argv[0]} ")
    assert "no case is left; the cases are [7, 3] D=129 float16; " in captured.err


def test_a_run_that_leaves_everything_out_fails(capsys, monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 0)
    assert accuracy("--no-hidden", "--skip", "2048") == 1
    out = capsys.readouterr().out
    assert "3 left out" in out
    assert "Nothing was tested: [7, 3] D=129 float16: needs 0.00 GiB, 0.00 GiB free" in out


def test_a_run_that_only_saw_refusals_fails(capsys):
    """Baseline and kernel agree on what they refuse; that they compute the same is not known."""

    def refuse(x):
        raise ValueError("no")

    refusing = judge.Operator(**{**vars(SOFTMAX), "kernel": refuse, "baseline": refuse})
    hidden = [judge.Case(**{**vars(CASES[0]), "hidden": True})]
    assert accuracy("--no-hidden", operator=refusing, cases=hidden) == 1
    assert "Nothing was tested: " in capsys.readouterr().out


def test_json_is_one_object_on_stdout(capsys):
    assert accuracy("--json", "--only", "[7, 3]", "--seed", "5") == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert "Testing softmax" in captured.err
    assert (data["operator"], data["seed"], data["exit_code"]) == ("softmax", 5, 0)
    first = data["cases"][0]
    assert judge.Case.from_json(first["case"]) == CASES[0]
    assert first["passed"] is True
    assert first["trials"][0]["distribution"] == "normal"


def test_a_seed_repeats_the_output(capsys):
    outputs = []
    for _ in range(2):
        accuracy("--seed", "11", "--only", "[7, 3]", "--no-hidden")
        outputs.append(capsys.readouterr().out.splitlines()[1:-1])
    assert outputs[0] == outputs[1]


def test_verbose_names_the_worst_element_and_the_seeds(capsys):
    accuracy("--verbose", "--only", "float32", "--no-hidden")
    out = capsys.readouterr().out
    assert "worst out[" in out
    assert "expected" in out
    assert "repeat with --seed" in out


@pytest.mark.parametrize("argv", [["--seeds", "0"], ["--seeds", "x"], ["--nonsense"], ["--only"]])
def test_bad_arguments_are_usage_errors(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        accuracy(*argv)
    assert caught.value.code == 2
    assert "softmax_accuracy.py" in capsys.readouterr().err


def test_more_seeds_make_more_trials():
    case = CASES[0]
    assert len(judge.accuracy_case(SOFTMAX, case, seeds=8).trials) == 8


def test_a_lost_device_ends_the_run(monkeypatch, capsys):
    monkeypatch.setattr(devices, "is_lost", lambda device: True)

    def crash(x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    broken = judge.Operator(**{**vars(SOFTMAX), "kernel": crash})
    assert accuracy("--skip", "2048", operator=broken) == 1
    out = capsys.readouterr().out
    assert "illegal memory access" in out
    assert "not run" in out


def test_a_device_that_pytorch_loses_ends_the_run_too(monkeypatch, capsys):
    """Of a hidden case that the reference cannot compute nothing is wrong, and yet nothing can run after it."""
    monkeypatch.setattr(devices, "is_lost", lambda device: True)

    def crash(x):
        raise RuntimeError("CUDA error: misaligned address")

    broken = judge.Operator(**{**vars(SOFTMAX), "baseline": crash})
    assert accuracy(operator=broken, cases=CASES[:0] + tuple(replace(c, hidden=True) for c in CASES[:2])) == 1
    out = capsys.readouterr().out
    assert "0 failed, 1 left out, " in out
    assert "not run" in out


def no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "find", lambda: "cpu")


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    no_gpu(monkeypatch)
    assert judge.performance_main(SOFTMAX, CASES, []) == 0
    assert "not measured: no GPU" in capsys.readouterr().out
    assert judge.performance_main(SOFTMAX, CASES, ["--require-gpu"]) == 3
    assert judge.performance_main(SOFTMAX, CASES, ["--min-speedup", "0.5"]) == 3
    capsys.readouterr()
    assert judge.performance_main(SOFTMAX, CASES, ["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] is False
    assert "no GPU" in judge.performance_case(SOFTMAX, CASES[0]).left_out


@pytest.fixture
def a_gpu(monkeypatch):
    """A device on which every comparison has the same result."""
    import kernelgen.judge.cuda as cuda

    monkeypatch.setattr(devices, "find", lambda: "cuda")
    monkeypatch.setattr(devices, "describe", lambda: "a GPU")
    monkeypatch.setattr(cuda, "bandwidths", lambda: (4e12, 3e12))

    def measure(operator, case, against, **_):
        if "bfloat16" in case.label:
            return judge.PerformanceReport(case, left_out="needs 9 GiB, 1 GiB free")
        return judge.PerformanceReport(case, dict.fromkeys(against, COMPARISON), 80.0, 10**6)

    monkeypatch.setattr(main, "performance_case", measure)


@pytest.mark.usefixtures("a_gpu")
def test_performance_lines_and_the_geometric_mean(capsys):
    assert judge.performance_main(SOFTMAX, CASES, ["--verbose"]) == 0
    out = capsys.readouterr().out
    assert "eager: 10 blocks" in out
    assert "80% of the floor (80.00 µs)  call 110.0 µs" in out
    assert "eager            120.0 µs  1.200x [1.190, 1.210]  faster  call 130.0 µs" in out
    assert "left out: needs 9 GiB" in out
    assert "Geometric mean of the speedup over eager: 1.200x [1.194, 1.206] (3 cases) faster" in out
    assert "Geometric mean of the speedup over compile" in out


@pytest.mark.usefixtures("a_gpu")
def test_a_speedup_below_what_was_asked_for(capsys):
    assert judge.performance_main(SOFTMAX, CASES, ["--min-speedup", "1.1"]) == 0
    assert judge.performance_main(SOFTMAX, CASES, ["--min-speedup", "1.3"]) == 1
    assert "below the speedup of 1.3x" in capsys.readouterr().out


@pytest.mark.usefixtures("a_gpu")
def test_a_speedup_that_is_no_number_is_not_reached(monkeypatch, capsys):
    comparison = judge.Comparison(**{**vars(COMPARISON), "speedup": math.nan})
    monkeypatch.setattr(
        main, "performance_case", lambda *_, **__: judge.PerformanceReport(CASES[0], {"eager": comparison})
    )
    assert judge.performance_main(SOFTMAX, CASES[:1], ["--min-speedup", "0.5"]) == 1


@pytest.mark.parametrize("wanted", ["nan", "inf", "0", "-1", "x"])
def test_only_a_number_above_0_can_be_asked_for(wanted, capsys):
    with pytest.raises(SystemExit) as caught:
        judge.performance_main(SOFTMAX, CASES, ["--min-speedup", wanted])
    assert caught.value.code == 2


@pytest.mark.usefixtures("a_gpu")
def test_performance_json(capsys):
    assert judge.performance_main(SOFTMAX, CASES, ["--json", "--against", "eager"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["measured"] is True
    assert data["geometric_means"]["eager"]["estimate"] == pytest.approx(1.2)
    assert data["cases"][0]["comparisons"]["eager"]["verdict"] == "faster"


def test_numbers_that_json_lacks_become_text():
    assert report.to_json({"a": math.nan, "b": (1, math.inf)}) == {"a": "nan", "b": [1, "inf"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.234, "   1.234 µs"), (171.62, "   171.6 µs"), (2345.6, "    2346 µs"), (45678.0, "   45.68 ms")],
)
def test_times_have_four_digits(value, text):
    assert report.microseconds(value) == text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import scaled_add_triton; judge.prepare()",
            "scaled_add_triton.scaled_add_kernel was decorated with triton.jit",
        ),
        ("judge.device.find = lambda: 'cuda'; judge.prepare()", "TRITON_INTERPRET is set where a device is"),
        ("import os; os.environ['TRITON_INTERPRET'] = '1'; import triton; judge.prepare(); print('fine')", ""),
    ],
)
def test_whether_kernels_are_interpreted_is_decided_once(code, said):
    """What was decorated before the interpreter was selected is compiled: half of a kernel would be."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"TRITON_INTERPRET": "1"} if "'cuda'" in code else {}
    env |= {"PYTHONPATH": str(Path(__file__).parent / "example")}
    command = [sys.executable, "-c", f"from kernelgen import judge; {code}"]
    done = subprocess.run(command, env=env, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert (said in done.stderr and done.returncode == 1) if said else done.stdout == "fine\n", done.stderr


def test_kernels_are_interpreted_where_a_reference_was_traced_before():
    """As in a notebook: torch.export imports Triton, whose own functions (tl.sum, tl.max) are compiled then."""
    traced = "import torch; torch.export.export(torch.nn.ReLU(), (torch.ones(2),), strict=False)"
    code = f"{traced}; import triton.language; import softmax_accuracy as s; from kernelgen import judge"
    code += "; sys.exit(judge.accuracy_main(s.OPERATOR, s.CASES[:1], ['--no-hidden']))"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"PYTHONPATH": os.pathsep.join([str(FOLDER.parents[1]), str(Path(__file__).parent / "example")])}
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed" in done.stdout


def test_assert_measured_without_a_gpu_is_a_skip(monkeypatch):
    import unittest

    no_gpu(monkeypatch)
    with pytest.raises(unittest.SkipTest, match="no GPU"):
        judge.assert_measured(SOFTMAX, CASES[0])


def test_inputs_for_timing_are_fresh_each_time():
    make = judge.make_inputs(scaled_add_accuracy.OPERATOR, scaled_add_accuracy.CASES[0], seed=1, device="cpu")
    first, second = make(), make()
    assert [x.shape for x in first] == [(7, 3, 129), (129,), (129,)]
    assert not torch.equal(first[0], second[0])
    assert first[0].data_ptr() != second[0].data_ptr()


def test_the_judge_imports_nothing_but_torch_triton_and_the_standard_library():
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_the_folder_works_under_another_name(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "travelled", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    copy = importlib.import_module("travelled")
    operator = copy.Operator(
        **{
            **vars(SOFTMAX),
            "inputs": (copy.Tensor("x", ("...", "D"), "T", rows=0),),
            "outputs": (copy.Tensor("out", ("...", "D"), "T", rows=0),),
        }
    )
    assert copy.accuracy_case(operator, copy.Case({"...": (2,), "D": 5}, {"T": "float16"})).passed
    assert copy.__all__ == judge.__all__
