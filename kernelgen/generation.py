"""Writes an operator's generated files, knows which of them a person has changed, and which are stale.

Beside the quartet lies `generated.json`: the hash of every file as it was written, and the schedule table that
`optimize` chose. A file that differs from its hash was edited by hand; one that matches its hash but not what the
spec now renders to is stale.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen import custom, families, frontend, lint, render
from kernelgen.devices import Device, NpuFacts
from kernelgen.errors import (
    FaultyError,
    GuardError,
    HandEditedError,
    LanguageModelError,
    Mistake,
    PrecisionError,
    SpecError,
    UnsupportedError,
    UsageError,
)
from kernelgen.families.kernel import body_of
from kernelgen.files import check_creatable, check_writable, read_text, write_atomic
from kernelgen.frontend.windows import is_depthwise
from kernelgen.language import Language, translate
from kernelgen.manifest import Manifest, damaged, generated, hand_edited, read_manifest, text_hash, write_manifest
from kernelgen.plan import Chip, LoweredPlan, OnePlan, Plan, TableRow
from kernelgen.spec import find_spec, parse_spec
from kernelgen.spec.branches import with_side
from kernelgen.spec.choices import Choice, choices, said_of
from kernelgen.spec.model import CUSTOM, OperatorSpec
from kernelgen.wrapper import layouts

if TYPE_CHECKING:
    from kernelgen.backward import Backward
    from kernelgen.frontend.graph import Graph


DEFINITION = "definition.md"
_MOST_GUARDS = 8
"""Conditions of a trace that are settled one after the other, each of which costs another trace."""

Made = tuple[OperatorSpec, Plan, dict[str, str]]
"""An operator or a part of its backward, its plan, and its files by name."""


@dataclass(frozen=True)
class Agreement:
    """One line of the interface checklist: what the files say, and whether they say the same."""

    item: str
    said: tuple[tuple[str, str], ...]
    agrees: bool


@dataclass(frozen=True)
class Written:
    """What `new` did."""

    folder: Path
    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    change: str
    """`new`, `none`, `performance parameters`, `definition`, `interface` or `logic`: what changed since."""
    agreement: tuple[Agreement, ...]
    plan: Plan

    def with_parts(self, parts: Sequence[Written]) -> Written:
        """With what was written for the parts of its backward, which lie in folders below its own."""
        below = [(p, p.folder.relative_to(self.folder)) for p in parts]
        return replace(
            self,
            written=(*self.written, *(str(at / name) for p, at in below for name in p.written)),
            unchanged=(*self.unchanged, *(str(at / name) for p, at in below for name in p.unchanged)),
        )


def chip_of(device: Device) -> Chip | None:
    """What kernels for a device are made for; None where those for any GPU serve."""
    if not isinstance(device.facts, NpuFacts):
        return None
    return Chip(device.arch, device.family, device.facts.vector_cores, device.facts.ub_bytes)


def folder_of(spec: OperatorSpec, root: Path) -> Path:
    """Where an operator's files go."""
    return root / (spec.folder or spec.name)


@functools.lru_cache(maxsize=1)
def _traced(spec: OperatorSpec) -> tuple[Graph, tuple[str, ...]]:
    """A backward is derived from the graph that its forward was just lowered from."""
    return frontend.trace(spec)


def differentiated(spec: OperatorSpec) -> Graph:
    """The graph from which the gradients of a spec are derived."""
    graph = _traced(spec)[0]
    return frontend.trace(spec, whole=True)[0] if is_depthwise(graph) else graph


def backward_of(spec: OperatorSpec) -> Backward | None:
    """The gradients of a spec that says `backward: true`."""
    if not spec.backward:
        return None
    from kernelgen.backward import backward
    from kernelgen.frontend.gradients import check_differentiable

    found = backward(spec, differentiated(spec))
    check_differentiable(spec)
    return found


