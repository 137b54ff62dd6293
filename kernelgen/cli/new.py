"""`kernelgen new`: from a spec to a kernel, its baseline and its two tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.model import BaseUrl, MaxCost, MaxTokens, Model, PriceIn, PriceOut, Stream, first_kernel, needs_model
from kernelgen.cli.names import ROOT, generated_spec, no_kernels, quartets, root_of, spec_of
from kernelgen.cli.progress import counted
from kernelgen.cli.terminal import (
    DeviceName,
    DryRun,
    Force,
    Json,
    Lang,
    OptionalSpec,
    Target,
    emit,
    note,
    spoken,
    table,
)
from kernelgen.collecting import without_collecting
from kernelgen.errors import FaultyError, SpecError, StaleError, UsageError
from kernelgen.settings import Settings, resolve

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.generation import Agreement, Made, Written
    from kernelgen.spec.model import OperatorSpec
    from kernelgen.verify import Verified

_A_PROCESS = 8
"""Operators that are worth a process of their own."""


def new(
    spec: OptionalSpec = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder; default: operators.")] = None,
    target: Target = None,
    force: Force = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a generated file no longer matches its spec.")
    ] = False,
    dry_run: DryRun = False,
    lang: Lang = None,
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="Run one case and compile the kernels before writing them."),
    ] = None,
    device: DeviceName = None,
    model: Model = None,
    base_url: BaseUrl = None,
    stream: Stream = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    json: Json = False,
) -> None:
    """Write a kernel, its baseline and its tests from a spec.

    --check without SPEC checks every operator in the folder. For a spec with `family: custom` a language model writes
    the first kernel; --device and the options from --model on apply only to that.
    """
    settings = resolve({name: value for name, value in locals().items() if name in Settings.__dataclass_fields__})
    made_for = _device(target, device)
    out = out or (root_of(made_for) if made_for else ROOT)
    if check:
        with without_collecting():
            _check([spec] if spec is not None else None, out, json)
        return
    if spec is None:
        raise UsageError("new needs a SPEC, or --check to look at every operator that is there")
    began = time.monotonic()
    loaded = load(spec)
    seen: list[Verified] = []
    if needs_model(loaded, out):
        from kernelgen.devices import find

        done = first_kernel(
            loaded, out, settings, made_for or find(settings.device, settings.arch), force=force, dry_run=dry_run
        )
    else:
        with without_collecting(), _looking(settings, made_for, force) as (look, seen):
            from kernelgen import generation

            chip = generation.chip_of(made_for) if made_for else None
            said = spoken(settings)
            done = generation.new(loaded, out, force=force, dry_run=dry_run, chip=chip, language=said, look=look)
    seconds, verified = time.monotonic() - began, seen[0] if seen else None
    if json:
        emit(_document(done, dry_run, seconds, verified))
    else:
        _show(done, dry_run, seconds, verified)


def _device(target: str | None, named_too: str | None) -> Device | None:
    """The device that kernels are to be made for; None: any GPU. Raises UsageError where --device names one that
    nobody knows; one that is not here may still be meant."""
    from kernelgen.devices import find, names
    from kernelgen.devices.facts import canonical

    if named_too is not None and named_too not in names():
        find(named_too)
    # a slip in such a name is told of with those names
    named = "npu" if canonical(target or "").startswith("ascend") else None
    return None if target is None else find(named, target)


def load(name_or_path: str, root: Path = ROOT) -> OperatorSpec:
    """The spec that was meant; says which file it took. A part of a backward has its spec beside its quartet."""
    from kernelgen.spec import find_spec, load_spec

    try:
        path, shipped = find_spec(name_or_path)
    except UsageError:
        generated = generated_spec(name_or_path, root)
        if generated is None:
            raise
        path, shipped = generated, False
    note(f"spec: {path.name}, shipped with kernelgen" if shipped else f"spec: {path}")
    return load_spec(path)


@contextmanager
def _looking(
    settings: Settings, made_for: Device | None, force: bool
) -> Iterator[tuple[Callable[[Sequence[Made]], None], list[Verified]]]:
    """What looks at files before they are written, and where it leaves what it has seen."""
    from kernelgen.devices import find
    from kernelgen.verify import verifying

    seen: list[Verified] = []
    if not settings.verify:
        yield lambda made: None, seen
        return
    with verifying(made_for or find(None, settings.arch)) as verify:

        def look(made: Sequence[Made]) -> None:
            found = verify(made)
            if found.refused and not force:
                raise SpecError(list(found.refused))
            if found.faults and not force:
                raise FaultyError(
                    f"{made[0][0].path}: the generated kernel is wrong: {found.faults[0]}; nothing was written. "
                    "This is a fault of kernelgen: please report it with the spec; --force writes the files"
                )
            seen.append(found)

        yield look, seen


def _stale(names: list[str], root: Path) -> tuple[list[str], set[str]]:
    """A line for every file that is not what its spec gives, and the specs that were looked at with others. Many
    operators are looked at side by side: one takes about 0.3 s, the modules that each process loads 2 s."""
    from kernelgen.evaluate.base import default_jobs

    count = min(default_jobs(), len(names) // _A_PROCESS)
    found: list[str] = []
    covered: set[str] = set()

    def gather(answers: Iterable[tuple[list[str], list[str]]]) -> None:
        with counted("looked at", len(names)) as step:
            for lines, others in answers:
                found.extend(lines)
                covered.update(others)
                step()

    if count < 2:
        gather(_stale_here(name, root) for name in names)
    else:
        with ProcessPoolExecutor(count, get_context("fork")) as pool:
            gather(pool.map(_stale_here, names, repeat(root)))
    return found, covered


def _stale_here(name: str, root: Path) -> tuple[list[str], list[str]]:
    from kernelgen.generation import looked_at

    try:
        return looked_at(load(name, root), root)
    except SpecError as error:  # the others are looked at all the same
        return str(error).splitlines(), []


def _check(named: list[str] | None, root: Path, json: bool) -> None:
    """Raise StaleError with a line for every file that is not what its spec gives. `named`: None for all there are."""
    known = list(quartets(root)) if named is None else []
    beside = {spec_of(q) for q in known if (q.folder / spec_of(q)).is_file()}
    names = [spec_of(quartet) for quartet in known] if named is None else named
    if not names:  # to say that all is well would hide a wrong folder
        raise UsageError(f"{no_kernels(root)}, so there is nothing to check")
    # a spec beside its quartet is most often a part's, which is looked at with its forward
    found, covered = _stale([name for name in names if name not in beside], root)
    found += _stale([name for name in names if name in beside - covered], root)[0]
    if json:
        emit({"operators": names, "stale": found})
    elif not found:
        print(f"{root}: every generated file matches its spec ({len(names)} operator{'' if len(names) == 1 else 's'})")
    if found:
        raise StaleError("\n".join(found))


def _show(done: Written, dry_run: bool, seconds: float, verified: Verified | None) -> None:
    """What was written, what stays torch's, and whether the files agree on the interface."""
    from kernelgen.definition import step_notes
    from kernelgen.frontend.sides import side_notes

    verb = "would be written" if dry_run else "written"
    rows = [(name, verb) for name in done.written] + [(name, "unchanged") for name in done.unchanged]
    print(done.folder)
    print(table((f"  {name}", state) for name, state in rows))
    if done.change not in ("new", "none"):
        print(f"changed since it was last generated: {done.change}")
    for said in (*side_notes(done.plan.spec), *step_notes(done.plan)):
        print(f"note: {said}")
    print("the files agree on")
    print(table((f"  {'✓' if row.agrees else '✗'} {row.item}", _said(row)) for row in done.agreement))
    for line in _seen(verified):
        print(line)
    print(f"{seconds:.1f} s")


def _seen(verified: Verified | None) -> list[str]:
    """What was run and compiled, what was not, and what is wrong where that was overruled."""
    if verified is None:
        return ["not run, not compiled"]
    lines = [f"ran in Triton's interpreter, correct: {label}" for label in verified.ran]
    lines += [f"compiled for {verified.arch}: {'; '.join(verified.compiled)}"] if verified.compiled else []
    return [*lines, *verified.left_out, *(f"WRONG: {fault}" for fault in verified.faults)]


def _said(row: Agreement) -> str:
    """What the files say: once where all say the same."""
    values = {text for _, text in row.said}
    return values.pop() if len(values) == 1 else "; ".join(f"{name}: {text}" for name, text in row.said)


def _document(done: Written, dry_run: bool, seconds: float, verified: Verified | None) -> dict[str, object]:
    return {
        "operator": done.plan.spec.name,
        "folder": str(done.folder),
        "dry_run": dry_run,
        "change": done.change,
        "written": list(done.written),
        "unchanged": list(done.unchanged),
        "agreement": [{"item": a.item, "agrees": a.agrees, "said": dict(a.said)} for a in done.agreement],
        "verified": asdict(verified) if verified else None,
        "seconds": round(seconds, 3),
    }
