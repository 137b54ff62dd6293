"""A spec file as an `OperatorSpec`, or every mistake in it; and finding the file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kernelgen.errors import Mistake, SpecError, UsageError
from kernelgen.spec import cases, leaves, reference
from kernelgen.spec.branches import settled
from kernelgen.spec.checks import cross_check
from kernelgen.spec.declared import declared
from kernelgen.spec.divided import divided, divisors
from kernelgen.spec.model import (
    CUSTOM,
    STRATEGIES,
    WRITING,
    Case,
    Constraint,
    OperatorSpec,
    Place,
    SizeValue,
    Sketch,
    Target,
    TensorSpec,
)
from kernelgen.spec.nearest import hint
from kernelgen.spec.schema import InputEntry, OutputEntry, Shape, SpecFile, TensorEntry, validate
from kernelgen.spec.tree import Finding, Map, Text, place_at, read, shorten

try:
    from yaml import CSafeLoader as _Loader  # ten times as fast, where PyYAML was built with it
except ImportError:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]


def load_spec(path: Path) -> OperatorSpec:
    """Read a spec file. SpecError carries every mistake in it; a file that cannot be read is a UsageError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = place_at(data[: error.start].decode("utf-8"), error.start)
        raise _error(str(path), [(where, f"byte 0x{data[error.start]:02X} is not UTF-8")]) from None
    return parse_spec(text, str(path))


def parse_spec(text: str, path_name: str = "<spec>") -> OperatorSpec:
    """The operator that a spec's text declares; `path_name` is how mistakes name the file."""
    sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    text = text.removeprefix("\ufeff")
    tree, found = read(text)
    if tree is None:
        raise _error(path_name, found)
    file, wrong = validate(tree)
    parts = declared(tree)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found += [*wrong, *cross_check(tree, parts, lines)]
    if found or file is None:
        raise _error(path_name, found)
    spec = _build(file, tree, lines, path_name, sha256)
    return divided(_with_cases(spec, file, tree, parts.sizes or ()))


def sketch(path: Path) -> Sketch:
    """What a list says of a spec, without its cases and without looking for mistakes; SpecError where it is no spec."""
    try:
        data = path.read_bytes()
        found = yaml.load(data, Loader=_Loader)
        name, summary = found["name"], found["summary"]
        digest = hashlib.sha256(data).hexdigest()[:16]
        folder, family = str(found.get("folder") or name), str(found.get("family") or "")
        return Sketch(str(name), folder, family, " ".join(str(summary).split()), digest)
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError):
        spec = load_spec(path)
        return Sketch(spec.name, spec.folder, spec.family or "", spec.summary, spec.sha256[:16])


def shipped_specs() -> list[Path]:
    """The specs that come with kernelgen, by name."""
    return list(_shipped().values())


@cache
def _shipped() -> dict[str, Path]:
    package = Path(__file__).resolve().parents[1]
    installed = package / "specs"
    folder = installed if installed.is_dir() else package.parent / "specs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_spec(name_or_path: str) -> tuple[Path, bool]:
    """The spec a user means and whether it is a shipped one.

    A file in the working folder wins, then one below specs/, at any depth. Raises UsageError where there is none, or
    where specs/ has several of that name.
    """
    for candidate in (name_or_path, f"{name_or_path}.yaml"):
        try:
            if candidate and Path(candidate).is_file():
                return Path(candidate), False
        except (OSError, ValueError):  # a name too long for the file system, or with a null in it
            break
    shipped = _shipped()
    name = name_or_path.removesuffix(".yaml")
    # no glob of them all: `list` asks for every one
    own = sorted(Path(folder, f"{name}.yaml") for folder, _, files in os.walk("specs") if f"{name}.yaml" in files)
    if name.endswith(".yml"):
        raise UsageError(f"{name_or_path}: no such file; the name of a spec ends in .yaml")
    if len(own) > 1:
        raise UsageError(f"{name_or_path}: there are several: {', '.join(map(str, own))}; give the path of one")
    if own and not (name in shipped and own[0].samefile(shipped[name])):
        return own[0], False
    if name in shipped:
        return shipped[name], True
    if os.path.isdir(name_or_path):  # which takes names that no file system takes
        raise UsageError(f"{name_or_path}: is a folder; give a spec file in it, or the name of a spec")
    near = hint(name, [*shipped, *(path.stem for path in own_specs())]) or "; `kernelgen list` shows the specs"
    raise UsageError(f"{name_or_path}: no such file, and no shipped spec of that name{near}")


def own_specs() -> list[Path]:
    """The specs below specs/ in the working folder, at any depth."""
    return sorted(Path("specs").rglob("*.yaml"))


def _error(path: str, found: list[Finding]) -> SpecError:
    # a message quotes what the file says, which may hold line ends and be of any length
    return SpecError([Mistake(path, place.line, place.column, shorten(message, 300)) for place, message in found])