def plan_of(spec: OperatorSpec, root: Path, chip: Chip | None = None, *, derived: bool = False) -> Plan:
    """The plan of a spec, with the schedule table that was last chosen for it where that still fits.

    `chip`: what it is made for, where the folder does not say so already.
    `derived`: the reference is a gradient that was just written for one that means one thing, see `frontend.trace`.
    """
    if spec.family == CUSTOM:
        return _custom(spec, root, chip)
    plan = lowered(spec, derived=derived)
    folder = folder_of(spec, root)
    manifest = read_manifest(folder)
    chip = chip or (manifest.chip if manifest else None)
    if chip is not None:
        if chip.family not in families.RETARGET:
            raise damaged(folder, f"chip.family: there is no {chip.family!r}")
        plan = families.retarget(plan, chip)
    table = _saved(folder)
    if not table:
        return plan
    if custom.is_foreign(table):
        return plan.with_table(table) if _foreign_fits(plan.spec, table) else plan
    fitted = tuple(filter(None, (_fitted(plan, row) for row in table)))
    if len(fitted) < len(table):
        return plan
    known = {size.name for size in families.named_sizes(plan)}
    for number, row in enumerate(table):
        for name in sorted(dict(row.upto).keys() - known):
            raise damaged(folder, f"schedules[{number}].upto: {plan.family} has no size {name!r}")
    chosen = plan.with_table(fitted)
    return chosen if all(families.has_room(chosen, case) for case in spec.performance) else plan


def lowered(spec: OperatorSpec, *, derived: bool = False) -> LoweredPlan:
    """The plan of a spec with its first schedules. Where the trace holds for some sizes alone, these become a
    constraint or have kernels of their own, as the listed shapes say."""
    given = spec
    for _ in range(_MOST_GUARDS):
        try:
            return _lowered(spec, derived=derived)
        except GuardError as guard:
            settled = with_side(spec, guard.condition) if guard.condition else None
            if settled is None:
                frontend.check_listed(given)
                raise
            spec = settled
        except SpecError:
            if spec is not given:  # what fails may be one side alone
                frontend.check_listed(given)
            raise
    return _lowered(spec, derived=derived)


def _lowered(spec: OperatorSpec, *, derived: bool) -> LoweredPlan:
    if ways := choices(spec):
        return families.joined(spec, [(way, _of_way(way)) for way in ways])
    graph, notes = frontend.trace(spec, derived=True) if derived else _traced(spec)
    return families.lower(spec, graph, notes)


def with_precision(text: str, path: str, precision: str) -> tuple[str, str]:
    """The text of a spec without the key `precision`, with it where kernels multiply float32 matrices and nothing else,
    and a note where it is left out. Raises SpecError where the spec is refused for something else."""
    precise = text.replace("\nreference:", f"\nprecision: {precision}\nreference:", 1)
    spec = parse_spec(precise, path)
    try:
        lowered(spec)
    except UnsupportedError:  # for `new` to say
        return precise, ""
    except PrecisionError as error:
        return text, f"left out: {error.mistakes[0].message}"
    return precise, ""


def _of_way(way: Choice) -> OnePlan:
    """The plan of one way of calling; what is wrong with it is said of it."""
    try:
        return families.lower(way.spec, *frontend.trace(way.spec))
    except GuardError:
        raise
    except SpecError as error:
        called = f"called {said_of(way.given)}: " if way.given else ""
        raise type(error)([replace(m, message=f"{called}{m.message}") for m in error.mistakes]) from None


def _saved(folder: Path) -> tuple[TableRow, ...]:
    """The table that was last chosen for what is in a folder; empty where nothing is.

    Raises DamagedError for a schedule that no family makes; one of another family is of another reference.
    """
    manifest = read_manifest(folder)
    table = manifest.table if manifest else ()
    for number, row in enumerate(table):
        foreign = row.schedule.variant in custom.FOREIGN
        wrong = custom.misshapen(row.schedule) if foreign else families.unknown(row.schedule)
        if wrong:
            raise damaged(folder, f"schedules[{number}]: {wrong}")
    return table


