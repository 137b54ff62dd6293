"""Random small references, as specs, and what runs them through the compiler and the judge."""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import random
import shutil
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from side_by_side import run_side_by_side

from kernelgen import families, frontend, judge, render
from kernelgen.errors import SpecError
from kernelgen.families.kernel import body_of
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.writer import multiplies_float8
from kernelgen.plan import Plan, Schedule, TableRow
from kernelgen.spec.model import Case, Constraint, OperatorSpec, Place, Size, TensorSpec
from kernelgen.spec.sizes import check_size, is_expression

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

FLOATS = ("float16", "float32")
DISTRIBUTIONS = ("normal", "specials")
LAYOUTS: tuple[Any, ...] = ("contiguous", "transposed", "sliced", "offset", "expanded")
SEARCHED = 2
"""Schedules of a search's kind that a reference is tried with beside the others."""
_JUDGED = ("exact", "stored", "multiplied", "as_tf32", "any_order")
_FOLDER = Path(tempfile.mkdtemp(prefix="kernelgen-compiler-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_NUMBER = itertools.count()


@dataclass(frozen=True)
class Sample:
    """A reference with what declares it, and the sizes that it is tried at."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    lines: tuple[str, ...]
    sizes: tuple[dict[str, int | tuple[int, ...]], ...]
    dtypes: tuple[tuple[str, tuple[str, ...]], ...] = (("T", FLOATS),)
    constraints: tuple[str, ...] = field(default=())
    deterministic: bool = True
    precision: str | None = None
    """How float32 is multiplied, where a kernel multiplies any."""

    def source(self) -> str:
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def op({', '.join(t.name for t in self.inputs)}):\n{body}"

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            "op",
            "A random operator.",
            self.inputs,
            self.outputs,
            self.dtypes,
            tuple(Constraint(c) for c in self.constraints),
            self.source(),
            Place(1, 1),
            (),
            (),
            deterministic=self.deterministic,
            precision=self.precision,
        )


def tensor(name: str, shape: str, dtype: str = "T", role: Any = "data", below: str | None = None) -> TensorSpec:
    """`tensor("x", "... D H-1")`: sizes separated by blanks, numbers as numbers."""
    entries = (check_size(s) if is_expression(s) else s for s in shape.split())
    sizes: tuple[Size, ...] = tuple(int(s) if s.isdigit() else s for s in entries)
    return TensorSpec(name, sizes, dtype, role, below=below)


def sample(lines: str, inputs: dict[str, str], outputs: dict[str, str], *sizes: dict[str, Any], **more: Any) -> Sample:
    """A reference written out: tensors as "shape", "shape: dtype" or "shape: dtype < size"."""

    def declared(entries: dict[str, str]) -> tuple[TensorSpec, ...]:
        split = [(name, *map(str.strip, text.partition(":")[::2])) for name, text in entries.items()]
        limited = [(name, shape, *map(str.strip, dtype.partition("<")[::2])) for name, shape, dtype in split]
        return tuple(tensor(name, shape, dtype or "T", below=below or None) for name, shape, dtype, below in limited)

    return Sample(declared(inputs), declared(outputs), tuple(lines.splitlines()), sizes, **more)


def plan_of(spec: OperatorSpec) -> Plan:
    graph, notes = frontend.trace(spec)
    return families.lower(spec, graph, notes)


def schedules(plan: Plan) -> list[Schedule]:
    """Every variant with blocks so small that small shapes take several, once plain and once with every structure; rows
    are divided into two parts of several blocks and into four, of which some are empty, windows also have several columns
    a lane and ask for their lines rows before."""
    small = {"BLOCK_SIZE": 64, "BLOCK_SIZE_M": 2, "BLOCK_SIZE_N": 16, "SPLITS": 2}
    body = body_of(plan)
    if isinstance(body, ProductBody):
        small |= {"BLOCK_M": 16, "BLOCK_N": body.width if reduces(body) else 16, "GROUP_M": 2}
        small |= {"BLOCK_K": 32 if multiplies_float8(body) else 16}
        small |= {"BLOCK_D": 2, "BLOCK_H": 2, "BLOCK_W": 4}
    found = []
    for variant in families.family_of(plan).variants(body):
        default = families.family_of(plan).default(variant)
        plain = default.replace(**{n: v for n, v in small.items() if n in dict(default.values)})
        alone = plan.with_table((TableRow((), plain),))
        structure = [p for p in families.space(alone, 0, ()) if p.kind == "structure" and p.choices[1:]]
        changed = {p.name: next(c for c in p.choices if c != plain[p.name]) for p in structure}
        changed |= {"SPLITS": 4} if "SPLITS" in dict(plain.values) else {}
        lanes = {"accesses": "wide", "lines": "ahead"} if {"lane_columns", "accesses"} <= changed.keys() else {}
        early = (
            {"lines": "ahead", "ROW_TILES": 4, "LINES_AHEAD": changed.pop("LINES_AHEAD")}
            if "LINES_AHEAD" in changed
            else {}
        )
        found += [plain, plain.replace(**changed | ({"lane_columns": 1} if lanes else {}))]
        found += [plain.replace(**changed | lanes)] if lanes else []
        found += [plain.replace(**changed | early | ({**lanes, "lane_columns": 8} if lanes else {}))] if early else []
    return found


def searched(plan: Plan, found: Sample, order: random.Random, count: int) -> list[Schedule]:
    """Schedules that a search may try: where it sets out from, with values at random, of which those that are legal."""
    bindings = found.spec().dtype_bindings()
    cases = [Case(tuple(sizes.items()), binding) for sizes in found.sizes for binding in bindings]
    starts, refused = families.variants(plan, cases), families.legality(plan, cases)
    tried = []
    for _ in range(8 * count):
        start = order.choice(starts)
        parameters = families.space(plan.with_table((TableRow((), start),)), 0, cases)
        tried.append(start.replace(**{p.name: order.choice(p.choices) for p in parameters}))
    return [schedule for schedule in dict.fromkeys(tried) if refused(schedule) is None][:count]


def load(text: str, *, together: bool = True) -> ModuleType:
    """Generated code as a module; Triton reads its source from the file. `together`: programs may wait for one another in
    the interpreter too."""
    path = _FOLDER / f"generated_{next(_NUMBER)}.py"
    path.write_text(text, encoding="utf-8")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    if together and hasattr(module, "num_waiting") and not torch.cuda.is_available():
        run_side_by_side(module)
    return module


def failures(found: Sample, *, thorough: bool = True, most: int | None = None, variant: str | None = None) -> list[str]:
    """What the judge has against the kernels of a sample. Not thorough: every schedule on one case, all of them in an
    order that the reference's text decides, so that different ones meet different layouts, dtypes and special values.
    `most`: of as many schedules, which that order chooses too, beside some that a search may try. `variant`: of one variant's alone."""
    spec, plan = _planned(found)
    baseline = load(render.baseline_source(spec))
    cases = list(itertools.product(found.sizes, spec.dtype_bindings(), LAYOUTS, DISTRIBUTIONS))
    order = random.Random(found.source())
    order.shuffle(cases)
    picked = itertools.repeat(None) if thorough else itertools.cycle(cases)
    said = []
    tried = [schedule for schedule in schedules(plan) if variant in (None, schedule.variant)]
    assert tried
    more = [] if thorough else searched(plan, found, order, SEARCHED)
    for schedule in [*order.sample(tried, min(len(tried), most or len(tried))), *more]:
        text = render.triton_source(plan.with_table((TableRow((), schedule),)))
        operator = judge.Operator(
            name="op", kernel=load(text).op, baseline=baseline.op, reference=baseline.reference,
            **_tensors(plan), **{key: render._operator(plan)[key] for key in _JUDGED},
        )  # fmt: skip
        one = next(picked)
        for case in [one] if one else itertools.product(found.sizes, spec.dtype_bindings(), LAYOUTS[:1], DISTRIBUTIONS):
            report = _judged(operator, *case)
            if not report.passed or report.left_out:
                said.append(f"{schedule} | {report.case.label}: {report.message}{report.left_out}\n{text}")
                break
    return said


def _planned(found: Sample) -> tuple[OperatorSpec, Plan]:
    """The spec and its plan, without a precision where no kernel multiplies float32."""
    spec = found.spec()
    try:
        return spec, plan_of(spec)
    except SpecError as error:
        if "precision says" not in str(error):
            raise
    return _planned(replace(found, precision=None))


def _judged(operator: judge.Operator, sizes: Any, binding: Any, layout: Any, distribution: str) -> judge.CaseReport:
    case = judge.Case(sizes, dict(binding), layout=layout, hidden=layout != "contiguous")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on a variance of one element
        return judge.accuracy_case(operator, case, seed=1, seeds=1, distributions=(distribution,))


def _tensors(plan: Plan) -> dict[str, tuple[judge.Tensor, ...]]:
    declared = render._operator(plan)
    return {
        kind: tuple(
            judge.Tensor(
                t["name"],
                t["shape"],
                t["dtype"],
                like=t["like"],
                rows=t["rows"],
                below=t["below"],
                offsets=t["offsets"],
                into=t["into"],
                number=t["number"],
            )
            for t in declared[kind]
        )
        for kind in ("inputs", "outputs")
    }
