"""Where a run begins: a new one from what is on the disk, or an unfinished one where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from kernelgen import __version__, generation, journal, log, manifest
from kernelgen.devices import Device
from kernelgen.errors import HandEditedError, KernelgenError, StaleError
from kernelgen.files import read_text, write_atomic
from kernelgen.journal import Journal, source_hash
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.head import head
from kernelgen.optimization.model import Options
from kernelgen.optimization.state import State, fold, table_from_json, table_to_json
from kernelgen.plan import Plan
from kernelgen.strategies import Compiler, tune
from kernelgen.strategies.context import Table


def logs_folder(plan: Plan, options: Options) -> Path:
    """Where the operator's runs are."""
    return options.logs / plan.spec.name


def quartet_folder(plan: Plan, options: Options) -> Path:
    """Where the operator's quartet and its log are."""
    return options.operators / (plan.spec.folder or plan.spec.name)


def triton_file(plan: Plan, options: Options) -> Path:
    return quartet_folder(plan, options) / f"{plan.spec.name}_triton.py"


def resume_key(plan: Plan, device: Device, options: Options) -> str:
    """What must be the same for an unfinished run to go on: meaning, generator, machine, and what a round does.

    Whether the generator still prints the same kernel is looked at apart, from the run's own table.
    """
    return journal.resume_key(
        spec=plan.spec.sha256,
        version=__version__,
        form=log.FORM,
        device=device.describe(),
        cases=[case.label for case in plan.spec.performance],
        candidates=options.candidates,
        strategies=list(plan.spec.optimization_strategies),
        **({"adopted": source_hash(options.adopted)} if options.adopted else {}),
        **(
            {"tuning": asdict(replace(options.tuning, remembered=()))}
            if tune.NAME in plan.spec.optimization_strategies
            else {}
        ),
    )


def unfinished(plan: Plan, device: Device, compiler: Compiler, options: Options) -> Path | None:
    """The run that `optimize` would go on with."""
    found = journal.unfinished(logs_folder(plan, options), resume_key(plan, device, options))
    if found is None or options.fresh:
        return None
    state = fold(plan, compiler, journal.read(found))
    return found if source_hash(compiler.source(state.plan)) == state.hash else None


def open_run(plan: Plan, device: Device, compiler: Compiler, options: Options) -> tuple[Journal, bool]:
    """The journal to go on with, and whether it was begun before. Raises HandEditedError for a kernel not ours."""
    folder = logs_folder(plan, options)
    found = unfinished(plan, device, compiler, options)
    if found is not None:
        opened = Journal.open(found)
        path = triton_file(plan, options)
        past = {*fold(plan, compiler, opened.records()).past, source_hash(options.adopted)}
        if not options.force and path.is_file() and _hash(path) not in past:
            opened.close()
            raise _not_ours(plan, path)
        return opened, True
    table = starting_table(plan, compiler, options)
    key = resume_key(plan, device, options)
    begun = Journal.open(folder / journal.run_name(key))
    source = begun.store(compiler.source(plan.with_table(table)))
    if options.adopted:
        begun.store(options.adopted)
    begun.append(
        "run",
        {
            "key": key, "ordinal": len(journal.runs(folder)), "hash": source, "table": table_to_json(table),
            "operator": plan.spec.name, "family": plan.family, "spec": plan.spec.sha256, "version": __version__,
            "device": device.describe(),
            "cases": [case.label for case in plan.spec.performance], "candidates": options.candidates,
        },
    )  # fmt: skip
    return begun, False


def starting_table(plan: Plan, compiler: Compiler, options: Options) -> Table:
    """The table of the kernel on the disk: as generated, or as an earlier run of this operator left it."""
    path = triton_file(plan, options)
    if not path.is_file() or _hash(path) in (source_hash(compiler.source(plan)), source_hash(options.adopted)):
        return plan.table
    present = _hash(path)
    for table in _known_tables(logs_folder(plan, options), present):
        if source_hash(compiler.source(plan.with_table(table))) == present:
            return table
    if options.force:
        return plan.table
    raise _not_ours(plan, path)


def restore(bench: Bench, state: State) -> None:
    """Do again what follows from the committed rounds, where a kill came between."""
    played = [record.data["entry"] for record in bench.journal.records("round")]
    if played:
        log.update(bench.log_file, head(bench.journal.records()), played, bench.language)
    if bench.is_edited_in_place and _hash(bench.triton_file) != state.hash:
        return
    if not bench.triton_file.is_file() or _hash(bench.triton_file) != state.hash:
        write_atomic(bench.triton_file, bench.journal.source(state.hash))
    generation.record(state.plan, bench.triton_file.parent)


def _known_tables(folder: Path, wanted: str) -> Iterator[Table]:
    """The tables that runs of the operator gave to a kernel of this hash, the newest run first."""
    for run in reversed(journal.runs(folder)):
        for record in reversed(journal.read(run)):
            if record.kind in ("run", "round") and record.data["hash"] == wanted:
                yield table_from_json(record.data["current"] if record.kind == "round" else record.data["table"])


def _hash(path: Path) -> str:
    return source_hash(read_text(path) or "")


def _not_ours(plan: Plan, path: Path) -> KernelgenError:
    """Why a kernel that is neither as generated nor as a run left it may not be built on."""
    if path.name in manifest.generated(path.parent) and path.name not in manifest.hand_edited(path.parent):
        return StaleError(f"{path}: no longer matches its spec; run `kernelgen new {plan.spec.name}` first")
    adopt = f"`kernelgen optimize {plan.spec.name} --adopt {path}` judges and times it"
    return HandEditedError(f"{path}: was changed by hand; {adopt}, --force overwrites it")