def _custom(spec: OperatorSpec, root: Path, chip: Chip | None) -> Plan:
    """The plan of a kernel that a language model wrote. Raises LanguageModelError where there is none yet."""
    if chip is not None:
        raise UsageError(f"{spec.path}: family: custom is written for GPUs; there is none for {chip.name}")
    if is_unwritten(spec, root):
        raise LanguageModelError(
            f"{spec.path}: family: custom: a language model writes the kernel, and none is there yet for this "
            f"reference: `kernelgen new {spec.path} --model NAME`"
        )
    return custom.plan_of(spec, _saved(folder_of(spec, root)))


def is_unwritten(spec: OperatorSpec, root: Path) -> bool:
    """Whether a language model has to write the kernel first."""
    table = _saved(folder_of(spec, root))
    return spec.family == CUSTOM and not (table and _foreign_fits(spec, table))


def _foreign_fits(spec: OperatorSpec, table: tuple[TableRow, ...]) -> bool:
    """Such a kernel is checked again: it was written for one reference, and the manifest may have been changed."""
    read = custom.adopted_source if table[0].schedule.variant == custom.ADOPTED else custom.answer_of
    try:
        read(spec, table[0].schedule)
    except custom.Refused:
        return False
    return len(table) == 1


def _fitted(plan: LoweredPlan, row: TableRow) -> TableRow | None:
    """A row that was chosen for the plan, perhaps by a version that knew fewer parameters; None where it does not fit.

    A parameter that is added to a family has the default under which kernels stay as they were without it.
    """
    family = families.family_of(plan)
    if row.schedule.variant not in family.variants(body_of(plan)) or families.unknown(row.schedule, (family,)):
        return None
    default = family.default(row.schedule.variant)
    return replace(row, schedule=default.replace(**dict(row.schedule.values)))


def new(
    spec: OperatorSpec,
    root: Path,
    *,
    force: bool = False,
    dry_run: bool = False,
    chip: Chip | None = None,
    table: tuple[TableRow, ...] = (),
    language: Language | None = None,
    look: Callable[[Sequence[Made]], None] = lambda made: None,
) -> Written:
    """Write the quartet and definition.md. Raises HandEditedError, before anything is written, for an edited file, and
    FaultyError for files that cannot be right.

    `table`: the kernel that a language model just wrote for a spec that says `family: custom`. `look`: sees what is
    about to be written, and may raise. `language`: of definition.md; None: as it is, or English.
    """
    if not dry_run:
        check_creatable(folder_of(spec, root))  # before minutes are spent on what cannot be written
    made = _made(spec, root, chip, table, language=language)
    if not force:
        check_unedited([folder_of(one, root) for one, _, _ in made])
        check_sound(made)
    look(made)
    if not dry_run:
        check_writable(folder_of(spec, root))
    forward, *parts = [_write(*one, root, language, dry_run=dry_run) for one in made]
    return forward.with_parts(parts)


def check_sound(made: Sequence[Made]) -> None:
    """Raise FaultyError for a file that is no Python, or with a name that has no value where it is used."""
    for spec, _, files in made:
        for name in files:
            found = lint.findings(files[name]) if name.endswith(".py") else []
            if found:
                raise FaultyError(
                    f"{spec.path}: the generated {name} is wrong at line {found[0]}; nothing was written. "
                    "This is a fault of kernelgen: please report it with the spec; --force writes the files"
                )


def check_adoptable(spec: OperatorSpec, root: Path, where: str, text: str) -> None:
    """Raise UsageError for an edited `_triton.py` that is no Python or no longer has the operator's interface."""
    files = {name: read_text(folder_of(spec, root) / name) or "" for name in _quartet_names(spec)}
    if found := lint.findings(text):
        raise UsageError(f"{where}:{found[0]}")
    for row in interface_agreement(spec, files | {f"{spec.name}_triton.py": text}):
        if not row.agrees:
            raise UsageError(f"{where}: {row.item} must stay as generated: {', '.join(said for _, said in row.said)}")


