"""Attention that is wrong in ways of its own: the judge rejects kernels of which one line is another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kernelgen import families, frontend, judge, render
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan, TableRow
from kernelgen.spec import load_spec

SPECS = Path(__file__).parents[2] / "specs"
CASES = {
    "attention": {"B": 1, "H": 2, "S": 20, "L": 40, "D": 16, "E": 16},
    "attention_causal": {"B": 1, "H": 2, "S": 40, "D": 16},
    "attention_window": {"B": 1, "H": 1, "S": 150, "D": 16},
    "attention_sinks": {"B": 1, "H": 2, "S": 20, "D": 16},
    "attention_varlen": {"M": 40, "N": 40, "H": 1, "D": 16, "P": 5},
}
MUTANTS = {
    "a wrong scale": ("attention_causal", "rsqrt(tl.cast(D, ", "rsqrt(tl.cast(D + 1, "),
    "no logarithm of e": ("attention", "scale_log2 = 1.4426950408889634 * ", "scale_log2 = 1.0 * "),
    "a mask one key too wide": ("attention_causal", "keys[None, :] > rows[:, None]", "keys[None, :] > rows[:, None] + 1"),
    "a window one key too wide": ("attention_window", ">= 128", "> 128"),
    "no last block": ("attention", "range(full_end, N, BLOCK_N)", "range(full_end, full_end, BLOCK_N)"),
    "a last block that is read beyond the keys": (
        "attention", 'tl.where(key_mask[None, :], scores, float("-inf"))', "scores + 0.0",
    ),
    "keys of another head": ("attention_causal", "+ batch_h * stride_kh", "+ (batch_h + 1) % H * stride_kh"),
    "values of another head": ("attention", "+ batch_h * stride_vh", "+ (batch_h + 1) % H * stride_vh"),
    "a maximum that corrects nothing": ("attention", "out = out * correction[:, None]", "out = out * 1.0"),
    "a sink of another head": ("attention_sinks", "batch_h * stride_sinks_h", "(batch_h + 1) % H * stride_sinks_h"),
    "a sink that is left out of the sum": ("attention_sinks", " + _exp(sinks - largest)", ""),
    "keys of the sequence before": ("attention_varlen", "(sequence - 1)", "(sequence - 2)"),
    "a key of the sequence after": ("attention_varlen", "keys[None, :] < key_end[:, None]", "keys[None, :] <= key_end[:, None]"),
}  # fmt: skip


def _judged(name: str, before: str, after: str, folder: Path) -> judge.CaseReport:
    as_on_a_gpu()
    spec = load_spec(SPECS / f"{name}.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    assert isinstance(plan, KernelPlan)
    family = families.family_of(plan)
    schedule = family.default("tiles").replace(BLOCK_M=16, BLOCK_N=16)
    plan = plan.with_table((TableRow((), schedule),))
    text = render.triton_source(plan)
    assert before in text, text
    kernel = _loaded(folder / "kernel.py", text.replace(before, after))
    baseline = _loaded(folder / "baseline.py", render.baseline_source(spec))
    declared = render._operator(plan)
    tensors = {
        kind: tuple(
            judge.Tensor(t["name"], t["shape"], t["dtype"], like=t["like"], rows=t["rows"], offsets=t["offsets"])
            for t in declared[kind]
        )
        for kind in ("inputs", "outputs")
    }
    operator = judge.Operator(
        name=name, kernel=getattr(kernel, name), baseline=getattr(baseline, name), reference=baseline.reference, **tensors,
        **{key: declared[key] for key in ("exact", "stored", "multiplied", "as_tf32", "any_order")},
    )  # fmt: skip
    case = judge.Case(CASES[name], {"T": "float16"})
    return judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=("normal",))


def _loaded(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{abs(hash(text))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_is_taken(name: str, tmp_path: Path) -> None:
    report = _judged(name, "def ", "def ", tmp_path)
    assert report.passed, report.message


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_rejected(mutant: str, tmp_path: Path) -> None:
    report = _judged(*MUTANTS[mutant], tmp_path)
    assert not report.passed
    assert "over the bound" in report.message
