"""Kernels of the IR as Triton for an Ascend NPU.

The hardware copies intervals. A mask that is not one is dropped by the compiler, which loads everything and selects
afterwards, also from beyond the tensor: an element that must not be read is read from the tensor's first place instead.
"""

from __future__ import annotations

from kernelgen.backends import triton
from kernelgen.backends.triton_text import BITAND, number
from kernelgen.families.line import call, fit
from kernelgen.tile import ir


class Printer(triton.Printer):
    def decorator(self) -> str:
        """No size is compiled in where it is one, which would make a kernel of its own."""
        sizes = [a.name for a in self.kernel.arguments if a.kind == "number" and not a.name.startswith("stride_")]
        general = ", ".join(f'"{name}"' for name in sizes)
        return fit(f"@triton.jit(do_not_specialize=[{general}])", 0)

    def _let(self, let: ir.Let) -> list[str]:
        cast = let.value if isinstance(let.value, ir.Cast) else None
        load = let.value if cast is None else cast.arg
        if not isinstance(load, ir.Load) or not (load.within or load.steps):
            return super()._let(let)
        # triton-ascend 3.2.0 loses a load of columns that are some apart where its rows are no interval either (it
        # copies each row, and drops the copy), so it is told the place of every element
        (name,) = let.names
        mask = None if load.mask is None else self._spread(load.mask, load.shape).text
        chosen, lines = str(mask), []
        if load.within:
            parts = [self._spread(part, load.shape) for part in load.within]
            within = " & ".join(part.within(BITAND if len(parts) > 1 else 0) for part in parts)
            chosen, lines = f"{name}_within", [f"{name}_within = {within}"]
        places = self._pointer(load.pointer).partition(" + ")[2] or "0"
        lines.append(call(f"{name}_offsets", "tl.where", [chosen, places, "0"]))
        args = [f"{load.pointer.tensor}_ptr + {name}_offsets", *([f"mask={mask}"] if mask else [])]
        args += [f"other={number(load.other).text}"] if load.other is not None and mask and load.fill is None else []
        lines.append(call(name, "tl.load", args, "" if cast is None else f".to({self._dtype(cast.dtype)})"))
        fill = load.other if load.fill is None else load.fill
        if load.within and fill is not None:
            lines.append(call(name, "tl.where", [f"{name}_within", name, self.constant(fill).text]))
        return lines
