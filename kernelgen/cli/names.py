"""From the NAME on a command line to the generated files below operators/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.errors import UsageError

if TYPE_CHECKING:
    from kernelgen.devices import Device

ROOT = Path("operators")
"""Where quartets are, below the working folder."""
LOGS = Path("logs")
"""Where the journals of runs are."""


def root_of(device: Device) -> Path:
    """Where the quartets for a device are: an NPU's are made for it, those in operators/ for any GPU."""
    return ROOT if device.family == "gpu" else Path(f"{ROOT}-{device.arch}")


_SUFFIX = "_triton.py"


@dataclass(frozen=True)
class Quartet:
    """The generated files of one operator; several operators may share a folder."""

    name: str
    folder: Path

    def file(self, kind: str) -> Path:
        """One of the four: triton, baseline, accuracy or performance."""
        return self.folder / f"{self.name}_{kind}.py"


def quartets(root: Path = ROOT) -> Iterator[Quartet]:
    """Every quartet below `root`, at any depth, by folder and name."""
    for path in sorted(root.rglob(f"*{_SUFFIX}")):
        yield Quartet(path.name.removesuffix(_SUFFIX), path.parent)


def no_kernels(root: Path) -> str:
    """What to say of a folder without a quartet."""
    return f"there are no kernels in {root}/ yet" if root.is_dir() else f"there is no folder {root}/ here"


def find_quartet(name: str, root: Path = ROOT) -> Quartet:
    """The quartet of an operator, by its name or a spec's file.

    Raises UsageError with the nearest name, or with what to run where only a spec is.
    """
    known = {quartet.name: quartet for quartet in quartets(root)}
    if name in known:
        return known[name]
    if name.endswith(".yaml"):
        return _of_spec(name, known, root)
    specs = spec_names()
    if name in specs:
        raise UsageError(f"{name} has a spec but no kernel in {root}/ yet: run `kernelgen new {name}` first")
    near = get_close_matches(name, [*known, *specs], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`kernelgen list` shows what there is"
    raise UsageError(f"there is no operator {name!r}; {hint}")


def _of_spec(file: str, known: dict[str, Quartet], root: Path) -> Quartet:
    """The quartet that was generated from a spec's file."""
    from kernelgen.spec import find_spec, load_spec

    name = load_spec(find_spec(file)[0]).name
    if name not in known:
        raise UsageError(f"{file} has no kernel in {root}/ yet: run `kernelgen new {file}` first")
    return known[name]


def chosen_quartets(names: Sequence[str], every: bool, root: Path = ROOT) -> list[Quartet]:
    """The quartets that a command was given: names, globs and files of specs, or all of them, each once."""
    if every:
        if names:
            raise UsageError("--all takes no NAME")
        found = list(quartets(root))
        if not found:
            raise UsageError(f"{no_kernels(root)}: `kernelgen new SPEC` writes one")
        return found
    if not names:
        raise UsageError("which operator? A NAME, a glob such as 'quantize_*', a spec's file, or --all")
    found = []
    for name in names:
        if not set(name) & set("*?["):
            found.append(find_quartet(name, root))
            continue
        matched = [quartet for quartet in quartets(root) if fnmatchcase(quartet.name, name)]
        if not matched:
            raise UsageError(f"no operator in {root}/ is called {name}; `kernelgen list` shows what there is")
        found += matched
    return list(dict.fromkeys(found))


def meant_specs(names: Sequence[str], every: bool, root: Path = ROOT) -> list[str]:
    """The specs that a command was given, by names that `find_spec` or the quartets know: globs are of quartets."""
    if every or not names:
        return [quartet.name for quartet in chosen_quartets(names, every, root)]
    found: list[str] = []
    for name in names:
        is_glob = set(name) & set("*?[")
        found += [quartet.name for quartet in chosen_quartets([name], False, root)] if is_glob else [name]
    return list(dict.fromkeys(found))


def spec_of(quartet: Quartet) -> str:
    """The name of the spec file that a quartet was generated from."""
    from kernelgen.manifest import read_manifest

    manifest = read_manifest(quartet.folder)
    return manifest.spec if manifest else f"{quartet.name}.yaml"


def generated_spec(name: str, root: Path = ROOT) -> Path | None:
    """The spec of an operator that a search by name does not find: beside its quartet, as the parts of a backward have
    theirs, or where the quartet was generated from."""
    stem = name.removesuffix(".yaml")
    for quartet in quartets(root):
        if (quartet.folder / f"{stem}.yaml").is_file():
            return quartet.folder / f"{stem}.yaml"
        if quartet.name == stem and (path := Path(spec_of(quartet))).is_file():
            return path
    return None


def spec_names() -> list[str]:
    """The specs of the working folder, those below specs/ and the shipped ones, by the stem of their files."""
    from kernelgen.spec import own_specs, shipped_specs

    return sorted({path.stem for path in [*Path().glob("*.yaml"), *own_specs(), *shipped_specs()]})


def complete_quartet(incomplete: str) -> list[str]:
    """Shell completion for NAME."""
    return [quartet.name for quartet in quartets() if quartet.name.startswith(incomplete)]


def complete_spec(incomplete: str) -> list[str]:
    """Shell completion for SPEC."""
    return [f"{name}.yaml" for name in spec_names() if name.startswith(incomplete)]
