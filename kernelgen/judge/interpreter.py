"""Triton's interpreter where it does something else than a GPU.

The interpreter scans one element after the other: the rounding errors of a sum then grow with the length of a row as
they never do on a GPU, which joins halves, and a combine function is called once an element, 10,000 times slower.
Instead every element is joined with what stands 1, 2, 4, ... places before it, whole blocks at once (Kogge and Stone,
A Parallel Algorithm for the Efficient Solution of a General Class of Recurrence Equations, IEEE Trans. Comp., 1973).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def as_on_a_gpu() -> None:
    """Replace the scans of the interpreter, its fused multiply-add, what it does with NaN in extremes and clamps, and
    its casts to and from float8, for the whole process, and give it constants of bfloat16, which it lacks."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if not hasattr(builder, "get_bf16"):
        interpreter.ScanOps.apply_impl = _apply
        builder.create_fp_to_fp = _cast(builder.create_fp_to_fp)
        builder.get_bf16 = _bfloat16
        builder.create_fma = _fused
        builder.create_clampf = _clamped
        builder.create_maxnumf = _number("fmax")
        builder.create_minnumf = _number("fmin")
        tl.flip = _flip


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once, as fma.rn; the interpreter rounds the product too. float64 has room for it."""
    from triton.runtime.interpreter import TensorHandle

    wide = a.data.astype("float64") * b.data.astype("float64") + c.data.astype("float64")
    return TensorHandle(wide.astype(a.data.dtype), a.dtype.scalar)


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
    bounded = getattr(interpreter.np, larger)(x.data, low.data)
    return interpreter.TensorHandle(getattr(interpreter.np, smaller)(bounded, high.data), x.dtype.scalar)


def _flip(x: Any, dim: Any = None) -> Any:
    """tl.flip at once; the interpreter would call its combine function once an element."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    axis = getattr(dim, "value", dim)
    return tl.tensor(TensorHandle(x.handle.data.take(range(x.shape[axis])[::-1], axis), x.dtype), x.type)


def _bfloat16(builder: Any, value: float) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(torch.tensor([value], dtype=torch.bfloat16).view(torch.uint16).numpy(), tl.bfloat16)


def _cast(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Casts to and from float8e4nv as PTX's cvt.rn.satfinite has them: to nearest, ties to even, NaN kept.

    The interpreter loses the carry of a mantissa that is rounded up, and makes 480 of a NaN.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def cast(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source.dtype.scalar, target.scalar):
            return otherwise(builder, source, target, rounding)
        known = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float16: torch.float16}
        data = torch.from_numpy(source.data.copy())
        values = data.view(known[source.dtype.scalar]) if source.dtype.scalar in known else data
        wide = values.float()
        if target.scalar == tl.float8e4nv:
            wide = wide.clamp(-448, 448)
        made = wide.to(known.get(target.scalar, torch.float32))
        words = {1: torch.uint8, 2: torch.uint16}
        stored = made if target.scalar in (tl.float16, tl.float32) else made.view(words[made.dtype.itemsize])
        return TensorHandle(stored.numpy(), target.scalar)

    return cast


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
