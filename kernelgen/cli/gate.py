"""`kernelgen gate`: the kernels here against those of another commit or folder, for CI."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import ROOT, Quartet, chosen_quartets, quartets
from kernelgen.cli.terminal import DeviceName, Json, Names, emit, note
from kernelgen.errors import KernelgenError, NoDeviceError, UsageError, WrongOrSlowError
from kernelgen.settings import checked, positive, resolve

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.evaluate import Evaluator
    from kernelgen.gate import Change


def gate(
    names: Names = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="REF|FOLDER", help="A git commit, or another operators/ folder.")
    ] = None,
    margin: Annotated[
        str | None, typer.Option("--margin", metavar="PERCENT", help="How much slower counts as slower; default: 1.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    device: DeviceName = None,
    json: Json = False,
) -> int:
    """Fail if a kernel is wrong, or slower than before.

    Old and new kernels are timed in interleaved pairs in one process. Exit code 1: a kernel is wrong or slower; 3: no
    GPU. The table is appended to the file GITHUB_STEP_SUMMARY, if that variable is set.
    """
    if against is None:
        raise UsageError("gate needs --against: a git commit such as main, or another operators/ folder")
    share = checked("--margin", (margin or "1").removesuffix("%").strip(), positive()) / 100
    old = _Old(against)
    chosen = chosen_quartets(names or [], every=not names)
    from kernelgen import gate as judging
    from kernelgen.devices import find

    here = find(resolve({"device": device}).device)
    if not here.measures:
        raise NoDeviceError("gate needs a GPU, and none was found (`kernelgen doctor` says what is missing)")
    findings = []
    changes = [(quartet.name, partial(_change, quartet, old)) for quartet in chosen]
    gone = [] if names else [(change.operator, partial(_same, change)) for change in _gone(old, chosen)]
    for name, change_of in [*changes, *gone]:
        try:
            found = judging.examine(change_of(), partial(_start, here), share)
        except KernelgenError as error:  # one that cannot be read does not keep the others from being judged
            found = judging.Finding(name, "wrong", str(error).partition("\n")[0])
        findings.append(found)
        if found.why != judging.SAME:
            note(f"{name}: {found.verdict}: {found.why}")
    text = judging.markdown(findings, against, here.describe()["device"])
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    if junit is not None:
        from kernelgen.files import write_atomic

        write_atomic(junit, judging.junit(findings))
    ok = judging.passed(findings)
    if json:
        emit({"passed": ok, "against": against, "operators": [asdict(one) for one in findings]})
    else:
        print(text, end="")
    return 0 if ok else WrongOrSlowError.exit_code


class _Old:
    """The files below operators/ as they were: of another folder, or of a commit of the repository here."""

    def __init__(self, against: str) -> None:
        self._folder = Path(against) if Path(against).is_dir() else None
        self._ref = against
        if self._folder is None:
            self._ref = self._git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{against}^{{commit}}"
            ).strip()

    def read(self, path: Path) -> str | None:
        """A file's text by its path below operators/; None where there was none."""
        if self._folder is not None:
            file = self._folder / path
            return file.read_text("utf-8") if file.is_file() else None
        done = subprocess.run(
            ["git", "show", f"{self._ref}:./{(ROOT / path).as_posix()}"], capture_output=True, check=False
        )
        return done.stdout.decode("utf-8") if done.returncode == 0 else None

    def kernels(self) -> list[Path]:
        """The kernels that there were, by their paths below operators/."""
        if self._folder is not None:
            return [quartet.file("triton").relative_to(self._folder) for quartet in quartets(self._folder)]
        listed = self._git("ls-tree", "-r", "--name-only", self._ref, "--", f"./{ROOT}")
        return [Path(line).relative_to(ROOT) for line in listed.splitlines() if line.endswith("_triton.py")]

    def _git(self, *arguments: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise UsageError("--against: git is not installed; give a folder") from None
        if done.returncode != 0:
            said = (
                done.stderr.strip().partition("\n")[0].removeprefix("fatal: ") or "no such commit, and no such folder"
            )
            way_out = "; give a folder, or run this inside the repository" if "not a git repository" in said else ""
            raise UsageError(f"--against {self._ref}: {said}{way_out}")
        return done.stdout


def _change(quartet: Quartet, old: _Old) -> Change:
    """An operator's kernel now and then."""
    from kernelgen import generation
    from kernelgen.cli.new import load
    from kernelgen.gate import Change
    from kernelgen.manifest import MANIFEST, read_manifest

    path = quartet.file("triton").relative_to(ROOT)
    before = old.read(path)
    now = read_manifest(quartet.folder)
    then = old.read(path.parent / MANIFEST)
    new = quartet.file("triton").read_text("utf-8")
    same = now is not None and then is not None and _interface(then) == now.interface
    if before in (None, new) or not same:
        return Change(quartet.name, before, new, same or before == new, (), None)
    plan = generation.plan_of(load(quartet.name), ROOT)
    return Change(quartet.name, before, new, same, plan.spec.performance, plan.table[0].schedule)


def _interface(manifest: str) -> str:
    from kernelgen.files import parse_json

    try:
        found = parse_json(manifest)
    except ValueError:
        return ""
    return str(found.get("interface", "")) if isinstance(found, dict) else ""


def _gone(old: _Old, chosen: list[Quartet]) -> list[Change]:
    """Kernels that were there and are no more."""
    from kernelgen.gate import Change

    here = {quartet.file("triton").relative_to(ROOT) for quartet in chosen}
    return [
        Change(path.name.removesuffix("_triton.py"), "", None, False, (), None)
        for path in old.kernels()
        if path not in here
    ]


def _same(change: Change) -> Change:
    return change


@contextmanager
def _start(device: Device, change: Change) -> Iterator[Evaluator]:
    """The evaluator of an operator on the device."""
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.cli.names import find_quartet
    from kernelgen.cli.new import load
    from kernelgen.evaluate import evaluator

    plan = generation.plan_of(load(change.operator), ROOT)
    with (
        tempfile.TemporaryDirectory(prefix="kernelgen-gate-") as store,
        evaluator(device, plan, find_quartet(change.operator).folder, Path(store), partial(work, plan)) as run,
    ):
        yield run
