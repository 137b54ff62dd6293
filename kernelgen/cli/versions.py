"""`kernelgen compare` and `restore`: the versions of a kernel, and any two kernels of one interface, side by side."""

from __future__ import annotations

import ast
import re
import tempfile
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli.names import LOGS, ROOT, find_quartet, quartets, root_of
from kernelgen.cli.new import load
from kernelgen.cli.terminal import Arch, DeviceName, Force, Json, emit, note, table
from kernelgen.errors import UsageError, WrongOrSlowError
from kernelgen.files import read_text, write_atomic
from kernelgen.outcomes import Evaluation, Status, to_json
from kernelgen.settings import resolve

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.spec.model import OperatorSpec

VERSION = re.compile(r"v\d+\.\d+")


@dataclass(frozen=True)
class Side:
    """One of two kernels."""

    said: str
    """As the user named it."""
    operator: str
    text: str


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="An operator, NAME@v1.2, or a file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same; v1.2 alone means that version of A's operator.")],
    diff: Annotated[bool, typer.Option("--diff", help="Also print the diff.")] = False,
    device: DeviceName = None,
    arch: Arch = None,
    json: Json = False,
) -> int:
    """Compare two kernels: are both right, and which is faster?

    A and B are versions, files or operators with the same inputs and outputs. On a GPU they are timed in interleaved
    pairs; without one their times are predicted. Exit code 1 if one of them is wrong.
    """
    settings = resolve({"device": device, "arch": arch})
    from kernelgen.devices import find

    here = find(settings.device, settings.arch)
    old, new = _sides(a, b, root_of(here))
    spec = load(old.operator)
    if new.operator != old.operator:
        new = _as(spec, old, new)
    changed = list(unified_diff(old.text.splitlines(), new.text.splitlines(), a, b, lineterm="", n=2))
    if old.text == new.text:
        found: dict[str, Evaluation] = {}
    else:
        found = _judged(spec, old, new, here)
    wrong = [name for name in (a, b) if name in found and found[name].status is not Status.OK]
    if json:
        emit(_document(old, new, here, found, changed))
    else:
        _show(old, new, here, found, changed if diff else None)
    return WrongOrSlowError.exit_code if wrong else 0


def _sides(a: str, b: str, root: Path) -> tuple[Side, Side]:
    """Both kernels; a version alone, and a file of no operator that is known, are of the other's operator."""
    for said in (a, b):
        if said.endswith(".py") and not Path(said).is_file():
            raise UsageError(f"{said}: no such file")
    owner = _owner(a, root) or _owner(b, root)
    if owner is None:
        raise UsageError(f"{a} and {b}: no operator is named: write one of them as NAME or NAME@v1.2")
    return _side(a, owner, root), _side(b, owner, root)


def _owner(said: str, root: Path) -> str | None:
    """The operator that a side is of, where it says so."""
    if Path(said).is_file():
        known = {quartet.name for quartet in quartets(root)}
        name = Path(said).stem.removesuffix("_triton")
        return name if name in known else None
    return None if VERSION.fullmatch(said) else find_quartet(said.partition("@")[0], root).name


def _side(said: str, owner: str, root: Path) -> Side:
    from kernelgen.versions import version

    if Path(said).is_file():
        return Side(said, _owner(said, root) or owner, read_text(Path(said)) or "")
    name, _, wanted = said.rpartition("@") if "@" in said else ("", "", said)
    if VERSION.fullmatch(wanted):
        operator = find_quartet(name, root).name if name else owner
        return Side(said, operator, version(operator, wanted, LOGS / operator).text())
    if name:
        raise UsageError(f"{said}: a version is written {name}@v1.2; `kernelgen restore {name}` lists them")
    quartet = find_quartet(said, root)
    return Side(said, quartet.name, read_text(quartet.file("triton")) or "")


def _as(spec: OperatorSpec, old: Side, new: Side) -> Side:
    """Another operator's kernel under this one's name. Raises UsageError where it takes or returns something else."""
    other = load(new.operator)

    def interface(of: OperatorSpec) -> Any:
        return [[(t.shape, t.dtype) for t in tensors] for tensors in (of.inputs, of.outputs)], of.dtypes

    if interface(spec) != interface(other):
        raise UsageError(
            f"{old.operator} and {new.operator} have different inputs or outputs, so they cannot be compared"
        )
    return Side(new.said, spec.name, f"{new.text}\n\n{spec.name} = {other.name}\n")


