"""Compare the machine code of shipped operators with that of an older tree; needs no GPU.

    python docs/benchmarks/same_code.py HEAD~1            # all whose generated file differs between it and here
    python docs/benchmarks/same_code.py main glu softmax  # only these
    python docs/benchmarks/same_code.py HEAD~2 --to HEAD~1

Every launch of every performance case is compiled ahead of time for the H200, from the file as it was and as it is.
Equal machine code runs as fast. Where it differs, a line says how: instructions, registers a thread, bytes of spills,
bytes of shared memory, and the accesses to global memory with the widest of each, before and after. The exit status is
1 where something differs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Code:
    """What one launch runs."""

    grid: tuple[int, ...]
    sass: str
    facts: tuple[int, ...]

    def __str__(self) -> str:
        count, registers, spills, shared, loads, load, stores, store = self.facts
        return (
            f"{count} instructions, {registers} registers, {spills} spilled, {shared} shared, {loads} loads of {load}, "
            f"{stores} stores of {store}, grid {self.grid}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", help="the older tree")
    parser.add_argument("names", nargs="*", help="operators; all that differ by default")
    parser.add_argument("--to", help="the newer tree; the files as they lie here by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    names = given.names or sorted(_paths())
    changed = [name for name in names if _text(given.ref, name) not in ("", _text(given.to, name))]
    lines = [0, 0]
    same = launches = 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, found in zip(changed, pool.map(partial(compare, given.ref, given.to), changed), strict=True):
            before, after = (_text(ref, name).count("\n") for ref in (given.ref, given.to))
            lines = [lines[0] + before, lines[1] + after]
            different = [said for said in found if said]
            same, launches = same + len(found) - len(different), launches + len(found)
            print(f"{name}: {before} -> {after} lines, {len(found)} launches, {len(different)} differ", flush=True)
            for said in dict.fromkeys(different):
                print(f"    {said}")
    print(f"{len(changed)} of {len(names)} files differ, {lines[0]} -> {lines[1]} lines; ", end="")
    print(f"{same} of {launches} launches have the same machine code")
    return int(same != launches)


def _paths() -> dict[str, Path]:
    """The file of every operator, gradients included."""
    return {path.stem.removesuffix("_triton"): path for path in ROOT.glob("operators/**/*_triton.py")}


def _path(name: str) -> Path:
    return _paths()[name]


def _text(ref: str | None, name: str) -> str:
    """The file in a tree, empty where that has none; None: as it lies here."""
    if ref is None:
        return _path(name).read_text("utf-8")
    place = f"{ref}:{_path(name).relative_to(ROOT)}"
    return subprocess.run(["git", "show", place], capture_output=True, text=True, cwd=ROOT, check=False).stdout


def compare(ref: str, to: str | None, name: str) -> list[str]:
    """For every launch how its code differs, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for label, tree in (("before", ref), ("after", to)):
            path = Path(folder, f"{name}_{label}.py")
            path.write_text(_text(tree, name), encoding="utf-8")
            found.append(dict(_codes(path, name)))
    before, after = found
    return [_difference(key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after))]


def _difference(key: str, before: Code | None, after: Code | None) -> str:
    if before is None or after is None:
        return f"{key}: a launch that only {'the new' if before is None else 'the old'} file makes"
    return "" if (before.sass, before.grid) == (after.sass, after.grid) else f"{key}: {before} -> {after}"


def _codes(path: Path, name: str) -> Iterator[tuple[str, Code]]:
    """The code of every launch, by its case and its place among that case's launches."""
    from triton.runtime.driver import driver

    from kernelgen.devices.facts import H200
    from kernelgen.spec import load_spec, shipped_specs
    from kernelgen.worker import ahead, load, resources

    driver.set_active(ahead.StubDriver(90, ahead.StubUtils(H200.sms)))
    beside = _path(name).with_name(f"{name}.yaml")  # gradients have their spec beside them
    spec = load_spec(beside if beside.exists() else next(p for p in shipped_specs() if p.stem == name))
    wrapper = load.candidate(str(path), name)
    for case in spec.performance:
        inputs = [[case.shape(t.shape), case.dtype(t.dtype)] for t in spec.inputs]
        for number, launch in enumerate(ahead.record(wrapper, inputs)):
            kernel = launch.kernel
            sass = _sass(kernel.asm["cubin"])
            reads = resources.accesses(kernel.asm["ptx"])
            facts = (
                sass.count("\n"), *resources.usage(kernel.asm["cubin"]), kernel.metadata.shared, reads.loads,
                reads.load_bytes, reads.stores, reads.store_bytes,
            )  # fmt: skip
            yield f"{case.label}, launch {number + 1}", Code(launch.grid, sass, facts)


def _sass(cubin: bytes) -> str:
    """The instructions, without their addresses and the kernel's name."""
    from kernelgen.worker import resources

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [resources.cuobjdump(), "-sass", file.name], capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "PATH": f"{Path(resources.cuobjdump()).parent}:{os.environ['PATH']}"},
        ).stdout  # fmt: skip
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?;)", shown)
    return "\n".join([*found, ""])


if __name__ == "__main__":
    raise SystemExit(main())