def _build(file: SpecFile, tree: Map, lines: list[str], path: str, sha256: str) -> OperatorSpec:
    """The frozen operator of a file without mistakes, still without cases."""
    source = tree.text("reference")
    assert source is not None
    place = reference.block_place(source, lines)
    assert place is not None
    return OperatorSpec(
        name=file.name,
        summary=" ".join((file.summary or f"The {file.name} operator, as its PyTorch reference defines it.").split()),
        inputs=_tensors(tree, "inputs", file.inputs),
        outputs=_tensors(tree, "outputs", file.outputs),
        dtypes=tuple((name, tuple(values)) for name, values in file.dtypes.items()),
        constraints=_constraints(tree),
        reference=reference.trimmed(source),
        reference_place=place,
        accuracy=(),
        performance=(),
        optimization_strategies=tuple(
            file.optimization_strategies or (WRITING if file.family == CUSTOM else STRATEGIES)
        ),
        family=file.family,
        type=file.type,
        type_place=tree.key_place("type"),
        target=Target(**file.target.model_dump()) if file.target else Target(),
        max_rounds=file.max_rounds,
        folder=file.folder or file.name,
        module=reference.trimmed(file.module or ""),
        backward=file.backward,
        deterministic=file.deterministic,
        precision=file.precision,
        precision_place=tree.key_place("precision"),
        path=path,
        sha256=sha256,
    )


def _constraints(tree: Map) -> tuple[Constraint, ...]:
    """What the file says, and that what is written into has no gaps: its elements are then numbered as a result's."""
    said = [Constraint(text.strip(), text.place) for text in tree.entries("constraints") if isinstance(text, Text)]
    written = [entry.text("into") for entry in tree.entries("outputs") if isinstance(entry, Map)]
    return (*said, *(Constraint(f"{name}.is_contiguous()", name.place) for name in written if name is not None))


def _with_cases(spec: OperatorSpec, file: SpecFile, tree: Map, symbols: tuple[str, ...]) -> OperatorSpec:
    """The spec with the cases it lists, or derived ones; SpecError where a constraint rules a listed shape out."""
    bindings = spec.dtype_bindings()
    timed = cases.limited(bindings, file.performance.dtypes if file.performance else {})
    listed = {"accuracy": file.accuracy, "performance": file.performance}
    derived = {"accuracy": cases.derived_accuracy(symbols), "performance": cases.derived_performance(symbols)}
    bound: dict[str, tuple[Case, ...]] = {}
    found: list[Finding] = []
    spec = settled(spec, _used(spec, file, symbols) or tuple(s for of in derived.values() for s in of))
    for key, section in listed.items():
        given = section is not None and section.shapes is not None
        if section is not None and section.shapes is not None:
            places = [entry.place for entry in tree.child(key).entries("shapes")]
            shapes = [(place, _sizes(shape, symbols)) for place, shape in zip(places, section.shapes, strict=True)]
        else:
            shapes = [(tree.place, cases.rounded(sizes, divisors(spec))) for sizes in derived[key]]
        dtypes = timed if key == "performance" else bindings
        bound[key], excluded = cases.admitted(spec, shapes, dtypes, derived=not given)
        if given:
            found += excluded
        elif not bound[key]:
            found.append((tree.place, f"no derived shape meets the constraints; list some under '{key}: shapes:'"))
    if found:
        raise _error(spec.path, found)
    return replace(spec, accuracy=bound["accuracy"], performance=bound["performance"])


def _used(spec: OperatorSpec, file: SpecFile, symbols: tuple[str, ...]) -> tuple[cases.Sizes, ...]:
    """The shapes that a file lists."""
    sections = (file.accuracy, file.performance)
    return tuple(_sizes(shape, symbols) for section in sections if section for shape in section.shapes or ())


def _sizes(shape: Shape, symbols: tuple[str, ...]) -> cases.Sizes:
    """A listed shape in the order in which the inputs name the sizes."""

    def value(name: str) -> SizeValue:
        bound = shape[name]
        return tuple(bound) if isinstance(bound, list) else bound

    return tuple((name, value(name)) for name in symbols)


def _tensors(tree: Map, key: str, entries: list[Any]) -> tuple[TensorSpec, ...]:
    def tensor(entry: TensorEntry, place: Place) -> TensorSpec:
        role: Any = getattr(entry, "role", "data")
        found = TensorSpec(entry.name, tuple(entry.shape), entry.dtype, role, place)
        if isinstance(entry, OutputEntry):
            return replace(found, into=entry.into)
        if not isinstance(entry, InputEntry):
            return found
        if entry.scalar is not None:
            return _plain(found, entry)
        return replace(found, optional=entry.optional, below=entry.below, offsets=entry.offsets or entry.ends,
            is_ends=entry.ends is not None, checked=entry.checked,
        )  # fmt: skip

    return tuple(tensor(entry, node.place) for entry, node in zip(entries, tree.entries(key), strict=True))


def _plain(found: TensorSpec, entry: InputEntry) -> TensorSpec:
    """A number, or an option of which each value has kernels of its own."""
    kind = entry.scalar or "float"
    default = leaves.value(kind, entry.default)
    if kind in ("float", "int") and not entry.values:
        return replace(found, role="scalar", kind=kind, default=default)
    values = tuple(leaves.value(kind, text) for text in entry.values or ()) or (True, False)
    return replace(found, role="option", kind=kind, default=default, values=values)