def _judged(spec: OperatorSpec, old: Side, new: Side, here: Device) -> dict[str, Evaluation]:
    """Each side's accuracy test; the second's has its times against the first, where both are right."""
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.evaluate import Candidate, evaluator
    from kernelgen.journal import source_hash

    for side in (old, new):
        _check_defines(side, spec.name)
    root = root_of(here)
    plan = generation.plan_of(spec, root, generation.chip_of(here))
    folder = generation.folder_of(spec, root)

    def candidate(side: Side) -> Candidate:
        schedule = plan.table[0].schedule
        return Candidate(side.text, source_hash(side.text), 0, schedule, spec.performance, side.said)

    with (
        tempfile.TemporaryDirectory(prefix="kernelgen-compare-") as store,
        evaluator(here, plan, folder, Path(store), partial(work, plan)) as run,
    ):
        found = {}
        for side in (old, new):
            note(f"accuracy of {side.said}")
            found[side.said] = run.verify(candidate(side))
        if all(one.status is Status.OK for one in found.values()):
            note("times")
            timed = run.final(candidate(new), candidate(old), spec.performance)
            found[new.said] = Evaluation(
                timed.source_hash, timed.status, timed.message, timed.facts, found[new.said].accuracy, timed.timings,
                timed.left_out,
            )  # fmt: skip
    return found


def _check_defines(side: Side, name: str) -> None:
    try:
        tree = ast.parse(side.text)
    except SyntaxError as error:
        raise UsageError(f"{side.said}:{error.lineno}: not Python: {error.msg}") from None
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    aliases = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    if name not in defined | aliases:
        raise UsageError(f"{side.said}: defines no function {name}")


def _show(old: Side, new: Side, here: Device, found: dict[str, Evaluation], changed: list[str] | None) -> None:
    from kernelgen.optimization.decide import overall, show, verdict

    if not found:
        print(f"{old.said} and {new.said} are identical")
        return
    for said, one in found.items():
        passed = sum(result.passed for result in one.accuracy)
        right = f"{passed} cases pass" if one.status is Status.OK else f"{one.status}: {one.message}"
        print(f"{said}: {right}")
    timings = found[new.said].speedups("current")
    rows = [
        (t.case, f"{t.against_us:.2f}", f"{t.time_us:.2f}", str(t.interval or f"{t.speedup:.3f}x"), verdict(t))
        for t in timings
    ]
    if rows:
        how = "measured" if here.measures else "predicted"
        print(table([("case", f"{old.said} µs", f"{new.said} µs", "speedup", how), *rows]))
        print(f"{new.said} over {old.said}: {show(overall(timings))} {how} on {here.describe()['device']}")
    for case, why in found[new.said].left_out:
        print(f"left out: {case}: {why}")
    for line in changed or ():
        print(line)


def _document(
    old: Side, new: Side, here: Device, found: dict[str, Evaluation], changed: list[str]
) -> dict[str, object]:
    from kernelgen.optimization.decide import overall

    timings = found[new.said].speedups("current") if found else ()
    return {
        "a": old.said,
        "b": new.said,
        "operator": old.operator,
        "same_text": old.text == new.text,
        "source": "measured" if here.measures else "predicted",
        "device": here.describe(),
        "accuracy": {
            said: {"status": str(one.status), "message": one.message, "cases": to_json(one.accuracy)}
            for said, one in found.items()
        },
        "cases": to_json(timings),
        "speedup": to_json(overall(timings)),
        "diff": changed,
    }


def restore(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An operator.")],
    wanted: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Such as v1.2; omit it to list the versions.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Restore an earlier version of a kernel.

    The versions are those of the operator's log. Their files are kept in logs/NAME and are restored byte for byte.
    """
    from kernelgen.versions import version, versions

    quartet = find_quartet(name)
    if wanted is None:
        known = versions(LOGS / quartet.name)
        rows = [{"version": v.name, "time": v.time, "run": v.run.name, "said": v.headline} for v in known]
        if json:
            emit(rows)
        elif rows:
            print(table((row["version"], row["time"][:16].replace("T", " "), row["run"], row["said"]) for row in rows))
        else:
            note(f"{quartet.name} has no versions yet: `kernelgen optimize {quartet.name}` creates them")
        return
    wanted = wanted if wanted.startswith("v") else f"v{wanted}"
    found = version(quartet.name, wanted, LOGS / quartet.name)
    notes = _put_back(load(quartet.name), found.text(), found.table, force)
    if json:
        emit({"operator": quartet.name, "version": wanted, "file": str(quartet.file("triton")), "notes": notes})
        return
    print(f"{quartet.file('triton')} restored to {wanted}")
    for line in notes:
        print(f"note: {line}")


def _put_back(spec: OperatorSpec, text: str, rows: Any, force: bool) -> list[str]:
    """Write the kernel and its table. Returns what a user should know."""
    from kernelgen import custom, generation
    from kernelgen.custom import Refused
    from kernelgen.render import triton_source

    folder = generation.folder_of(spec, ROOT)
    if not force:
        generation.check_unedited([folder])
    generation.check_adoptable(spec, ROOT, "the stored kernel", text)
    plan = generation.plan_of(spec, ROOT)
    notes = []
    try:
        same = triton_source(plan.with_table(rows)) == text
    except (Refused, KeyError, AssertionError):  # a table of a family as it was then
        same = False
    if not same:
        rows = custom.adopted_table(spec, text)
        notes.append(
            "the generator writes another text now: this one is kept as it is, and rounds do not vary its schedule; "
            f"`kernelgen check {spec.name}` says whether it is still right"
        )
    write_atomic(folder / f"{spec.name}_triton.py", text)
    generation.record(plan.with_table(rows), folder)
    return notes
