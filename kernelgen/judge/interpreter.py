"""Triton's interpreter where it does something else than a GPU.

The interpreter scans one element after the other: the rounding errors of a sum then grow with the length of a row as
they never do on a GPU, which joins halves, and a combine function is called once an element, 10,000 times slower.
Instead every element is joined with what stands 1, 2, 4, ... places before it, whole blocks at once (Kogge and Stone,
A Parallel Algorithm for the Efficient Solution of a General Class of Recurrence Equations, IEEE Trans. Comp., 1973).
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch


@functools.cache
def as_on_a_gpu() -> None:
    """Mend the interpreter for the whole process: CUDA's library, scans, casts to and from bfloat16 and float8 and what
    it computes with these, products of matrices, comparisons, sums and complements of bools, fused multiply-adds,
    powers of two below the normal numbers, NaN in extremes, bounds of loops."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    interpreter.ScanOps.apply_impl = _apply
    builder.cast_impl = _cast(builder.cast_impl)
    builder.create_fp_to_fp = _rounded(builder.create_fp_to_fp)
    builder.binary_op = _binary(builder.binary_op)
    for name in [n for n in dir(builder) if n.startswith(("create_icmp", "create_fcmp"))]:
        setattr(builder, name, _comparison(getattr(builder, name)))
    builder.get_bf16 = _bfloat16
    builder.get_all_ones_value = _all_ones
    builder.create_umulhi = _high(builder.create_umulhi)
    builder.create_fma = _fused
    builder.create_exp2 = _flushing(builder.create_exp2)
    builder.create_dot = _product
    builder.create_clampf = _clamped
    builder.create_maxnumf = _number("fmax")
    builder.create_minnumf = _number("fmin")
    tl.flip = _flip
    _have_library()
    interpreter._patch_builtin = _by_known_names(interpreter._patch_builtin)
    interpreter._patch_lang_tensor = _counting(interpreter._patch_lang_tensor)
    prepared = set[Any]()
    interpreter._patch_lang = _once(interpreter._patch_lang, prepared)
    interpreter.GridExecutor.__call__ = _launched(interpreter.GridExecutor.__call__, prepared)
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    tl.block_type.__init__ = _known_blocks(tl.block_type.__init__)
    tl.tensor.__init__ = _known_shapes(tl.tensor.__init__)
    TritonSemantic.broadcast_impl_value = _broadcast(TritonSemantic.broadcast_impl_value)
    options = interpreter.interpreter_builder.options
    if not options.debug:  # sums in int64 would be compared with int32's limits, and what that says thrown away
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def decorate_again() -> None:
    """Have Triton's own functions interpreted as well, where Triton was imported before the interpreter was selected.

    Of kernels whose functions are compiled one half and interpreted the other nothing can be said: raises RuntimeError
    where functions of others than Triton and torch were decorated before.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if not isinstance(tl.sum, JITFunction):
        return
    functions = [found.fn for found in gc.get_objects() if issubclass(type(found), JITFunction)]
    others = sorted({f"{f.__module__}.{f.__name__}" for f in functions if _package(f) not in ("triton", "torch")})
    if others:
        raise RuntimeError(
            f"{others[0]} was decorated with triton.jit before judge.prepare() could select Triton's interpreter: call "
            "prepare() before the import of that module, or set TRITON_INTERPRET=1"
        )
    language = {n: m for n, m in sys.modules.items() if n.startswith(f"{tl.__name__}.")}
    for name, module in sorted(language.items()):
        if any(isinstance(v, JITFunction) and v.__module__ == name for v in list(vars(module).values())):
            importlib.reload(module)
    for name, value in list(vars(tl).items()):
        if isinstance(value, JITFunction):
            setattr(tl, name, getattr(sys.modules[value.fn.__module__], value.fn.__name__))


def _by_known_names(prepare: Callable[..., None]) -> Callable[..., None]:
    """The built-in functions of the language prepared by the names they have before any launch. The interpreter looks
    at all members of triton.language, six times a launch, to find them: a fifth of the time of small launches."""
    import triton.language as tl
    from triton.runtime import interpreter

    places = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    names = {place: [n for n, member in inspect.getmembers(place) if tl.core.is_builtin(member)] for place in places}

    def prepare_known(place: Any, builder: Any, scope: Any) -> None:
        if place not in names:
            prepare(place, builder, scope)
            return
        for name in names[place]:
            member = getattr(place, name)
            if tl.core.is_builtin(member):  # it is not where a launch has prepared it
                interpreter._patch_attr(place, name, member, builder, scope)

    return prepare_known


def _once(prepare: Callable[..., Any], prepared: set[Any]) -> Callable[..., Any]:
    """The language prepared for each device function once a launch. The interpreter goes through all names of
    triton.language at every call of one, which takes longer than most of them."""

    @functools.wraps(prepare)
    def prepare_once(function: Any) -> Any:
        if function in prepared:
            return None
        prepared.add(function)
        return prepare(function)

    return prepare_once


def _counting(prepare: Callable[..., None]) -> Callable[..., None]:
    """A scalar counts as a number, as in the bounds of a loop. Triton 3.6 has it as an array of one element, of which
    NumPy 2.5 makes no number."""

    def prepare_counting(tensor: Any, scope: Any) -> None:
        prepare(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    return prepare_counting


def _launched(launch: Callable[..., Any], prepared: set[Any]) -> Callable[..., Any]:
    """A launch, after which the interpreter takes back what it prepared."""

    def anew(*args: Any, **kwargs: Any) -> Any:
        prepared.clear()
        return launch(*args, **kwargs)

    return anew


def _by_name(dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy's dtype for one of Triton's; the interpreter makes the table of all of them for every answer."""
    known: dict[str, Any] = {}

    def found(dtype: Any) -> Any:
        if dtype.name not in known:
            known[dtype.name] = dtype_of(dtype)
        return known[dtype.name]

    return found


