"""`kernelgen analyze`: what an operator costs and becomes, before anything is generated."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import ROOT
from kernelgen.cli.new import load
from kernelgen.cli.terminal import Json, emit, note, table
from kernelgen.errors import SpecError, UsageError

if TYPE_CHECKING:
    from kernelgen.devices.facts import DeviceFacts
    from kernelgen.roofline import Analysis, Bound
    from kernelgen.spec.model import Case, OperatorSpec, SizeValue

Given = Annotated[str, typer.Argument(metavar="SPEC|FILE.py", help="A spec, or a Python file as for `import`.")]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="B=8,D=4096", help="Sizes by name; the rest as in the first performance case."),
]
Dtype = Annotated[str | None, typer.Option("--dtype", metavar="NAME", help="Only this dtype, such as bf16.")]
OnDevice = Annotated[
    str, typer.Option("--device", metavar="h200", help="GPU model to analyse for; it need not be present.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]

SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
HEAD = ("case", "read", "written", "FLOPs", "FLOP/byte", "bound by", "roofline", "begins with")


def analyze(
    given: Given,
    shape: Shape = None,
    dtype: Dtype = None,
    device: OnDevice = "h200",
    markdown: Markdown = False,
    json: Json = False,
) -> int:
    """Show an operator's bytes, FLOPs, bottleneck and kernels.

    Nothing is generated or measured, and no GPU is needed. The roofline time is a lower bound: max(bytes / peak
    bandwidth, FLOPs / peak rate), with the peaks of the data sheet. --shape can be repeated. A Python file is run, as
    `kernelgen import` runs it.
    """
    facts = _facts(device)
    spec = _spec(given)
    cases = _cases(spec, shape or [], dtype)
    from kernelgen import generation
    from kernelgen.roofline import analyse

    try:
        plan = generation.plan_of(spec, ROOT)
    except SpecError as error:
        if not given.endswith(".py"):
            raise
        # the places are of a spec that nobody has
        raise UsageError("\n".join(f"{given}: {mistake.message}" for mistake in error.mistakes)) from None
    found = analyse(plan, cases, facts)
    if json:
        emit(asdict(found))
    elif markdown:
        print(_markdown(found, facts))
    else:
        print(_text(found, facts))
    return 0


def _facts(name: str) -> DeviceFacts:
    from kernelgen.devices.facts import TABLE, by_arch, by_name, canonical

    found = by_arch(canonical(name)) or by_name(canonical(name))
    if found is None:
        raise UsageError(f"--device {name}: not in the table; there are {', '.join(facts.key for facts in TABLE)}")
    return found


def _spec(given: str) -> OperatorSpec:
    """A spec, or the one that a Python file becomes."""
    if not given.endswith(".py"):
        return load(given)
    from kernelgen.importer import import_file
    from kernelgen.spec import load_spec

    made = import_file(Path(given))
    for line in made.notes:
        note(f"note: {line}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{made.name}.yaml"
        path.write_text(made.text, encoding="utf-8")
        return load_spec(path)


def _cases(spec: OperatorSpec, shapes: list[str], dtype: str | None) -> tuple[Case, ...]:
    """The performance cases, or those of the sizes that were given. Raises UsageError for what no case can be."""
    from kernelgen.spec.cases import admitted
    from kernelgen.spec.model import Place

    cases = spec.performance
    if shapes:
        usual = dict(cases[0].sizes)
        sizes = [tuple({**usual, **_sizes(text, usual)}.items()) for text in shapes]
        cases, wrong = admitted(spec, [(Place(1, 1), one) for one in sizes], spec.dtype_bindings())
        if wrong:
            raise UsageError(f"--shape: {wrong[0][1]}")
    if dtype is not None:
        wanted = SHORT.get(dtype, dtype)
        known = sorted({kind for case in cases for _, kind in case.dtypes})
        cases = tuple(case for case in cases if wanted in {kind for _, kind in case.dtypes})
        if not cases:
            raise UsageError(f"--dtype {dtype}: {spec.name} takes {', '.join(known) or 'no dtype of choice'}")
    return cases


def _sizes(text: str, usual: dict[str, SizeValue]) -> dict[str, SizeValue]:
    """`B=8,D=4096`; `...=8x512` for several dimensions."""
    found: dict[str, SizeValue] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise UsageError(f"--shape {text}: {part!r} is not NAME=SIZE, such as D=4096")
        if name not in usual:
            near = get_close_matches(name, usual, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(usual) or 'none'}"
            raise UsageError(f"--shape {text}: no size {name}; {hint}")
        several = isinstance(usual[name], tuple)
        numbers = value.split("x") if several and value else [value] if not several else []
        if not all(number.isascii() and number.isdigit() for number in numbers):
            form = "sizes with x between them" if several else "a whole number"
            raise UsageError(f"--shape {text}: {name} must be {form}, not {value!r}")
        found[name] = tuple(map(int, numbers)) if several else int(numbers[0])
    return found


def _row(bound: Bound) -> tuple[str, ...]:
    return (
        bound.case, _bytes(bound.bytes_read), _bytes(bound.bytes_written), f"{bound.flops:.3g}",
        f"{bound.intensity:.2f} of {bound.ridge:.0f}", bound.bottleneck,
        f"{'up to ' * bound.at_most}{bound.roofline_us:.2f} µs",
        bound.schedule or "-",
    )  # fmt: skip


def _bytes(count: int) -> str:
    from kernelgen.schedule.problem import bytes_text

    return bytes_text(count)


def _text(found: Analysis, facts: DeviceFacts) -> str:
    lines = [f"{found.operator}: {found.summary}", f"on {_peaks(facts)}; nothing is measured", ""]
    lines += [table([HEAD, *map(_row, found.bounds)]), "", "would become"]
    for i, stage in enumerate(found.stages, start=1):
        share = f" ({stage.bytes_share:.0%} of the bytes, {stage.flops_share:.0%} of the operations)"
        lines += [f"  {i}. {stage.computes}: {stage.how}{share if len(found.stages) > 1 else ''}", f"     {stage.why}"]
    return "\n".join([*lines, *(f"  note: {line}" for line in found.notes)])


def _markdown(found: Analysis, facts: DeviceFacts) -> str:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"# {found.operator}", "", found.summary, "", f"On {_peaks(facts)}. Nothing is measured.", ""]
    lines += [row(HEAD), "|" + "---|" * len(HEAD), *(row(_row(bound)) for bound in found.bounds), ""]
    lines += [f"{i}. `{s.computes}`: {s.how}: {s.why}" for i, s in enumerate(found.stages, start=1)]
    return "\n".join([*lines, *(["", *(f"- {line}" for line in found.notes)] if found.notes else [])])


def _peaks(facts: DeviceFacts) -> str:
    return (
        f"{facts.name}: {facts.dram_bytes_per_s / 1e12:.2f} TB/s, {facts.fp32_flops / 1e12:.0f} TFLOP/s in float32, "
        f"{facts.fp16_tensor_flops / 1e12:.0f} on the matrix units in float16"
    )
