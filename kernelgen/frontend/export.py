"""One run of `torch.export` over a reference, and torch's symbolic sizes by the spec's names."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from kernelgen.errors import GuardError
from kernelgen.frontend.exporting import exported_program
from kernelgen.frontend.graph import Atom, Dim
from kernelgen.frontend.mistakes import SIZED_BY_VALUES, at_place, even_hint, failed, named, raised_at, unsupported
from kernelgen.frontend.reference import Reference
from kernelgen.frontend.rule import Refused
from kernelgen.spec.cases import admits, turning, usual_sizes
from kernelgen.spec.constraints import check, written_sizes
from kernelgen.spec.model import ELLIPSIS, SCALAR, OperatorSpec, Size, SizeValue, TensorSpec
from kernelgen.spec.sizes import check_size, evaluate, follows, is_expression, is_multiple, parts

_PRIMES = (
    *(37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151),
    *(157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229, 233, 239, 241, 251, 257, 263, 269, 271),
)
"""Traced sizes: distinct, so that no two dimensions are taken for one by accident, not special to torch, and no fewer
than a topk may take."""

LARGER = 25
"""How far those are to be turned that none but the larger ones come first."""

_FURTHER = (277, 281, 1031, 2053, 4099, 16411, 65537, 1048583, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
"""Traced sizes where the constraints do not admit those."""

_NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Loggers that show tracebacks of what torch then does without, or where one line is raised here."""

Binding = dict[str, str]
"""A dtype for every dtype variable of the spec."""


def export(
    spec: OperatorSpec,
    reference: Reference,
    binding: Binding,
    leading: int,
    fixed: Mapping[str, int] | None = None,
    turned: int = 0,
) -> Any:
    """The traced reference. `fixed`: sizes by their names that are numbers in this trace. `turned`: as `inputs_at`."""
    import torch

    fixed = fixed or {}
    args = inputs_at(spec, binding, leading, fixed, turned)
    dynamic = tuple(_dynamic(tensor.shape, leading, fixed) for tensor in spec.inputs)

    names: dict[Any, Atom] = {}
    """torch's symbols for sizes, for messages."""

    class Module(torch.nn.Module):
        def forward(self, *inputs: Any) -> Any:
            for t, x in zip(spec.inputs, inputs, strict=True):
                known = zip(entries_of(t, leading), x.shape, strict=True)
                names.update((size.node.expr, entry) for entry, size in known if hasattr(size, "node"))
            return called(spec, reference, inputs)

    Module.forward.__code__ = Module.forward.__code__.replace(co_name="call")  # only the reference's lines are kept
    try:
        # torch prints what it has traced of a reference that it gives up
        with silence(), contextlib.redirect_stderr(io.StringIO()):
            return exported_program(Module(), tuple(args), (dynamic,))
    except Refused as refusal:
        raise unsupported(spec, raised_at(refusal, reference.file), named(str(refusal), names)) from None
    except Exception as error:
        raise failed(spec, reference, error, names) from error


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Without the tracebacks that torch's loggers show."""
    for name in _NOISY:
        logging.getLogger(name).disabled = True
    try:
        yield
    finally:
        for name in _NOISY:
            logging.getLogger(name).disabled = False


def inputs_at(
    spec: OperatorSpec, binding: Binding, leading: int, fixed: Mapping[str, int], turned: int = 0
) -> list[Any]:
    """Inputs without memory, of traced sizes but for those that are fixed. `turned`: with other ones."""
    import torch

    sizes = {**_traced_sizes(spec, turned), **fixed}
    made = []
    for tensor in spec.inputs:
        shape: list[int] = []
        for entry in _parts(tensor.shape):
            shape += [5, 7][:leading] if entry == ELLIPSIS else [entry if isinstance(entry, int) else sizes[entry]]
        dtype = getattr(torch, binding.get(tensor.dtype, tensor.dtype))
        made.append(torch.empty(shape, dtype=dtype, device="meta"))
    return made


def _traced_sizes(spec: OperatorSpec, turned: int) -> dict[str, int]:
    """A size for every name: such as the constraints admit, one or two of them changed, where they admit any."""
    usual = dict(zip(_size_names(spec), _PRIMES[turned:] + _PRIMES[:turned], strict=False))

    def is_admitted(sizes: Mapping[str, int]) -> bool:
        bound: dict[str, SizeValue] = {**sizes, ELLIPSIS: (5,)} if _is_elastic(spec) else {**sizes}
        return admits(spec, tuple(bound.items()))

    if is_admitted(usual):
        return usual
    for names in itertools.combinations_with_replacement(usual, 2):
        for values in itertools.product(_FURTHER, repeat=2):
            sizes = {**usual, **dict(zip(names, values, strict=True))}
            if len(set(sizes.values())) == len(sizes) and is_admitted(sizes):
                return sizes
    return usual


