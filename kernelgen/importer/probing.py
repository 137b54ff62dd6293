"""Small shapes that a reference accepts, found on tensors that have shapes but no memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kernelgen.importer.rewrite import Input
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.sizes import evaluate

Size = int | str
Binding = dict[str, int]

ELEMENTS = 1 << 20
"""Small shapes have no more than that, or three times as many as the smallest."""

LOOKED_UP = 1 << 16
"""A reference is run to see whether places lie within on inputs up to this size."""

SECONDS = 3.0
"""So long shapes are searched for, in each of the ways to search."""


class Probe:
    """What a reference does with sizes. `declared`: the shapes of its inputs by size names; `constraints`: what the
    shapes that are asked for meet besides."""

    def __init__(
        self,
        function: Any,
        inputs: Sequence[Input],
        declared: Sequence[tuple[Size, ...]],
        constraints: Sequence[str] = (),
    ) -> None:
        self.function, self.inputs, self.declared, self.constraints = function, inputs, declared, constraints
        self._called: bool | None = None
        self._known: dict[tuple[tuple[str, int], ...], tuple[tuple[int, ...], ...] | None] = {}

    def results(self, binding: Binding) -> tuple[tuple[int, ...], ...] | None:
        """The shapes of what the reference returns, None where it refuses the sizes or returns nothing whole."""
        key = tuple(sorted(binding.items()))
        if key not in self._known:
            self._known[key] = self._results(binding)
        return self._known[key]

    def _results(self, binding: Binding) -> tuple[tuple[int, ...], ...] | None:
        import torch

        from kernelgen.frontend.recurrent import Whole

        try:
            with torch.no_grad(), Whole():
                found = self.function(*tensors(self.inputs, self.declared, binding, "meta"))
        except Exception:  # whatever a user's reference raises: these sizes are not for it
            return None
        found = found if isinstance(found, tuple | list) else (found,)
        if not found or not all(isinstance(value, torch.Tensor) for value in found):
            return None
        shapes = tuple(tuple(value.shape) for value in found)
        return shapes if all(map(all, shapes)) else None

    def finds_places(self, binding: Binding) -> bool:
        """Whether the places that it computes of sizes alone lie in what it reads there: it is run, on few elements."""
        import torch

        from kernelgen.frontend.recurrent import Whole

        if not self._looks_up() or self.elements(binding) > LOOKED_UP:
            return True
        try:
            with torch.no_grad(), Whole():
                self.function(*tensors(self.inputs, self.declared, binding))
        except IndexError:
            return False
        except Exception:  # it is no matter of places
            return True
        return True

    def _looks_up(self) -> bool:
        """Whether it reads at places."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        called: set[str] = set()

        class Heard(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                called.add(func.overloadpacket.__name__)
                return func(*args, **(kwargs or {}))

        if self._called is None:
            with contextlib.suppress(Exception), torch.no_grad(), Heard():  # type: ignore[no-untyped-call]
                self.function(
                    *(torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in self.inputs)
                )
            self._called = bool(called & {"embedding", "index", "index_select", "gather"})
        return self._called

    def elements(self, binding: Binding) -> int:
        """How many elements the inputs have that are no parameters."""
        return sum(
            math.prod(_bound(entries, binding))
            for tensor, entries in zip(self.inputs, self.declared, strict=True)
            if tensor.role == "data"
        )

    def accepts(self, binding: Binding) -> bool:
        return self._meets(binding) and self.results(binding) is not None

    def _meets(self, binding: Binding) -> bool:
        """Whether the constraints hold."""
        pairs = zip(self.inputs, self.declared, strict=True) if self.constraints else ()
        layouts = {tensor.name: Layout(_bound(entries, binding)) for tensor, entries in pairs}
        return all(broken(text, layouts) is None for text in self.constraints)


def _bound(entries: Sequence[Size], binding: Binding) -> tuple[int, ...]:
    """A declared shape in numbers."""
    return tuple(entry if isinstance(entry, int) else evaluate(entry, binding) for entry in entries)


def tensors(
    inputs: Sequence[Input], declared: Sequence[tuple[Size, ...]], binding: Binding, device: str = "cpu"
) -> list[Any]:
    """Random inputs; integers are 0 and 1, which are indices of nearly everything."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = []
    for tensor, entries in zip(inputs, declared, strict=True):
        shape = _bound(entries, binding)
        dtype = getattr(torch, tensor.dtype)
        if device == "meta":
            made.append(torch.empty(shape, dtype=dtype, device=device))
        elif dtype.is_floating_point:
            made.append(torch.rand(shape, generator=generator).add(0.1).to(dtype))
        else:
            made.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return made


def small_shapes(probe: Probe, sizes: Binding, factors: Binding) -> list[Binding]:
    """Up to six small shapes that the reference accepts. `sizes`: the file's own; `factors`: what must divide them."""
    fitting = (row for row in small_rows(sizes) if _divided(row, factors))
    accepted = [row for row in fitting if probe.accepts(row)]
    if len(accepted) < 2:
        accepted = _grown(probe, sizes, factors) or accepted
    if not accepted and sizes:
        accepted = _shrunk(probe, sizes, factors)
    accepted = [dict(case) for case in dict.fromkeys(tuple(row.items()) for row in accepted)]
    most = max(ELEMENTS, 3 * min(map(probe.elements, accepted), default=0))
    return [case for case in accepted if probe.elements(case) <= most][:6]


def _divided(binding: Binding, factors: Binding) -> bool:
    return all(binding[name] % factor == 0 for name, factor in factors.items())


_SMALL: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (7,), (127,), (1025,)),
    2: ((1, 1), (1, 7), (5, 129), (33, 64), (3, 1025)),
    3: ((1, 1, 1), (1, 5, 7), (3, 4, 33), (2, 17, 65)),
    4: ((1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 9, 17), (3, 8, 5, 33)),
    5: ((1, 1, 1, 1, 1), (1, 3, 5, 2, 7), (2, 4, 3, 5, 9)),
}
"""Small and odd sizes by how many there are."""