def _quartet_names(spec: OperatorSpec) -> tuple[str, ...]:
    return tuple(f"{spec.name}_{part}.py" for part in ("triton", "baseline", "accuracy", "performance"))


def check_unedited(folders: Sequence[Path]) -> None:
    """Raise HandEditedError for files that a person has changed."""
    edited = [folder / name for folder in folders for name in hand_edited(folder)]
    if edited:
        listed = ", ".join(map(str, edited))
        raise HandEditedError(f"{listed}: changed by hand since it was generated; --force overwrites it")


def _made(
    spec: OperatorSpec,
    root: Path,
    chip: Chip | None = None,
    table: tuple[TableRow, ...] = (),
    *,
    language: Language | None = None,
) -> list[Made]:
    """The operator's plan and files, and those of its backward's parts. Raises UnsupportedError where one cannot be.

    For a chip that has no kernels for a gradient the operator is made without any; its notes say so.
    """
    plan = custom.plan_of(spec, table) if table else plan_of(spec, root, chip)
    derived = backward_of(plan.spec)
    parts = []
    for part in derived.parts if derived else ():
        try:
            parts.append((part.spec, plan_of(part.spec, root, plan.chip, derived=True)))
        except SpecError as error:
            whose = f"the gradient of {' and '.join(part.gradients)}" if part.gradients else "what gradients read"
            message = f"{whose}: {error.mistakes[0].message}"
            if plan.chip is not None:
                alone = replace(plan, notes=(*plan.notes, f"Without gradients; {message}"))
                return [(spec, alone, _rendered(alone, root, language))]
            place = spec.reference_place
            message = f"unsupported: {message}"
            raise UnsupportedError([Mistake(spec.path, place.line, place.column, message)]) from None
    plans = [(spec, plan), *parts]
    files = derived.files([layouts(its) for _, its in plans]) if derived else {}
    made = [(one, its, _rendered(its, root, language)) for one, its in plans]
    made[0][2].update(files)
    return made


def _rendered(plan: Plan, root: Path, language: Language | None) -> dict[str, str]:
    """The quartet and definition.md, this in a language or that of the last time."""
    files = render.quartet(plan)
    said = language or _language(folder_of(plan.spec, root))
    return files | {DEFINITION: translate(files[DEFINITION], said)}


def _language(folder: Path) -> Language:
    manifest = read_manifest(folder)
    return manifest.language if manifest else "en"


def _write(
    spec: OperatorSpec, plan: Plan, files: dict[str, str], root: Path, language: Language | None, *, dry_run: bool
) -> Written:
    folder = folder_of(spec, root)
    agreement = interface_agreement(spec, files)
    broken = [a.item for a in agreement if not a.agrees]
    assert not broken, f"generated files disagree on {broken}"
    before = {name: read_text(folder / name) for name in files}
    changed = tuple(name for name, text in files.items() if before[name] != text)
    change = _change(spec, folder, before, changed)  # from the manifest of the last time, which is rewritten below
    if not dry_run:
        check_writable(folder)
        for name in changed:
            write_atomic(folder / name, files[name])
        _keep(plan, folder, files, language)
    return Written(folder, changed, tuple(n for n in files if n not in changed), change, agreement, plan)


def _change(spec: OperatorSpec, folder: Path, before: dict[str, str | None], changed: tuple[str, ...]) -> str:
    if all(text is None for text in before.values()):
        return "new"
    if not changed:
        return "none"
    if changed == (f"{spec.name}_triton.py",):
        return "performance parameters"
    if changed == (DEFINITION,):
        return "definition"
    manifest = read_manifest(folder)
    return "logic" if manifest is None or manifest.interface == render.interface_hash(spec) else "interface"