def _is_elastic(spec: OperatorSpec) -> bool:
    return any(ELLIPSIS in t.shape for t in spec.inputs)


def called(spec: OperatorSpec, reference: Reference, inputs: Sequence[Any]) -> Any:
    """What the reference returns for traced inputs."""
    from kernelgen.frontend.rewrites import Rewrites

    joined = [x.item() if t.role == SCALAR else joined_parts(t, x) for t, x in zip(spec.inputs, inputs, strict=True)]
    if any(map(is_sized, spec.inputs)):
        names = _named_sizes(spec, inputs)
        joined = [sized(t, x, names) for t, x in zip(spec.inputs, joined, strict=True)]
    numbers = [(number, x) for t, x, number in zip(spec.inputs, inputs, joined, strict=True) if t.role == SCALAR]
    with Rewrites(writes=reference.writes, numbers=numbers), _roots_of_sizes():
        return reference.function(*joined)


def _named_sizes(spec: OperatorSpec, inputs: Sequence[Any]) -> dict[str, Any]:
    """The traced sizes by their names."""
    found: dict[str, Any] = {}
    for tensor, x in zip(spec.inputs, inputs, strict=True):
        entries = _parts(tensor.shape)
        at = entries.index(ELLIPSIS) if ELLIPSIS in entries else len(entries)
        places = [*enumerate(entries[:at]), *((i - len(entries), e) for i, e in enumerate(entries) if i > at)]
        found |= {entry: x.shape[place] for place, entry in places if isinstance(entry, str)}
    return found


