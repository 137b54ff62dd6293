"""`kernelgen optimize`: rounds that make an operator faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli import fleet
from kernelgen.cli.model import (
    BaseUrl,
    MaxCost,
    MaxTokens,
    Model,
    PriceIn,
    PriceOut,
    Stream,
    caps,
    client,
    first_kernel,
    needs_model,
)
from kernelgen.cli.names import Quartet, meant_specs, root_of
from kernelgen.cli.new import load
from kernelgen.cli.terminal import (
    All,
    Arch,
    DeviceName,
    DryRun,
    Force,
    Json,
    Lang,
    NamesOrSpecs,
    Only,
    Skip,
    emit,
    note,
    spoken,
    wanted,
)
from kernelgen.errors import KernelgenError, SpecError, UsageError, WrongOrSlowError
from kernelgen.outcomes import to_json
from kernelgen.settings import MAX_ROUNDS, Settings, resolve
from kernelgen.spec.model import CUSTOM, ON_REQUEST, STRATEGIES, WRITING

if TYPE_CHECKING:
    from kernelgen.cli.progress import Progress
    from kernelgen.devices import Device
    from kernelgen.evaluate import Crew
    from kernelgen.optimization import Options, RunResult
    from kernelgen.plan import Plan
    from kernelgen.spec.model import Case, OperatorSpec


INTERRUPTED = 130
"""The exit code of what the user stopped: the operators after it are not begun."""
TARGET_MARKS = {"reached": "✓", "missed": "✗", "unknown": ""}

Rounds = Annotated[
    str | None,
    typer.Option(
        "--rounds", metavar=f"1..{MAX_ROUNDS}", help="Maximum number of rounds; default: the spec's max_rounds."
    ),
]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="NAME", help="Only cases of this dtype.")]
StopAtTarget = Annotated[bool | None, typer.Option("--stop-at-target", help="Stop once the spec's target is reached.")]
MaxMinutes = Annotated[
    str | None, typer.Option("--max-minutes", metavar="X", help="Do not start a round after this many minutes.")
]
Candidates = Annotated[str | None, typer.Option("--candidates", metavar="N", help="Maximum candidates per round.")]
Jobs = Annotated[str | None, typer.Option("--jobs", metavar="N", help="Compile processes; default: one per core.")]
Strategies = Annotated[list[str] | None, typer.Option("--strategy", metavar="NAME", help="Use only this strategy.")]
Adopt = Annotated[
    Path | None,
    typer.Option("--adopt", metavar="FILE", help="Verify and time this edited kernel; keep it if it is faster."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start a new run; do not resume an interrupted one.")]


def optimize(
    names: NamesOrSpecs = None,
    every: All = False,
    rounds: Rounds = None,
    device: DeviceName = None,
    arch: Arch = None,
    dtype: Dtypes = None,
    only: Only = None,
    skip: Skip = None,
    stop_at_target: StopAtTarget = None,
    max_minutes: MaxMinutes = None,
    candidates: Candidates = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    lang: Lang = None,
    adopt: Adopt = None,
    strategy: Strategies = None,
    model: Model = None,
    base_url: BaseUrl = None,
    stream: Stream = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    gpus: fleet.Gpus = None,
    workers: fleet.Workers = None,
    ray: fleet.Ray = None,
    each_device: fleet.EachDevice = False,
    resume: fleet.Resume = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Make a kernel faster, in rounds.

    Each round finds the bottleneck, searches the candidates of one strategy, verifies the best one, and keeps or
    reverts it. An interrupted run is resumed. --dtype, --only, --skip and --strategy can be repeated. If one of several
    operators fails, the others continue. --gpus, --workers and --ray optimize several operators in parallel. The
    strategy llm asks a language model; its key is read only from OPENAI_API_KEY.
    """
    given = dict(locals())
    settings = resolve({name: value for name, value in given.items() if name in Settings.__dataclass_fields__})
    where = fleet.asked(gpus, workers, ray, each_device, resume)
    if where is not None and not dry_run:
        from kernelgen.cli.fleet_run import tune_side_by_side

        return tune_side_by_side("optimize", names, given, where, settings)
    from kernelgen.devices import find

    here = find(settings.device, settings.arch)
    asked = _Asked(
        settings, here, tuple(strategy or ()), tuple(dtype or ()), tuple(only or ()), tuple(skip or ()), force, fresh,
        dry_run, json, adopt,
    )  # fmt: skip
    return _here(meant_specs(names or [], every, root_of(here)), asked)