def stale(spec: OperatorSpec, root: Path) -> tuple[str, ...]:
    """The files that are missing or no longer what the spec renders to, each with why."""
    return tuple(looked_at(spec, root)[0])


def looked_at(spec: OperatorSpec, root: Path) -> tuple[list[str], list[str]]:
    """As `stale`, and the specs of the parts of its backward, whose files were looked at as well."""
    found = []
    made = _made(spec, root)
    for one, _, files in made:
        folder = folder_of(one, root)
        edited = hand_edited(folder)
        for name, text in files.items():
            present = read_text(folder / name)
            if present is None:
                found.append(f"{folder / name}: missing")
            elif present != text:
                why = "changed by hand" if name in edited else "no longer matches its spec"
                found.append(f"{folder / name}: {why}")
    return found, [f"{part.name}.yaml" for part, _, _ in made[1:]]


def record(plan: Plan, folder: Path) -> None:
    """Keep the table of a plan whose `_triton.py` was just rewritten."""
    name = f"{plan.spec.name}_triton.py"
    files = {n: text for n in (*generated(folder), name) if (text := read_text(folder / n)) is not None}
    _keep(plan, folder, files)


def _keep(plan: Plan, folder: Path, files: dict[str, str], language: Language | None = None) -> None:
    hashes = {name: text_hash(text) for name, text in files.items()}
    interface = render.interface_hash(plan.spec)
    manifest = Manifest(
        _spec_path(plan.spec, folder),
        interface,
        plan.table,
        hashes,
        plan.chip,
        language or _language(folder),
        plan.spec.sha256[:16],
    )
    write_manifest(manifest, folder)


def _spec_path(spec: OperatorSpec, folder: Path) -> str:
    """How the spec is found again from this working folder: by its file's name, else by its path."""
    path = Path(spec.path)
    if not path.is_file() or path.parent == folder:  # of a part of a backward it lies beside the quartet
        return path.name
    try:
        if find_spec(path.name)[0].samefile(path):
            return path.name
    except UsageError:
        pass
    whole = path.resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(path)


def interface_agreement(spec: OperatorSpec, files: dict[str, str]) -> tuple[Agreement, ...]:
    """Whether the four files agree on the function's name, parameters, types, return and input checks."""
    kernel, baseline, accuracy, performance = _quartet_names(spec)
    trees = {name: ast.parse(files[name]) for name in (kernel, baseline, accuracy, performance)}
    functions = {name: _function(trees[name], spec.name) for name in (kernel, baseline)}
    checks = {name: _function(trees[name], "check_inputs") for name in (kernel, baseline)}
    rows = [
        ("function name", {name: f.name if f else "" for name, f in functions.items()}),
        ("parameters", {name: ", ".join(a.arg for a in f.args.args) if f else "" for name, f in functions.items()}),
        (
            "types",
            {
                n: ", ".join(ast.unparse(a.annotation) for a in f.args.args if a.annotation) if f else ""
                for n, f in functions.items()
            },
        ),
        ("returns", {name: ast.unparse(f.returns) if f and f.returns else "" for name, f in functions.items()}),
        ("input checks", {name: str(_raises(f)) if f else "" for name, f in checks.items()}),
    ]
    found = [
        Agreement(item, tuple(said.items()), len(set(said.values())) == 1 and "" not in said.values())
        for item, said in rows
    ]
    same = all(c is not None for c in checks.values()) and len({ast.dump(c) for c in checks.values() if c}) == 1
    found[-1] = Agreement(found[-1].item, found[-1].said, found[-1].agrees and same)
    uses = {name: ", ".join(sorted(_modules(trees[name], spec.name))) for name in (accuracy, performance)}
    found.append(Agreement("tests import", tuple(uses.items()), all(uses.values())))
    return tuple(found)


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _raises(function: ast.FunctionDef) -> int:
    return sum(isinstance(n, ast.Raise) for n in ast.walk(function))


def _modules(tree: ast.Module, name: str) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {m for m in found if m.startswith(f"{name}_")}