def _roots_of_sizes() -> Any:
    """`math.sqrt` of a size as a number that follows from it; math's own would take the size that is traced."""
    import torch

    plain = math.sqrt

    def sqrt(x: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else plain(x)

    return mock.patch.object(math, "sqrt", sqrt)


def _dynamic(shape: tuple[Size, ...], leading: int, fixed: Mapping[str, int]) -> dict[int, Any]:
    import torch

    entries: list[Size] = []
    for entry in _parts(shape):
        entries += [entry] * leading if entry == ELLIPSIS else [entry]
    return {i: torch.export.Dim.AUTO for i, e in enumerate(entries) if isinstance(e, str) and e not in fixed}


def _size_names(spec: OperatorSpec) -> list[str]:
    names = dict.fromkeys(e for t in spec.inputs for e in _parts(t.shape) if isinstance(e, str) and e != ELLIPSIS)
    return list(names)


def _parts(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """A shape with `2 * D` as the two dimensions 2 and D: so torch knows that it is a multiple of two. What follows
    from sizes of other inputs is 1 (see `sized`)."""
    return tuple(part for e in shape for part in _parts_of(e))


def _parts_of(entry: Size) -> tuple[Size, ...]:
    if not isinstance(entry, str) or not is_expression(entry):
        return (entry,)
    return (1,) if follows(entry) else parts(entry)


def joins(tensor: TensorSpec) -> tuple[int, ...]:
    """Where the second part of each dimension stands that is declared as a product, once those behind it are joined;
    the last first."""
    products = [i for i, entry in enumerate(tensor.shape) if is_multiple(str(entry))]
    places = [(tensor.dim(i), before) for before, i in enumerate(products)]
    return tuple(i if i < 0 else i + before + 1 for i, before in reversed(places))


def joined_parts(tensor: TensorSpec, x: Any) -> Any:
    """The tensor that the reference is to see, from the one that is traced."""
    for dim in joins(tensor):
        x = x.flatten(dim - 1, dim)
    return x


def is_sized(tensor: TensorSpec) -> bool:
    """Whether a traced input only stands for what the reference is to see, as dimensions follow from other inputs'."""
    return any(map(follows, tensor.shape))


def sized(tensor: TensorSpec, x: Any, names: Mapping[str, Any]) -> Any:
    """The tensor that the reference is to see, with dimensions that follow from sizes of other inputs, as torch then
    knows. `names`: these sizes."""
    if not is_sized(tensor):
        return x
    at = tensor.shape.index(ELLIPSIS) if ELLIPSIS in tensor.shape else len(tensor.shape)
    ahead, behind = tensor.shape[:at], tensor.shape[at + 1 :]
    entries = (*ahead, *[ELLIPSIS] * (x.ndim - len(ahead) - len(behind)), *behind)
    given = zip(entries, x.shape, strict=True)
    return x.new_empty([evaluate(str(entry), names) if follows(entry) else size for entry, size in given])


def entries_of(tensor: TensorSpec, leading: int) -> list[Size]:
    """What stands for every dimension of a traced input."""
    entries: list[Size] = []
    for entry in _parts(tensor.shape):
        entries += [f"...{i}" if leading > 1 else ELLIPSIS for i in range(leading)] if entry == ELLIPSIS else [entry]
    return entries


def symbols_of(spec: OperatorSpec, exported: Any, leading: int) -> dict[Any, Atom]:
    """torch's symbols by the spec's size names; two names for one symbol, or a fixed size, is a mistake of the spec."""
    names: dict[Any, Atom] = {}
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for tensor, node in zip(spec.inputs, placeholders, strict=True):
        for entry, size in zip(entries_of(tensor, leading), node.meta["val"].shape, strict=True):
            if isinstance(entry, int):
                continue
            if isinstance(size, int):
                raise at_place(
                    spec,
                    tensor.place,
                    f"the reference needs {entry} of {tensor.name} to be {size}: declare that number",
                )
            if size.node.expr.is_number:
                raise at_place(
                    spec,
                    tensor.place,
                    f"the reference turns {entry} of {tensor.name} into a Python number (by float(), range() or the "
                    "like), and one kernel serves all sizes: compute with the size itself, or declare a number",
                )
            known = names.setdefault(size.node.expr, entry)
            if known != entry:
                raise at_place(
                    spec, tensor.place, f"the reference needs {known} and {entry} to be equal; give them one name"
                )
    return names


def failing_guards(spec: OperatorSpec, exported: Any, names: dict[Any, Atom]) -> list[Any]:
    """The conditions on sizes without which the trace does not hold, and which some sizes do not meet."""
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    sizes = [size for node in placeholders for size in node.meta["val"].shape if not isinstance(size, int)]
    if not sizes:
        return []
    environment = sizes[0].node.shape_env
    first = {name: symbol for symbol, name in reversed(names.items())}
    found = []
    for guard in environment.guards:
        condition = environment.replace(guard.expr)  # sizes that were found equal become one: D == D holds
        condition = condition.subs({symbol: first[names[symbol]] for symbol in condition.free_symbols & names.keys()})
        if condition.free_symbols and not _holds(spec, condition, names):
            found.append(condition)
    return found


def refuse_guard(spec: OperatorSpec, condition: Any, names: dict[Any, Atom]) -> Any:
    """Refuse a reference whose trace holds only for some sizes and means something else for the others."""
    shown = named(str(condition), names)
    message = f"a reference that takes one branch where {shown} and another one elsewhere"
    said = _as_constraint(spec, condition, names)
    advice = f" (if only that branch is used, write the constraint {said})" if said else ""
    found = GuardError(list(unsupported(spec, None, message + (even_hint(shown) or advice)).mistakes))
    found.condition = said
    raise found


def _as_constraint(spec: OperatorSpec, condition: Any, names: dict[Any, Atom]) -> str:
    """A condition on sizes as a constraint; empty where none can say it."""
    from torch.utils._sympy.printers import PythonPrinter

    try:
        text = ast.unparse(ast.parse(named(PythonPrinter().doprint(condition), names), mode="eval"))
    except (SyntaxError, ValueError, NotImplementedError):
        return ""
    for name, written in written_sizes(spec).items():
        text = re.sub(rf"(?<![\w.])\b{name}\b(?!\()", written, text)
    return "" if check(text, [t.name for t in spec.inputs]) else text


def _holds(spec: OperatorSpec, condition: Any, names: dict[Any, Atom]) -> bool:
    """Whether a guard holds for all sizes that the constraints admit, as far as small ones, odd ones, powers of two and
    those next to its own numbers tell.

    torch also asks whether a size is one and which of two strides is the lesser (with Min and Max, which references do
    not write), which tells it about layouts and broadcasting: every answer gives the same elements.
    """
    import sympy  # type: ignore[import-untyped]

    if any(f in str(condition) for f in ("Max(", "Min(")) or (isinstance(condition, sympy.Ne) and 1 in condition.args):
        return True
    if isinstance(condition, sympy.Ge) and condition.args[1] == 2:
        return True
    samples = _samples(spec, condition, names)
    return bool(samples) and all(_is_true(condition, s) for s in samples) and not left_out(spec, condition, names)


def _samples(spec: OperatorSpec, condition: Any, names: dict[Any, Atom]) -> list[dict[Any, int]]:
    """Sizes of a condition that the constraints admit."""
    import sympy

    symbols = sorted(condition.free_symbols, key=str)
    others = {**usual_sizes(spec), **({} if _is_elastic(spec) else {ELLIPSIS: (3,)})}
    # A * B != A asks for a size of one as well, A * (B - 1) != A for one of two
    small = (3, 4, 5, 8, 33, 128) if isinstance(condition, sympy.Ne) else (1, 2, 3, 4, 5, 8, 33, 128)
    if len(symbols) > 3:
        return []

    def admitted(samples: Iterable[dict[Any, int]]) -> list[dict[Any, int]]:
        given = ((s, {str(names[symbol]): value for symbol, value in s.items()}) for s in samples)
        return [sample for sample, sizes in given if admits(spec, tuple((others | sizes).items()))]

    def grid(sizes: Sequence[int]) -> Iterator[dict[Any, int]]:
        return (dict(zip(symbols, values, strict=True)) for values in itertools.product(sizes, repeat=len(symbols)))

    turns = turning(int(number) for number in condition.atoms(sympy.Integer))
    alone = [{**dict.fromkeys(symbols, small[0]), symbol: size} for size in turns for symbol in symbols]
    near = admitted([*alone, *(dict.fromkeys(symbols, size) for size in turns)])
    return [*near, *(admitted(grid(small)) or admitted(grid((129, 1025, 4096, 65536))))]


def left_out(spec: OperatorSpec, condition: Any, names: dict[Any, Atom]) -> list[dict[str, int]] | None:
    """The sizes, by name, at which two products of sizes are equal that must not be; None where they are too many to
    tell."""
    import sympy

    left: Any
    right: Any
    left, right = condition.args if len(condition.args) == 2 else (0, 0)
    if isinstance(condition, sympy.StrictLessThan | sympy.StrictGreaterThan):
        # of two strides torch asks for the lesser, which they are but for sizes of one between them
        if not all(_is_true(condition | sympy.Eq(left, right), s) for s in _samples(spec, condition, names)):
            return None
    elif not isinstance(condition, sympy.Ne):
        return None
    if type(left).__name__.endswith("Mod") and right == 0:  # p % (p * r) is 0 where r is 1
        part, whole = left.args
        left, right = part * (sympy.cancel(whole / part) - 1), 0
    found = []
    # a quotient is a size of its own: (H - 1) // 2 + 1 of a window's results
    quotients = (left - right).atoms(sympy.Function)
    made = {q: sympy.Dummy(str(q), integer=True, nonnegative=True) for q in quotients}
    try:
        for factor, _ in sympy.factor_list((left - right).xreplace(made))[1]:
            alone = len(factor.free_symbols) == 1
            # several sizes: a product that is one, of factors that are one each
            factors = [factor] if alone else [f - 1 for f, _ in sympy.factor_list(factor + 1)[1]]
            roots = [_roots(factor, names, frozenset(made.values())) for factor in factors]
            if None in roots or not (alone or sympy.factor_list(factor + 1)[0] == 1):
                return None
            found += [dict(sizes) for sizes in itertools.product(*(r for r in roots if r is not None))]
    except sympy.PolynomialError:
        return None
    # a size of one or two asks about layouts and broadcasting: every answer gives the same elements
    return [sizes for sizes in found if min(sizes.values()) > 2 and _admitted(spec, sizes)]


def _roots(factor: Any, names: dict[Any, Atom], quotients: frozenset[Any]) -> list[tuple[str, int]] | None:
    """The sizes at which a polynomial of one of them is zero; None of several. Of a quotient alone these are none where
    what it is a part of is then one or two, as of sizes."""
    import sympy

    symbols = list(factor.free_symbols)
    if len(symbols) == 1 and symbols[0] in quotients:
        return [] if all(root in (-1, 0, 1, 2) for root in sympy.Poly(factor, symbols[0]).ground_roots()) else None
    if len(symbols) != 1 or not isinstance(names.get(symbols[0]), str):
        return None
    roots = sympy.Poly(factor, symbols[0]).ground_roots()
    return [(str(names[symbols[0]]), int(root)) for root in roots if root.is_Integer]


def _admitted(spec: OperatorSpec, sizes: Mapping[str, int]) -> bool:
    """Whether the constraints take some sizes, as far as they say with the others at hand."""
    return admits(spec, tuple({**usual_sizes(spec), **sizes}.items()))


def _is_true(condition: Any, sizes: dict[Any, int]) -> bool:
    """Whether a condition holds at sizes; where it divides by zero the reference fails as it is called."""
    import sympy

    try:
        return bool(condition.subs(sizes) == sympy.true)
    except ZeroDivisionError:
        return True


def dims(shape: Any, symbols: dict[Any, Atom]) -> tuple[Dim, ...]:
    return tuple(dim(size, symbols) for size in shape)


def declared_dim(entry: str, exported: Any, symbols: dict[Any, Atom]) -> Dim:
    """A declared expression of sizes as the trace has it."""
    shapes = [n.meta["val"].shape for n in exported.graph.nodes if n.op == "placeholder"]
    sizes = {symbols.get(s.node.expr): s for shape in shapes for s in shape if not isinstance(s, int)}
    return dim(evaluate(entry, {str(name): size for name, size in sizes.items()}), symbols)


def dim(size: Any, symbols: dict[Any, Atom]) -> Dim:
    if isinstance(size, int):
        return () if size == 1 else (size,)
    return dim_of(size.node.expr, symbols)


def dim_of(expression: Any, symbols: dict[Any, Atom]) -> Dim:
    """That of a sympy expression of torch's symbols."""
    expression = _of_whole_factors(expression)
    if expression in symbols:
        return (symbols[expression],)
    first = {name: symbol for symbol, name in reversed(symbols.items())}  # sizes that were found equal: A + A is 2 * A
    expression = expression.subs({s: first[symbols[s]] for s in expression.free_symbols & symbols.keys()})
    if type(expression).__name__ == "Add":  # torch multiplies out: (D + 1) * D is D ** 2 + D
        expression = expression.factor()
    if not hasattr(expression, "as_coeff_mul"):
        raise Refused(f"a condition on sizes: {expression}")
    coefficient, factors = expression.as_coeff_mul()
    if not coefficient.is_Integer or coefficient < 0:
        return (_text(expression, symbols),)
    atoms: list[Atom] = [] if coefficient == 1 else [int(coefficient)]
    for factor in factors:
        base, power = factor.as_base_exp()
        if base in symbols and power.is_Integer and power >= 1:
            atoms += [symbols[base]] * int(power)
        else:
            atoms.append(_text(factor, symbols))
    return tuple(atoms)


def _of_whole_factors(expression: Any) -> Any:
    """A size without floats, where it is one by a factor or a divisor that is whole: torch resizes by `2.0 * H`."""

    def whole(factor: Any, size: Any) -> Any:
        from torch.utils._sympy.functions import FloorDiv

        if float(factor).is_integer():
            return int(factor) * size
        return FloorDiv(size, round(1 / float(factor)))

    def is_float(x: Any) -> bool:
        factor, size = x.args[0].as_coeff_Mul() if type(x).__name__ == "TruncToInt" else (0, None)
        is_whole = bool(factor) and (float(factor).is_integer() or (1 / float(factor)).is_integer())
        return is_whole and type(size).__name__ == "ToFloat"

    def of_product(x: Any) -> Any:
        factor, size = x.args[0].as_coeff_Mul()
        return whole(factor, size.args[0])

    return expression.replace(is_float, of_product) if "TruncToInt" in str(expression) else expression


def _text(expression: Any, symbols: dict[Any, Atom]) -> str:
    """A size that is no product of declared sizes as Python: `(H - 1) // 2 + 1`."""
    names = {symbol: symbols.get(symbol) for symbol in expression.free_symbols}
    if not all(isinstance(name, str) and name.isidentifier() for name in names.values()):
        if re.search(r"\bu\d", str(expression)):
            raise Refused(SIZED_BY_VALUES)
        raise Refused(f"a size that does not follow from declared sizes: {expression}")
    # symbols of the names, not names in the text: terms are in their order, whatever a trace calls its symbols
    shown = str(expression.xreplace({s: type(s)(name, **s.assumptions0) for s, name in names.items()}))
    try:
        return check_size(shown)
    except ValueError:
        raise Refused(f"the size {shown}") from None


def kind(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "float" if dtype.is_floating_point else name
