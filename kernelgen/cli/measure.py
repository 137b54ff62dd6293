"""`kernelgen check` and `kernelgen bench`: an operator's own tests, in a process of their own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from json import loads as parse
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated

import typer

from kernelgen.cli import fleet
from kernelgen.cli.names import Quartet, chosen_quartets, meant_specs, root_of, spec_of
from kernelgen.cli.terminal import All, DeviceName, Json, Names, Only, Skip, Target, emit, note
from kernelgen.errors import NoDeviceError, UsageError, WrongOrSlowError
from kernelgen.settings import checked, positive, resolve, whole

SELF_TEST = ["-c", "import sys; from kernelgen.judge.selftest import main; sys.exit(main())"]


def check(
    names: Names = None,
    every: All = False,
    device: DeviceName = None,
    target: Target = None,
    only: Only = None,
    skip: Skip = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print the worst element, the errors and the seeds.")
    ] = False,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Use the same inputs as the run that printed this seed.")
    ] = None,
    gpus: fleet.Gpus = None,
    workers: fleet.Workers = None,
    ray: fleet.Ray = None,
    each_device: fleet.EachDevice = False,
    json: Json = False,
) -> int:
    """Run an operator's accuracy test: is the kernel right?

    --target ascend910b3 compiles the kernels for that NPU as far as possible without one, and runs the lowered form on
    the CPU.
    """
    where = fleet.asked(gpus, workers, ray, each_device)
    if target is not None:
        if where is not None:
            raise UsageError("--target works on this machine's CPU; leave out --gpus, --workers and --ray")
        from kernelgen.cli.lowered import Chosen, check_lowered
        from kernelgen.devices import find

        made_for = find("npu", target)
        found = meant_specs(names or [], every, root_of(made_for))  # one without kernels has them made
        return check_lowered(found, made_for, Chosen(tuple(only or ()), tuple(skip or ())), json)
    arguments = [*_each("--only", only), *_each("--skip", skip), *_flag("--verbose", verbose), *_flag("--json", json)]
    if seed is not None:
        arguments += ["--seed", str(checked("--seed", seed, whole(0)))]
    if where is not None:
        return _side_by_side("check", chosen_quartets(names or [], every), arguments, device, where, json)
    return _each_test("accuracy", chosen_quartets(names or [], every), arguments, device, json)


def bench(
    names: Names = None,
    every: All = False,
    min_speedup: Annotated[
        str | None, typer.Option("--min-speedup", metavar="X", help="Exit 1 if a case is below X; 3 without a GPU.")
    ] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="Exit 3 if there is no GPU.")] = False,
    only: Only = None,
    skip: Skip = None,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Test the timer: time a kernel against itself and count how often the interval contains 1.00.",
        ),
    ] = False,
    runs: Annotated[
        str | None, typer.Option("--runs", metavar="N", help="With --self-test: runs per duration (default 100).")
    ] = None,
    gpus: fleet.Gpus = None,
    workers: fleet.Workers = None,
    ray: fleet.Ray = None,
    each_device: fleet.EachDevice = False,
    json: Json = False,
) -> int:
    """Run an operator's performance test: how fast is the kernel?"""
    where = fleet.asked(gpus, workers, ray, each_device)
    if self_test:
        if names or every:
            raise UsageError("--self-test tests the timer itself and takes no NAME")
        if where is not None:
            raise UsageError("--self-test tests the timer of this machine; leave --gpus, --workers and --ray out")
        count = [] if runs is None else ["--runs", str(checked("--runs", runs, whole(1)))]
        return run_test("the self-test", [*SELF_TEST, *count, *_flag("--json", json)], None)
    if runs is not None:
        raise UsageError("--runs needs --self-test, whose runs it counts")
    arguments = [*_each("--only", only), *_each("--skip", skip), *_flag("--json", json)]
    arguments += _flag("--require-gpu", require_gpu)
    if min_speedup is not None:
        arguments += ["--min-speedup", str(checked("--min-speedup", min_speedup, positive()))]
    if where is not None:
        return _side_by_side("bench", chosen_quartets(names or [], every), arguments, None, where, json)
    return _each_test("performance", chosen_quartets(names or [], every), arguments, None, json)


def _each_test(kind: str, tested: list[Quartet], arguments: list[str], device: str | None, json: bool) -> int:
    """One kind of test of each operator, one after the other; with --json several are one document, by name."""
    if len(tested) == 1:
        test = _test_file(tested[0], kind)
        return run_test(str(test), [str(test), *arguments], device)
    codes, documents = [], {}
    for number, quartet in enumerate(tested, start=1):
        try:
            test = _test_file(quartet, kind)
        except UsageError as missing:  # the others go on
            note(f"{quartet.name} ({number} of {len(tested)}):\nerror: {missing}")
            codes.append(WrongOrSlowError.exit_code)
            documents[quartet.name] = {"error": str(missing)}
            continue
        if not json:
            print(f"{quartet.name} ({number} of {len(tested)}):", flush=True)
            codes.append(run_test(str(test), [str(test), *arguments], device))
            continue
        note(f"{quartet.name} ({number} of {len(tested)}):")
        with TemporaryFile() as said:
            codes.append(run_test(str(test), [str(test), *arguments], device, said))
            said.seek(0)
            text = said.read()
            documents[quartet.name] = parse(text) if text.strip() else {"error": f"ended with {codes[-1]}"}
    if json:
        emit(documents)
    return WrongOrSlowError.exit_code if WrongOrSlowError.exit_code in codes else max(codes)


def _test_file(quartet: Quartet, kind: str) -> Path:
    """Raises UsageError where it was never written or is gone."""
    path = quartet.file(kind)
    if not path.is_file():
        raise UsageError(f"{path}: no such file; `kernelgen new {spec_of(quartet)}` writes it")
    return path


def _side_by_side(
    command: str, tested: list[Quartet], arguments: list[str], device: str | None, where: fleet.Fleet, json: bool
) -> int:
    from kernelgen.cli.fleet_run import judge_side_by_side

    options = [*arguments, *([f"--device={device}"] if device else [])]
    return judge_side_by_side(command, tested, options, where, resolve({"device": device}), json)


def _flag(name: str, wanted: bool) -> list[str]:
    return [name] if wanted else []


def _each(name: str, texts: list[str] | None) -> list[str]:
    return [f"{name}={text}" for text in texts or []]


def run_test(
    what: str,
    arguments: list[str],
    device: str | None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> int:
    """Run Python on the arguments with this terminal's streams, and return its exit code."""
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            raise NoDeviceError(f"{module} is not installed: `kernelgen doctor` says how to get it")
    process = subprocess.Popen([sys.executable, *arguments], env=_environment(device), stdout=stdout, stderr=stderr)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal sent it to the test as well, which ends in its own way
        process.wait()
        raise
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        raise WrongOrSlowError(f"{what}: the process died: {signal.Signals(-code).name}")
    return code


def _environment(device: str | None) -> dict[str, str]:
    """The variables of the process: on the cpu device no GPU is visible to it."""
    from kernelgen.devices import find

    chosen = resolve({"device": device}).device
    if chosen is None:
        return dict(os.environ)
    found = find(chosen)
    hidden = {} if found.measures else {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}
    return {**os.environ, **hidden, **dict(found.environment)}