@dataclass(frozen=True)
class _Asked:
    """What the options say of every operator."""

    settings: Settings
    device: Device
    strategies: tuple[str, ...]
    dtypes: tuple[str, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    force: bool
    fresh: bool
    dry_run: bool
    json: bool
    adopt: Path | None = None


def _here(names: list[str], asked: _Asked) -> int:
    """Optimise operators in this process."""
    if asked.adopt is not None and len(names) > 1:
        raise UsageError("--adopt: a kernel is of one operator")
    return each_of(names, lambda name: _one(name, asked), asked.json)


def each_of(names: list[str], one: Callable[[str], tuple[int, Any]], json: bool) -> int:
    """A command of operators one after the other; the document of several has each by its name."""
    if len(names) == 1:
        code, document = one(names[0])
        if json:
            emit(document)
        return code
    codes, documents = [], {}
    for name in names:
        if not json:
            print(f"{name}:", flush=True)
        try:
            code, documents[name] = one(name)
        except KernelgenError as error:
            if error.exit_code == INTERRUPTED:
                raise
            note(str(error) if isinstance(error, SpecError) else f"error: {error}")
            code, documents[name] = WrongOrSlowError.exit_code, {"error": str(error)}
        codes.append(code)
        if code == INTERRUPTED:
            break
    if json:
        emit(documents)
    return max(codes)


def _one(name: str, asked: _Asked) -> tuple[int, Any]:
    """Optimise one operator, and print what came of it or return it as the document."""
    from kernelgen import generation

    settings, here = asked.settings, asked.device
    written = load(name)
    spec = _with_strategies(written, list(asked.strategies))
    cases = chosen(spec, list(asked.dtypes), list(asked.only), list(asked.skip))
    options = _options(settings, spec, here, asked.force, asked.fresh)
    quartet = Quartet(spec.name, options.operators / spec.folder)
    chip = generation.chip_of(here)
    if asked.dry_run:
        _check_strategies(generation.plan_of(spec, options.operators, chip))  # says what is wrong with the reference
        return 0, _announce(spec, cases, here, options, quartet, asked.json)
    with begun(here, quartet, options, written) as crew:
        return _played(written, spec, cases, asked, options, quartet, crew)


def _played(
    written: OperatorSpec,
    spec: OperatorSpec,
    cases: tuple[Case, ...],
    asked: _Asked,
    options: Options,
    quartet: Quartet,
    crew: Crew | None,
) -> tuple[int, Any]:
    from kernelgen import generation

    settings, here = asked.settings, asked.device
    chip = generation.chip_of(here)
    if needs_model(written, options.operators):
        first_kernel(written, options.operators, settings, here, force=asked.force)
    elif not quartet.file("triton").is_file():
        # what is generated follows from the file alone
        generation.new(written, options.operators, force=asked.force, chip=chip)
        note(f"{spec.name} had no kernel yet; generated in {quartet.folder}")
    plan = generation.plan_of(spec, options.operators, chip)
    _check_strategies(plan)
    from kernelgen.cli import knowledge

    plan = replace(plan, spec=replace(spec, performance=cases))
    options = replace(options, **knowledge.told(plan, here.facts.name, options.tuning))
    if asked.adopt is not None:
        options = replace(options, rounds=1, adopted=_edited(asked.adopt, plan, options.operators))
    result = played(plan, here, options, settings.jobs, asked.json, crew=crew)
    kept = not asked.adopt or any(one.kept for one in result.rounds[1:])
    code = 0 if result.works and kept else WrongOrSlowError.exit_code
    if not asked.json:
        show_result(result, quartet)
        if not kept:
            print(f"  {asked.adopt} is not adopted: {result.rounds[-1].headline}")
        return code, None
    from kernelgen.report import story

    told = story(spec.name, quartet.file("triton"), result.folder.parent)
    return code, {**to_json(result), "cases": to_json(told.cases), "candidates": to_json(told.tried)}


def _edited(file: Path, plan: Plan, root: Path) -> str:
    """The text of an edited kernel. Raises UsageError for one that cannot take the current one's place."""
    from kernelgen import generation
    from kernelgen.files import read_text
    from kernelgen.render import triton_source

    text = read_text(file)
    if text is None:
        raise UsageError(f"--adopt {file}: no such file")
    if text == triton_source(plan):
        raise UsageError(f"--adopt {file}: is the current kernel; nothing was edited")
    generation.check_adoptable(plan.spec, root, str(file), text)
    return text


def _with_strategies(spec: OperatorSpec, names: list[str]) -> OperatorSpec:
    """The spec with the strategies of the command. Raises UsageError for one that does not exist."""
    known = (*STRATEGIES, *ON_REQUEST)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"--strategy {name}: no such strategy; {hint}")
        if spec.family == CUSTOM and name not in WRITING:
            raise UsageError(f"--strategy {name}: tunes kernels of a family; with family: custom only llm is possible")
    return replace(spec, optimization_strategies=tuple(dict.fromkeys(names))) if names else spec


def _check_strategies(plan: Plan) -> None:
    """Raise UsageError where a language model would write the kernel of a file that has more than kernels in it."""
    from kernelgen.plan import ChoicesPlan, StepsPlan

    if isinstance(plan, StepsPlan | ChoicesPlan) and "llm" in plan.spec.optimization_strategies:
        functions = ", ".join(dict.fromkeys(call.function for call in plan.calls))
        has = f"calls of torch's ({functions})" if plan.calls else f"{len(plan.kernels)} kernels, each of them a part"
        raise UsageError(f"strategy llm writes whole kernels, but {plan.spec.name} has {has}")