def small_rows(sizes: Binding) -> Iterator[Binding]:
    """Shapes for all size names at once, of a few thousand elements each."""
    count = len(sizes)
    rows = _SMALL.get(count) or tuple(tuple((1, 3, 5, 2, 7, 4)[(i + s) % 6] for i in range(count)) for s in range(4))
    for row in rows:
        yield dict(zip(sizes, row, strict=True))


def _grown(probe: Probe, sizes: Binding, factors: Binding) -> list[Binding]:
    """Shapes for a reference that wants some sizes large enough, or multiples of something."""
    found: list[Binding] = []
    steps = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
    until = time.monotonic() + SECONDS
    for row in small_rows(sizes):
        options = [
            tuple(dict.fromkeys(min(v * f, max(n, 1)) for f in steps))
            for v, n in zip(row.values(), sizes.values(), strict=True)
        ]
        tried = sorted(itertools.product(*options), key=math.prod) if len(sizes) <= 4 else zip(*options, strict=False)
        for values in itertools.islice(tried, 300):
            binding = dict(zip(sizes, values, strict=True))
            if time.monotonic() > until:
                return found
            if _divided(binding, factors) and binding not in found and probe.accepts(binding):
                found.append(binding)
                break
    return found


def _shrunk(probe: Probe, sizes: Binding, factors: Binding) -> list[Binding]:
    """The file's own sizes, each halved as long as the reference takes it; and the same with one more of each."""
    if not probe.accepts(sizes):
        return []
    until = time.monotonic() + SECONDS
    least = dict(sizes)
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        factor = factors.get(name, 1)
        while least[name] > factor and time.monotonic() < until:
            fewer = {**least, name: max(least[name] // factor // 2, 1) * factor}
            if not probe.accepts(fewer):
                break
            least = fewer
    more = dict(least)
    for name in sizes:
        steps = (least[name] + factors.get(name, 1), 2 * least[name])
        more[name] = next((n for n in steps if probe.accepts({**more, name: n})), least[name])
    return [least, more]
