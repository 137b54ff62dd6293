"""The checks that compare one part of a spec with another. Each yields what it finds; none stops at the first."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_core import PydanticCustomError

from kernelgen.spec import constraints, leaves, module, reference
from kernelgen.spec.choices import MOST
from kernelgen.spec.declared import Declared, DeclaredTensor
from kernelgen.spec.model import CUSTOM, DTYPES, ELLIPSIS, STRATEGIES, Place
from kernelgen.spec.nearest import hint, nearest
from kernelgen.spec.sizes import bound_by, names_in
from kernelgen.spec.tree import Finding, Map, Seq, Text, Tree


def cross_check(tree: Map, parts: Declared, lines: list[str]) -> Iterator[Finding]:
    """Every mistake that only shows when parts of the spec are held against one another."""
    yield from _names(parts)
    yield from _shapes(parts)
    yield from _dtypes(tree, parts)
    yield from _indices(tree, parts)
    yield from _written(tree, parts)
    yield from _numbers(tree)
    for key in ("accuracy", "performance"):
        yield from _cases(tree.child(key), parts)
    yield from _limits(tree.child("performance"), parts)
    yield from _repeats(tree.entries("optimization_strategies"), "strategy")
    yield from _constraints(tree, parts, lines)
    yield from _reference(tree, parts, lines)
    yield from _module(tree, parts, lines)
    yield from _custom(tree)


def _custom(tree: Map) -> Iterator[Finding]:
    """With `family: custom` nothing is asked for that only a family can give."""
    if tree.text("family") != CUSTOM:
        return
    kind = tree.text("type")
    if kind is not None:
        yield kind.place, "with 'family: custom' no family writes the kernel, so 'type' has nothing to check"
    backward = tree.text("backward")
    if backward == "true":
        yield backward.place, "gradients are derived by families; with 'family: custom' there are none"
    deterministic = tree.text("deterministic")
    if deterministic == "false":
        yield deterministic.place, "float atomics are a family's; with 'family: custom' two calls give the same bits"
    for name in tree.entries("optimization_strategies"):
        if isinstance(name, Text) and name in STRATEGIES:
            yield name.place, f"{name} tunes the kernel of a family; with 'family: custom' there is llm alone"


def _names(parts: Declared) -> Iterator[Finding]:
    """No two things that appear in the generated code share a name."""
    seen: dict[str, str] = {} if parts.name is None else {str(parts.name): "the operator's name"}
    for tensor, what in [*((t, "an input") for t in parts.inputs), *((t, "an output") for t in parts.outputs)]:
        if tensor.name is None:
            continue
        if tensor.name in seen:
            yield tensor.name.place, f"'{tensor.name}' is already {seen[tensor.name]}"
        seen.setdefault(str(tensor.name), what)
    reported = set()
    for tensor in (*parts.inputs, *parts.outputs):
        for entry, place in tensor.shape or ():
            for name in names_in(entry):
                if name in seen and name not in reported:
                    reported.add(name)
                    yield place, f"the size '{name}' is already {seen[name]}"


def _shapes(parts: Declared) -> Iterator[Finding]:
    for tensor in (*parts.inputs, *parts.outputs):
        elastic = [place for entry, place in tensor.shape or () if entry == ELLIPSIS]
        for place in elastic[1:]:
            yield place, "'...' may stand only once in a shape"
    bound = parts.sizes
    if bound is None:
        return
    for tensor in parts.outputs:
        for entry, place in tensor.shape or ():
            for name in names_in(entry):
                if name not in bound:
                    yield place, f"size '{name}' is bound by no input{hint(name, bound)}"
    anywhere = {bound_by(entry) for t in parts.inputs for entry, _ in t.shape or ()}
    always = {bound_by(entry) for t in parts.inputs if not t.optional for entry, _ in t.shape or ()}
    for tensor in parts.inputs:
        for entry, place in tensor.shape or ():
            for name in names_in(entry):
                if name not in anywhere:
                    yield (
                        place,
                        f"no size follows from '{entry}': give an input a dimension '{name}', or a multiple of it",
                    )
                elif name not in always:
                    yield place, f"size '{name}' is bound by optional inputs alone, which a call may leave out"


def _dtypes(tree: Map, parts: Declared) -> Iterator[Finding]:
    known = (*parts.dtypes, *DTYPES)
    for variable in parts.dtypes:
        if variable in DTYPES:
            yield variable.place, f"'{variable}' is a dtype itself; choose another name for the variable"
        yield from _bad_name(variable)
        values = tree.child("dtypes").get(variable)
        yield from _repeats(values if isinstance(values, Seq) else [], "dtype")
    for tensor in (*parts.inputs, *parts.outputs):
        if tensor.dtype is not None and tensor.dtype not in known:
            near = hint(tensor.dtype, known)
            near = "; declare it under 'dtypes' or name a dtype" if not near or "known:" in near else near
            yield tensor.dtype.place, f"unknown dtype '{tensor.dtype}'{near}"
    if any(tensor.dtype is None for tensor in (*parts.inputs, *parts.outputs)) or not parts.inputs:
        return
    of_inputs = {str(tensor.dtype) for tensor in parts.inputs if not tensor.optional}
    of_optional = {str(tensor.dtype): tensor for tensor in reversed(parts.inputs) if tensor.optional}
    of_outputs = {str(tensor.dtype): tensor for tensor in reversed(parts.outputs)}
    for variable in parts.dtypes:
        if variable not in of_inputs and variable in of_optional:
            message = f"the dtype '{variable}' is that of optional inputs alone, which a call may leave out"
            yield _place(of_optional[variable]), message
        elif variable not in of_inputs and variable in of_outputs:
            place = _place(of_outputs[variable])
            yield place, f"no input has the dtype '{variable}', so the output's cannot follow from the inputs"
        elif variable not in of_inputs and variable not in DTYPES:
            yield variable.place, f"no tensor has the dtype '{variable}'"


def _indices(tree: Map, parts: Declared) -> Iterator[Finding]:
    """`below`, `offsets` and `ends` name a size of the inputs, of a tensor of integers; `checked` says of what."""
    sizes = [entry for tensor in parts.inputs for entry, _ in tensor.shape or () if isinstance(entry, str)]
    for tensor, entry in zip(parts.inputs, tree.entries("inputs"), strict=True):
        if not isinstance(entry, Map):
            continue
        bounds = [bound for key in ("below", "offsets", "ends") if (bound := entry.text(key)) is not None]
        names = {name for size in sizes for name in names_in(size)}
        for bound in bounds:
            if not bound.isdigit() and not {*names_in(leaves.spelt(bound))} <= names:
                yield bound.place, f"size '{bound}' is bound by no input{hint(bound, sizes)}"
            if tensor.dtype is not None and tensor.dtype not in ("int32", "int64"):
                yield bound.place, f"indices are int32 or int64, and {tensor.name} is {tensor.dtype}"
        checked = entry.text("checked")
        if len(bounds) > 1:
            yield bounds[1].place, "one of below, offsets and ends: indices do not rise, and offsets begin at 0"
        if (
            (entry.text("offsets") or entry.text("ends")) is not None
            and tensor.shape is not None
            and len(tensor.shape) != 1
        ):
            yield bounds[-1].place, f"offsets are a tensor of one dimension, and {tensor.name} has {len(tensor.shape)}"
        if checked is not None and not bounds:
            yield checked.place, "checked: of what? It goes with below, offsets or ends"


def _numbers(tree: Map) -> Iterator[Finding]:
    """What is no tensor has a default and nothing that only tensors have, and stands behind the tensors."""
    entries = [entry for entry in tree.entries("inputs") if isinstance(entry, Map)]
    plain = [entry for entry in entries if entry.text("scalar") is not None]
    optional = [entry for entry in entries if entry.text("optional") == "true"]
    for position, entry in enumerate(entries):
        others = entries[position + 1 :]
        if entry in plain:
            yield from _plain(entry, f"inputs[{position}]")
            if any(other not in plain for other in others):
                yield entry.place, "numbers and options stand behind the tensors: a call may leave them out"
            continue
        for key in ("shape", "dtype"):
            if key not in entry and all(nearest(str(other), [key]) is None for other in entry):
                yield entry.place, f"'inputs[{position}]' needs the key '{key}'"
        for key in ("default", "values"):
            if key in entry:
                message = f"a tensor has no '{key}'; it is that of a number or an option, beside 'scalar: float'"
                yield entry.key_place(key), message
        if entry in optional and any(other not in plain and other not in optional for other in others):
            yield entry.place, "optional inputs stand behind the others: a call may leave them out"
    yield from _alone(tree, plain, optional)


def _plain(entry: Map, where: str) -> Iterator[Finding]:
    """A number or an option."""
    scalar, default = entry.text("scalar"), entry.text("default")
    assert scalar is not None
    what = "a number" if scalar in ("float", "int") else "an option"
    for key in ("shape", "dtype", "role", "below", "offsets", "ends", "checked", "optional"):
        if key in entry:
            yield entry.key_place(key), f"{what} has no '{key}'"
    if default is None:
        example = "float, default: 1e-6" if what == "a number" else "bool, default: false"
        yield scalar.place, f"{what} needs a default, as in 'scalar: {example}'"
    if scalar not in leaves.SCALARS:
        return
    values = entry.entries("values")
    if scalar == "str" and not values:
        yield scalar.place, "a str is one of the 'values' that it may be, each with kernels of its own"
    known: list[object] = []
    for written in [*values, *([default] if default is not None else [])]:
        try:
            found = leaves.value(scalar, written)
        except PydanticCustomError as error:
            message = error.message()
            place = f"'{where}.{'default' if written is default else 'values'}' "
            yield written.place, message if message.startswith("unknown") else place + message
            continue
        if written is not default and found in known:
            yield written.place, f"the value {found!r} is listed twice"
        elif written is default and known and found not in known:
            yield written.place, f"the default {found!r} is none of the 'values'"
        known.append(found)


def _alone(tree: Map, plain: list[Map], optional: list[Map]) -> Iterator[Finding]:
    """What does not go with numbers, options and optional inputs; and that not too many kernels come of them."""
    ways = 2 ** len(optional)
    for entry in plain:
        ways *= len(entry.entries("values")) or 1 + (entry.text("scalar") == "bool")
    backward = tree.text("backward")
    if (plain or optional) and backward == "true":
        what = "numbers" if plain else "optional inputs"
        yield backward.place, f"there are no gradients beside {what} yet; give the parameter a default without an input"
    if plain and tree.text("family") == CUSTOM:
        yield plain[0].place, "with 'family: custom' inputs are tensors"
    if optional and tree.text("family") == CUSTOM:
        yield optional[0].place, "with 'family: custom' no input is optional"
    if ways > MOST:
        place = (optional or plain)[0].place
        yield place, f"{ways} ways of calling the operator, each with kernels of its own; at most {MOST}"


def _written(tree: Map, parts: Declared) -> Iterator[Finding]:
    """`into` names an input that can hold the output, and no other output has."""
    inputs = {tensor.name: tensor for tensor in parts.inputs if tensor.name is not None}
    roles = [entry.text("role") if isinstance(entry, Map) else None for entry in tree.entries("inputs")]
    likes = {tensor.name for tensor, role in zip(parts.inputs, roles, strict=True) if role == "like"}
    optional = {tensor.name for tensor in parts.inputs if tensor.optional}
    taken: dict[str, Text | None] = {}
    for output, entry in zip(parts.outputs, tree.entries("outputs"), strict=True):
        into = entry.text("into") if isinstance(entry, Map) else None
        if into is None:
            continue
        given = inputs.get(into)
        if given is None:
            yield into.place, f"'{into}' is no input{hint(into, inputs)}"
        elif into in taken:
            yield into.place, f"'{taken[into]}' is written into {into} already"
        elif into in likes:
            yield into.place, f"{into} has 'role: like': its elements are nobody's to change"
        elif into in optional:
            yield into.place, f"{into} is optional: where it is left out there is nothing to write into"
        elif None not in (given.shape, output.shape) and _entries(given) != _entries(output):
            yield into.place, f"{into} is {_said(given)}, and {output.name} is {_said(output)}"
        elif None not in (given.dtype, output.dtype) and given.dtype != output.dtype:
            yield into.place, f"{into} is {given.dtype}, and {output.name} is {output.dtype}"
        elif tree.text("backward") == "true":
            yield into.place, "what is written into an input has no gradient; leave out 'into' or 'backward'"
        taken.setdefault(into, output.name)


def _entries(tensor: DeclaredTensor) -> list[object]:
    return [entry for entry, _ in tensor.shape or ()]


def _said(tensor: DeclaredTensor) -> str:
    return f"[{', '.join(map(str, _entries(tensor)))}]"


def _place(tensor: DeclaredTensor) -> Place:
    return tensor.dtype.place if tensor.dtype is not None else tensor.place


def _cases(section: Map, parts: Declared) -> Iterator[Finding]:
    """Each case binds exactly the sizes of the inputs, and no two cases bind the same values."""
    sizes = parts.sizes
    if sizes is None:
        return
    seen: dict[object, int] = {}
    for case in section.entries("shapes"):
        if not isinstance(case, Map):
            continue
        named = [key for key in case if not key.startswith("\0")]
        missing = [size for size in sizes if size not in named]
        for key in named:
            if key not in sizes:
                yield key.place, f"size '{key}' occurs in no input{hint(key, missing or sizes)}"
            elif key == ELLIPSIS and isinstance(case[key], Text):
                yield case[key].place, "'...' stands for any number of dimensions: give a list, such as [512, 512]"
            elif key != ELLIPSIS and isinstance(case[key], Seq):
                yield case[key].place, f"'{key}' is one size: give one number"
        if len(named) == len(case):
            for size in missing:
                yield case.place, f"size '{size}' has no value here"
        values = tuple(sorted((str(key), str(value)) for key, value in case.items()))
        if values in seen:
            yield case.place, f"the same sizes as on line {seen[values]}"
        seen.setdefault(values, case.place.line)


def _limits(section: Map, parts: Declared) -> Iterator[Finding]:
    for variable, values in section.child("dtypes").items():
        if variable.startswith("\0"):
            continue
        if variable not in parts.dtypes:
            yield variable.place, f"'{variable}' is no dtype variable{hint(variable, parts.dtypes)}"
            continue
        yield from _repeats(values if isinstance(values, Seq) else [], "dtype")
        for value in values if isinstance(values, Seq) else []:
            ranges_over = parts.dtypes[variable]
            if isinstance(value, Text) and value in DTYPES and ranges_over and value not in ranges_over:
                yield value.place, f"'{variable}' does not range over {value}"


def _repeats(values: list[Tree], what: str) -> Iterator[Finding]:
    seen: dict[str, Place] = {}
    for value in values:
        if isinstance(value, Text):
            if value in seen:
                yield value.place, f"{what} '{value}' is listed twice"
            seen.setdefault(value, value.place)


def _bad_name(variable: Text) -> Iterator[Finding]:
    try:
        leaves.identifier(variable)
    except PydanticCustomError as error:
        yield variable.place, error.message()


def _constraints(tree: Map, parts: Declared, lines: list[str]) -> Iterator[Finding]:
    names = parts.input_names
    for text in tree.entries("constraints"):
        if not isinstance(text, Text) or text.is_null or not text.strip() or names is None:
            continue
        if "\n" in text.strip():
            yield text.place, "a constraint is one line"
            continue
        start = text.place.column + (1 if text.style else 0) + len(text) - len(text.lstrip())
        # escapes and folded lines break the tie between text and columns; then the constraint as a whole is named
        as_written = lines[text.place.line - 1][start - 1 :].startswith(text.strip())
        for offset, message in constraints.check(text, names, parts.size_spellings(), _kinds(tree)):
            yield Place(text.place.line, start + offset) if as_written else text.place, message


def _kinds(tree: Map) -> dict[str, str]:
    """What the inputs are that are options, numbers or optional, by their names."""
    entries = [entry for entry in tree.entries("inputs") if isinstance(entry, Map)]
    found = {entry.text("name"): entry.text("scalar") for entry in entries}
    optional = {entry.text("name"): "optional" for entry in entries if entry.text("optional") == "true"}
    return {str(name): str(kind) for name, kind in {**found, **optional}.items() if name and kind}


def _module(tree: Map, parts: Declared, lines: list[str]) -> Iterator[Finding]:
    source = tree.text("module")
    if source is None or not source.strip():
        return
    place = reference.block_place(source, lines)
    if place is None:
        yield source.place, "write the module as a block, 'module: |', with its text indented below it"
    elif parts.name is not None:
        yield from module.check(reference.trimmed(source), place, str(parts.name))


def _reference(tree: Map, parts: Declared, lines: list[str]) -> Iterator[Finding]:
    source = tree.text("reference")
    if source is None or not source.strip():
        return
    place = reference.block_place(source, lines)
    if place is None:
        yield source.place, "write the reference as a block, 'reference: |', with the function indented below it"
        return
    outputs = len(parts.outputs) or None
    yield from reference.check(reference.trimmed(source), place, parts.name, parts.input_names, outputs)