def chosen(spec: OperatorSpec, dtypes: list[str], only: list[str], skip: list[str]) -> tuple[Case, ...]:
    """The performance cases that were asked for. Raises UsageError where none is left."""
    cases = tuple(
        case
        for case in spec.performance
        if (not dtypes or {dtype for _, dtype in case.dtypes} & set(dtypes)) and wanted(case.label, only, skip)
    )
    if not cases:
        labels = "; ".join(case.label for case in spec.performance)
        raise UsageError(f"no performance case of {spec.name} is left; there are {labels}")
    return cases


def _options(settings: Settings, spec: OperatorSpec, device: Device, force: bool, fresh: bool) -> Options:
    from kernelgen.optimization import Options

    options = Options(
        operators=root_of(device),
        rounds=settings.rounds or spec.max_rounds,
        stop_at_target=settings.stop_at_target,
        max_minutes=settings.max_minutes,
        force=force,
        fresh=fresh,
        language=spoken(settings),
    )
    if "llm" in spec.optimization_strategies:
        options = replace(options, client=client(settings, "the strategy llm"), caps=caps(settings))
    return replace(options, candidates=settings.candidates) if settings.candidates else options


@contextmanager
def begun(device: Device, quartet: Quartet, options: Options, spec: OperatorSpec) -> Iterator[Crew | None]:
    """What will run candidates, starting while the spec is traced, and its kernel generated if there is none; not while
    a language model writes it. Its processes read what is, or will be, in the quartet's folder, which is made for
    them."""
    from kernelgen import evaluate
    from kernelgen.files import check_writable
    from kernelgen.journal import locked

    crew, made = None, list[Path]()
    try:
        if evaluate.begins_early(device) and not needs_model(spec, options.operators):
            if quartet.file("triton").is_file():
                with locked(options.logs / quartet.name):  # a run that another process is timing is not disturbed
                    pass
            made = [folder for folder in (quartet.folder, *quartet.folder.parents) if not folder.exists()]
            check_writable(quartet.folder)
            crew = evaluate.begun(device, quartet.folder)
        yield crew
    finally:
        try:
            if crew is not None:
                crew.close()
        finally:
            for folder in made:
                with suppress(OSError):  # of what was not generated nothing stays
                    folder.rmdir()


def played(
    plan: Plan,
    device: Device,
    options: Options,
    jobs: int | None,
    json: bool,
    progress: Progress | None = None,
    crew: Crew | None = None,
) -> RunResult:
    """Play the rounds, with progress on stderr."""
    from kernelgen.analysis import work
    from kernelgen.cli.knowledge import remember
    from kernelgen.cli.progress import Progress as Lines
    from kernelgen.evaluate import Evaluator, evaluator
    from kernelgen.optimization import Interrupted
    from kernelgen.optimization import optimize as play

    def start(store: Path) -> Evaluator:
        folder = options.operators / plan.spec.folder
        return evaluator(device, plan, folder, store, partial(work, plan), jobs=jobs, crew=crew)

    progress = progress or Lines()
    try:
        result = play(plan, device, start, options, progress)
        remember(result.folder)
        return result
    except Interrupted as stop:
        remember(stop.result.folder)
        if json:
            emit(to_json(stop.result))
        raise
    finally:
        progress.stop()


def _announce(
    spec: OperatorSpec, cases: tuple[Case, ...], device: Device, options: Options, quartet: Quartet, json: bool
) -> Any:
    """What a run would do."""
    document = {
        "operator": spec.name,
        "folder": str(quartet.folder),
        "generate": not quartet.file("triton").is_file(),
        "device": device.describe(),
        "figures": "measured" if device.measures else "predicted",
        "rounds": options.rounds,
        "candidates": options.candidates,
        "strategies": list(spec.optimization_strategies),
        "cases": [case.label for case in cases],
    }
    if json:
        return document
    first = "generate it, then " if document["generate"] else ""
    print(f"{spec.name} in {quartet.folder}: would {first}play up to {options.rounds} rounds")
    print(f"  on          {device.describe()['device']}: every figure {document['figures']}")
    print(f"  strategies  {', '.join(spec.optimization_strategies)}; up to {options.candidates} candidates a round")
    print("\n".join(f"  {'cases' if i == 0 else '':10}  {case.label}" for i, case in enumerate(cases)))
    return None


def show_result(result: RunResult, quartet: Quartet) -> None:
    from kernelgen.optimization.decide import show

    kept = sum(r.kept for r in result.rounds if r.number > 0)
    print(f"{quartet.name}: {result.reason}, {f'{kept} kept' if kept else 'no improvement'}")
    if result.speedup is not None:
        print(f"  {result.source} over eager: {show(result.start_speedup)} -> {show(result.speedup)}")
    for one in result.targets:
        how = f" ({result.source})" if result.source == "predicted" and one.state != "unknown" else ""
        print(f"  {one.target} {TARGET_MARKS[one.state]}{how}".rstrip())
    if result.model and not result.model.startswith("none"):
        print(f"  model    {result.model}")
    print(f"  kernel   {quartet.file('triton')}")
    print(f"  log      {quartet.folder / 'optimization_log.md'}")
    print(f"  journal  {result.folder}")
