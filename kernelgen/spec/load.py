"""A spec file as an `OperatorSpec`, or every mistake in it; and finding the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelgen.errors import Mistake, SpecError, UsageError
from kernelgen.spec import cases, reference
from kernelgen.spec.checks import cross_check
from kernelgen.spec.declared import Declared, declared
from kernelgen.spec.model import Case, Constraint, OperatorSpec, Place, SizeValue, Target, TensorSpec
from kernelgen.spec.nearest import hint
from kernelgen.spec.schema import Shape, SpecFile, TensorEntry, validate
from kernelgen.spec.tree import Finding, Map, Text, place_at, read


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
    spec = _build(file, tree, parts, lines, path_name, sha256)
    broken = list(_broken_cases(spec, tree))
    if broken:
        raise _error(path_name, broken)
    return spec


def shipped_specs() -> list[Path]:
    """The specs that come with kernelgen, by name."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "specs"
    folder = installed if installed.is_dir() else package.parent / "specs"
    return sorted(folder.glob("*.yaml"))


def find_spec(name_or_path: str) -> tuple[Path, bool]:
    """The spec a user means and whether it is a shipped one; a file in the working folder wins."""
    for candidate in (name_or_path, f"{name_or_path}.yaml"):
        try:
            if candidate and Path(candidate).is_file():
                return Path(candidate), False
        except (OSError, ValueError):  # a name too long for the file system, or with a null in it
            break
    shipped = {path.stem: path for path in shipped_specs()}
    name = name_or_path.removesuffix(".yaml")
    if name in shipped:
        return shipped[name], True
    near = hint(name, shipped) or "; 'kernelgen list' shows the shipped specs"
    raise UsageError(f"{name_or_path}: no such file, and no shipped spec of that name{near}")


def _error(path: str, found: list[Finding]) -> SpecError:
    return SpecError([Mistake(path, place.line, place.column, message) for place, message in found])


def _build(
    file: SpecFile, tree: Map, parts: Declared, lines: list[str], path: str, sha256: str
) -> OperatorSpec:
    """The frozen operator of a file without mistakes."""
    source = tree.text("reference")
    assert source is not None
    place = reference.block_place(source, lines)
    assert place is not None
    spec = OperatorSpec(
        name=file.name,
        summary=" ".join((file.summary or f"The {file.name} operator, as its PyTorch reference defines it.").split()),
        inputs=_tensors(tree, "inputs", file.inputs),
        outputs=_tensors(tree, "outputs", file.outputs),
        dtypes=tuple((name, tuple(values)) for name, values in file.dtypes.items()),
        constraints=tuple(
            Constraint(text.strip(), text.place) for text in tree.entries("constraints") if isinstance(text, Text)
        ),
        reference=reference.trimmed(source),
        reference_place=place,
        accuracy=(),
        performance=(),
        optimization_strategies=tuple(file.optimization_strategies),
        type=file.type,
        target=Target(**file.target.model_dump()),
        max_rounds=file.max_rounds,
        folder=file.folder or file.name,
        path=path,
        sha256=sha256,
    )
    return _with_cases(spec, file, parts)


def _with_cases(spec: OperatorSpec, file: SpecFile, parts: Declared) -> OperatorSpec:
    from dataclasses import replace

    symbols = parts.sizes or ()
    bindings = spec.dtype_bindings()
    timed = cases.limit(bindings, file.performance.dtypes if file.performance else {})
    tested = [_sizes(shape, symbols) for shape in file.accuracy.shapes] if file.accuracy else None
    measured = (
        [_sizes(shape, symbols) for shape in file.performance.shapes]
        if file.performance and file.performance.shapes
        else None
    )
    return replace(
        spec,
        accuracy=cases.bind(tested, bindings) if tested else _fitting(spec, cases.derived_accuracy(symbols), bindings),
        performance=cases.bind(measured, timed) if measured else _fitting(spec, cases.derived_performance(symbols), timed),
    )


def _fitting(spec: OperatorSpec, shapes: tuple[cases.Sizes, ...], bindings: Any) -> tuple[Case, ...]:
    """The derived cases that the constraints admit."""
    bound = cases.bind(shapes, bindings)
    return tuple(case for case in bound if not any(cases.violations(case, spec.inputs, spec.constraints)))


def _sizes(shape: Shape, symbols: tuple[str, ...]) -> cases.Sizes:
    """A listed shape in the order in which the inputs name the sizes."""

    def value(name: str) -> SizeValue:
        bound = shape[name]
        return tuple(bound) if isinstance(bound, list) else bound

    return tuple((name, value(name)) for name in symbols)


def _tensors(tree: Map, key: str, entries: list[Any]) -> tuple[TensorSpec, ...]:
    def tensor(entry: TensorEntry, place: Place) -> TensorSpec:
        return TensorSpec(entry.name, tuple(entry.shape), entry.dtype, getattr(entry, "role", "data"), place)

    return tuple(tensor(entry, node.place) for entry, node in zip(entries, tree.entries(key), strict=True))


def _broken_cases(spec: OperatorSpec, tree: Map) -> Iterator[Finding]:
    """Listed shapes that a constraint rules out, and lists that are empty because it rules out every derived shape."""
    for key, bound in (("accuracy", spec.accuracy), ("performance", spec.performance)):
        if not bound:
            yield tree.place, f"no shape derived for '{key}' meets the constraints; list some under '{key}: shapes:'"
        entries = tree.child(key).entries("shapes")
        for position, entry in enumerate(entries):
            case = bound[position * len(bound) // len(entries)]
            for condition, reason in cases.violations(case, spec.inputs, spec.constraints):
                yield entry.place, f"the constraint '{condition.text}' {reason} for these sizes"