def _known_blocks(make: Callable[..., None]) -> Callable[..., None]:
    """The type of a block, whose shape is checked and written out once and not for every value."""
    known: dict[Any, tuple[Any, ...]] = {}
    shapes: dict[Any, Any] = {}

    def init(block: Any, element: Any, shape: Any) -> None:
        sizes = tuple([getattr(size, "value", size) for size in shape])
        found = known.get((element.name, sizes))
        if found is None:
            make(block, element, shape)
            found = shapes.setdefault(sizes, block.shape), block.numel, block.name
            known[element.name, sizes] = found
        block.element_ty = element
        block.shape, block.numel, block.name = found

    return init


def _known_shapes(make: Callable[..., None]) -> Callable[..., None]:
    """A value, whose shape is made constants of once and not for every value."""
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def init(value: Any, handle: Any, dtype: Any) -> None:
        sizes = tuple(dtype.shape) if dtype.is_block() else ()
        if sizes not in known:
            make(value, handle, dtype)
            known[sizes] = value.shape, value.numel
        value.handle, value.type, value.dtype = handle, dtype, dtype.scalar
        value.shape, value.numel = known[sizes]

    return init


def _broadcast(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Two values of one shape as they are; Triton compares their sizes one by one."""

    def broadcast(semantic: Any, a: Any, b: Any) -> Any:
        if a.type.is_block() and b.type.is_block() and a.type.shape is b.type.shape:  # as _known_blocks makes them
            return a, b
        return otherwise(semantic, a, b)

    return broadcast


def _package(function: Callable[..., Any]) -> str:
    return function.__module__.partition(".")[0]


_NARROW = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
"""The floats that NumPy lacks, which the interpreter keeps as their bits, by Triton's names."""


def _numbers(handle: Any) -> Any:
    """The elements of a handle as an array of numbers, whatever its dtype."""
    dtype = _NARROW.get(handle.dtype.scalar.name)
    return handle.data if dtype is None else torch.from_numpy(handle.data.copy()).view(dtype).float().numpy()


def _handle(numbers: Any, dtype: Any) -> Any:
    """Numbers as a handle of a dtype, rounded to nearest, ties to even.

    Beyond the largest float8 as PTX's cvt.rn.satfinite has it (PTX ISA, 9.7.9.21): the largest, and NaN stays NaN.
    """
    from triton.runtime.interpreter import TensorHandle

    target = _NARROW.get(dtype.name)
    if target is None:
        return TensorHandle(numbers, dtype)
    floats = numbers if numbers.dtype.kind == "f" else numbers.astype("float32")
    made = torch.from_numpy(floats.copy())
    if target.itemsize == 1:
        made = made.clamp(torch.finfo(target).min, torch.finfo(target).max)
    return TensorHandle(made.to(target).view({1: torch.uint8, 2: torch.uint16}[target.itemsize]).numpy(), dtype)


def _cast(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter truncates float32 to bfloat16, and makes bits of integers that are cast to it."""

    def cast(builder: Any, source: Any, target: Any) -> Any:
        if target.scalar.name in _NARROW:
            return _handle(_numbers(source), target.scalar)
        if source.dtype.scalar.name in _NARROW:
            import triton.language as tl

            source = _handle(_numbers(source), tl.float32)
        return otherwise(builder, source, target)

    return cast


def _rounded(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Casts to and from float8. The interpreter loses the carry of a mantissa that is rounded up, and makes 480 of a
    NaN."""
    from triton.runtime import interpreter

    nearest = (None, interpreter._ir.ROUNDING_MODE.RTNE)

    def cast(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
        known = {source.dtype.scalar.name, target.scalar.name} & _NARROW.keys()
        return (
            builder.cast_impl(source, target)
            if known and rounding in nearest
            else otherwise(builder, source, target, rounding)
        )

    return cast


def _binary(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers where the interpreter would add the bits of bfloat16; bools are added as numbers of one bit."""
    import triton.language as tl
    from triton.runtime import interpreter

    of_bits = {interpreter.np.add: interpreter.np.logical_xor, interpreter.np.subtract: interpreter.np.logical_xor}

    def binary(builder: Any, a: Any, b: Any, op: Any) -> Any:
        dtype = a.dtype.scalar
        if dtype.name in _NARROW:
            result = otherwise(builder, _handle(_numbers(a), tl.float32), _handle(_numbers(b), tl.float32), op)
            return _handle(result.data, dtype)
        return otherwise(builder, a, b, of_bits.get(op, op) if dtype == tl.int1 else op)

    return binary


def _comparison(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison is a bool. The interpreter gives it the dtype of what it compares, and makes numbers of it where a
    scalar meets a block."""
    import triton.language as tl

    def compare(builder: Any, a: Any, b: Any) -> Any:
        if a.dtype.scalar.name in _NARROW:
            a, b = _handle(_numbers(a), tl.float32), _handle(_numbers(b), tl.float32)
        return _handle(otherwise(builder, a, b).data, tl.int1)

    return compare


def _all_ones(builder: Any, dtype: Any) -> Any:
    """What `~` joins with: NumPy takes no -1 for a number without a sign."""
    from triton.runtime import interpreter

    return _handle(~interpreter.np.zeros(1, interpreter._get_np_dtype(dtype)), dtype.scalar)


def _high(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """tl.umulhi of the bits; the interpreter extends the sign of integers that have one."""

    def high(builder: Any, a: Any, b: Any) -> Any:
        dtype = a.data.dtype
        unsigned = [_handle(x.data.view(f"uint{8 * dtype.itemsize}"), x.dtype) for x in (a, b)]
        return _handle(otherwise(builder, *unsigned).data.view(dtype), a.dtype.scalar)

    return high


def _flushing(power: Callable[..., Any]) -> Callable[..., Any]:
    """`ex2.approx.ftz.f32`, which tl.exp2 becomes on NVIDIA, makes 0 of results below float32's normal numbers."""

    def flushed(self: Any, x: Any) -> Any:
        found = power(self, x)
        if found.data.dtype == "float32":
            found.data = found.data * (found.data >= 2.0**-126)
        return found

    return flushed


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once, as fma.rn; the interpreter rounds the product too. float64 has room for it."""
    wide = [_numbers(x).astype("float64") for x in (a, b, c)]
    return _handle((wide[0] * wide[1] + wide[2]).astype(_numbers(a).dtype), a.dtype.scalar)


_CUT_OFF = -(2**13)
"""The bits of a float32 that matrix units read of it in TF32."""


def _product(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """tl.dot: operands as the matrix units read them, summed in float32, or in float64 where the accumulator is.

    The interpreter multiplies the bits of bfloat16, makes float16 of float8, and float32 with all its bits always.
    """
    from triton.runtime.interpreter import TensorHandle, np

    if d.dtype.scalar.is_int():
        return TensorHandle(np.matmul(a.data, b.data, dtype=d.data.dtype) + d.data, d.dtype.scalar)
    wide = np.result_type(np.float32, d.data.dtype)
    parts = [_parts(_numbers(x), input_precision.name) for x in (a, b)]
    sums = np.matmul(parts[0][0], parts[1][0], dtype=wide)
    rest = np.zeros_like(sums)
    for i in reversed(range(len(parts[0]))):  # the smallest products first
        for j in reversed(range(len(parts[1]) - i)):
            rest = rest + np.matmul(parts[0][i], parts[1][j], dtype=wide) if i + j else rest
    # what is left of an infinite number is NaN, which Triton makes 0
    sums = _numbers(d).astype(wide) + (np.where(np.isnan(rest), 0, rest) + sums)
    return _handle(sums.astype(d.data.dtype), d.dtype.scalar)


def _parts(x: Any, precision: str) -> list[Any]:
    """What is multiplied of an operand: float32 as one number of fewer bits, or several that nearly add up to it."""
    kind, _, products = precision.lower().partition("x")
    if x.dtype != "float32" or kind == "ieee":
        return [x]
    found = []
    for _ in range({"": 1, "3": 2, "6": 3}[products]):
        found.append(_shortened(x, kind))
        x = x - found[-1]
    return found


def _shortened(x: Any, kind: str) -> Any:
    """float32 as TF32, the other bits cut off as matrix units do that read memory, or rounded to bfloat16."""
    if kind == "tf32":
        return (x.view("int32") & _CUT_OFF).view("float32")
    return torch.from_numpy(x.copy()).bfloat16().float().numpy()


def _number(name: str) -> Callable[..., Any]:
    """The extreme of two, or the one that is a number, as max.f32 and min.f32 have it. The interpreter keeps NaN."""
    from triton.runtime import interpreter

    def extreme(builder: Any, a: Any, b: Any) -> Any:
        return builder.binary_op(a, b, getattr(interpreter.np, name))

    return extreme


def _clamped(builder: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    """NaN is kept where that is asked for; else it is the lower bound, as max.f32 has it. The interpreter keeps it."""
    import triton.language as tl
    from triton.runtime import interpreter

    larger, smaller = ("maximum", "minimum") if propagate_nan == tl.PropagateNan.ALL else ("fmax", "fmin")
    bounded = getattr(interpreter.np, larger)(_numbers(x), _numbers(low))
    return _handle(getattr(interpreter.np, smaller)(bounded, _numbers(high)), x.dtype.scalar)


def _flip(x: Any, dim: Any = None) -> Any:
    """tl.flip at once; the interpreter would call its combine function once an element."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    axis = getattr(dim, "value", dim)
    return tl.tensor(TensorHandle(x.handle.data.take(range(x.shape[axis])[::-1], axis), x.dtype), x.type)


_LIBRARY: dict[str, Callable[..., torch.Tensor]] = {
    "lgamma": torch.lgamma, "erfinv": torch.erfinv, "erfcx": torch.special.erfcx, "normcdfinv": torch.special.ndtri,
    "nextafter": torch.nextafter, "cyl_bessel_i0": torch.special.i0, "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1, "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}  # fmt: skip
"""Functions of CUDA's library, which the interpreter lacks, by torch's own."""


def _have_library() -> None:
    from triton.language.extra import libdevice

    for name, function in _LIBRARY.items():
        setattr(libdevice, name, _of_torch(function))


def _of_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def called(*operands: Any) -> Any:
        import triton.language as tl

        numbers = [torch.from_numpy(_numbers(x.handle).copy()) for x in operands]
        made = function(*numbers).numpy()
        return tl.tensor(_handle(made, operands[0].dtype), operands[0].type)

    return called


def _bfloat16(builder: Any, value: float) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    return _handle(interpreter.np.array([value]), tl.bfloat16)


def _apply(scan: Any, blocks: Any) -> list[Any]:
    """The scan of blocks along scan.axis; several blocks are scanned together as tuples."""
    scanned, shift = list(blocks), 1
    while shift < scanned[0].shape[scan.axis]:
        before = [_moved(scan, block, shift) for block in scanned]
        joined = scan.combine_fn.fn(*before, *scanned)
        pairs = zip(joined if isinstance(joined, tuple) else (joined,), scanned, strict=True)
        scanned = [_keeping(scan, new, old, shift) for new, old in pairs]
        shift *= 2
    return scanned


def _part(scan: Any, block: Any, first: int | None, last: int | None) -> tuple[slice, ...]:
    index = [slice(None)] * len(block.shape)
    index[scan.axis] = slice(first, last)
    return tuple(index)


def _moved(scan: Any, block: Any, shift: int) -> Any:
    """Each element the one that comes `shift` earlier in the order of the scan; the first ones stay."""
    data = block.handle.data.copy()
    front, back = _part(scan, block, None, -shift), _part(scan, block, shift, None)
    source, target = (back, front) if scan.reverse else (front, back)
    data[target] = block.handle.data[source]
    return scan.to_tensor(data, block.dtype)


def _keeping(scan: Any, new: Any, old: Any, shift: int) -> Any:
    """The joined elements, but for the first ones, which nothing comes before."""
    data = new.handle.data.copy()
    part = _part(scan, old, -shift, None) if scan.reverse else _part(scan, old, None, shift)
    data[part] = old.handle.data[part]
    return scan.to_tensor(data, old.dtype)
