"""What a case needs, and whether it fits: a case that does not is left out and named with its figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import device as devices
from .bounds import PIECE
from .contractions import multiplied
from .eager import EagerMode
from .inputs import storage_elements
from .model import Case, Operator, Tensor
from .oracle import TILE_BYTES, Tiling

INTERPRETER_ELEMENTS = 2**18
"""Most elements in one tensor under Triton's interpreter, which needs seconds for so many, where sizes are free."""
SHRUNKEN_ELEMENTS = 2**15
"""The same of larger cases, which run with smaller sizes."""
FIXED_ELEMENTS = 2**24
"""The same where the spec fixes the sizes, as those of a module's weights; time limits these (patience.py)."""
TILE_COPIES = 8
"""Times the fp64 inputs and outputs of one tile are held at the worst moment: those of the oracle, and those of the
disturbed one with the steps that are under way. With PIECE_COPIES 24 on an H100, for a softmax."""
CALL_COPIES = 4
"""The same beside these where sums of products are disturbed: squares of what they read, their errors, and results."""
PIECE_COPIES = 16
"""fp64 temporaries of the errors of one piece of a tile, by group."""


def minimal_bytes(operator: Operator, case: Case) -> tuple[int, int]:
    """The bytes that must be read and written at least: every data input once, every output once, but for those of
    which nobody knows how many elements change."""
    kept = {t.into: t for t in operator.outputs if t.kept}
    read = [t for t in operator.inputs if not t.like and t.name not in kept]
    changed = sum(math.prod(case.shape(t)) * case.dtype(t).itemsize for t in kept.values())
    read_bytes = sum(math.prod(case.shape(t)) * case.dtype(t).itemsize for t in read)
    return read_bytes, output_bytes(operator, case) - changed


def output_bytes(operator: Operator, case: Case) -> int:
    return sum(math.prod(case.shape(t)) * case.dtype(t).itemsize for t in operator.outputs)


def input_bytes(operator: Operator, case: Case) -> int:
    return sum(storage_elements(case.shape(t), case.layout) * case.dtype(t).itemsize for t in operator.inputs)


SCRAPS = 2**20
"""Flags, counters and what the allocator rounds up."""
WIDER = 8
"""Times a tile may be as large on a GPU. Of ReLU's 1.6e9 results on an H200 four fifths of the time went into launching
what computes tiles of TILE_BYTES."""


def accuracy_bytes(operator: Operator, case: Case, wider: int = 1) -> int:
    """Inputs, two outputs (the candidate's and PyTorch's) and the fp64 reference of one tile with its temporaries.
    `wider`: times tiles and pieces are as large as they usually are."""
    largest = 0 if operator.exact else Tiling(operator, case, wider * TILE_BYTES).largest()
    copies = TILE_COPIES + (CALL_COPIES if operator.stored or operator.multiplied else 0)
    tile = copies * largest + PIECE_COPIES * min(largest, 8 * PIECE * wider)
    return input_bytes(operator, case) + 2 * output_bytes(operator, case) + tile + SCRAPS


def wider(operator: Operator, case: Case, device: str) -> int:
    """How many times as large as usual tiles are: WIDER on a GPU of whose free memory the case then takes half at most,
    where no step of the reference has more elements than its inputs and outputs."""
    if device != "cuda" or operator.exact or Tiling(operator, case).cost <= TILE_BYTES:
        return 1
    if 2 * accuracy_bytes(operator, case, WIDER) > devices.free_bytes(device):
        return 1
    steps = _steps(operator, case)
    tensors = (*operator.inputs, *operator.outputs)
    return WIDER if steps.are_all and steps.most <= sum(math.prod(case.shape(t)) for t in tensors) else 1


HOST_ELEMENTS, HOST_PRODUCTS = 2**16, 2**23
"""Elements of a tensor, and products summed, up to which a core is as fast with a step in float64 as a GPU, which waits
for its launch."""


def quick_on_host(operator: Operator, case: Case, device: str) -> bool:
    """Whether oracles are computed on the host though the device is a GPU. Of products and convolutions there are
    thousands of steps, and nearly all of a small case's time on a GPU goes into launching them. Places that are chosen
    among equal elements are the GPU's own."""
    products = operator.stored or operator.multiplied
    floats = all(case.dtype(t).is_floating_point for t in operator.outputs)
    sizes = [math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs)]
    if device != "cuda" or operator.exact or not products or not floats or max(sizes) > HOST_ELEMENTS:
        return False
    if not min(sizes):  # torch's kernels for the host refuse some weights without elements
        return False
    steps = _steps(operator, case)
    return steps.are_all and steps.most <= HOST_ELEMENTS and steps.products() <= HOST_PRODUCTS


def accuracy_left_out(operator: Operator, case: Case, device: str, most: int = FIXED_ELEMENTS) -> str:
    """Why the case cannot be checked on this machine, with figures; "" if it can. `most`: elements in one tensor that
    the interpreter takes."""
    if device == "cpu" and not devices.is_npu():
        elements = largest(operator, case)
        if elements > most:
            return f"{elements:,} elements in one tensor; the interpreter takes {most:,}"
    for size, exact in operator.rounded if case.hidden else ():
        if (count := math.prod(case.dims(size))) > exact:
            return f"the reference rounds places along {size}: of {count:,} torch has {exact:,} right in float32"
    return does_not_fit(accuracy_bytes(operator, case), device)


def shrunken(operator: Operator, case: Case, device: str) -> Case:
    """The case as it is run on a device: under the interpreter one beyond INTERPRETER_ELEMENTS has its largest free
    sizes halved until no tensor with one is beyond SHRUNKEN_ELEMENTS. The label stays."""
    if not takes_long(operator, case, device):
        return case
    tensors = (*operator.inputs, *operator.outputs)
    while True:
        names = [n for t in tensors if math.prod(case.shape(t)) > SHRUNKEN_ELEMENTS for n in _free(case, t)]
        smaller = {n: replace(case, sizes={**case.sizes, n: _halved(case.sizes[n])}) for n in dict.fromkeys(names)}
        possible = [n for n, other in smaller.items() if has_shapes(operator, other)]
        if not possible:
            return case
        case = smaller[max(possible, key=lambda n: _extent(case.sizes[n]))]


def has_shapes(operator: Operator, case: Case) -> bool:
    """Whether every size of an input that follows from other sizes, such as `H - 2`, is one: none is below 0."""
    try:
        return all(size >= 0 for t in operator.inputs for size in case.shape(t))
    except ZeroDivisionError:
        return False


def _free(case: Case, tensor: Tensor) -> list[str]:
    """The names of sizes in a tensor's shape that can be smaller."""
    found = [n for entry in tensor.shape for n in re.findall(r"\.\.\.|[A-Za-z]\w*", str(entry))]
    return [n for n in dict.fromkeys(found) if n in case.sizes and _extent(case.sizes[n]) > 1]


def _extent(size: int | tuple[int, ...]) -> int:
    return max(size, default=0) if isinstance(size, tuple) else size


def _halved(size: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """A half, or with the largest of several sizes halved: what divides the whole still does, mostly."""
    if isinstance(size, int):
        return size // 2
    largest = size.index(max(size))
    return tuple(s // 2 if i == largest else s for i, s in enumerate(size))


def takes_long(operator: Operator, case: Case, device: str) -> bool:
    """Whether the case is beyond what the interpreter takes without a look at the clock."""
    return device == "cpu" and not devices.is_npu() and largest(operator, case) > INTERPRETER_ELEMENTS


def largest(operator: Operator, case: Case) -> int:
    """The elements of the largest tensor."""
    return max(math.prod(case.shape(t)) for t in (*operator.inputs, *operator.outputs))


class _Steps(EagerMode):  # type: ignore[no-untyped-call]
    """Notes what the steps of a reference come to."""

    most = 0
    """Elements of the largest result of any."""
    are_all = True
    """Whether these are all steps: those where shapes depend on values are not known."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, ...]] = []

    def products(self) -> int:
        """How many are summed, in all steps together."""
        return sum(multiplied(*call) for call in self._calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, *(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)), 0)
        self._calls.append((func, args, kwargs or {}, result))
        return result


def largest_step(operator: Operator, case: Case) -> int:
    """The elements of the largest tensor, those between the reference's steps included; of these only where the
    reference's shapes follow from its inputs' shapes."""
    return max(largest(operator, case), _steps(operator, case).most)


def _steps(operator: Operator, case: Case) -> _Steps:
    """The steps of the reference, found without memory."""
    steps = _Steps()
    given = [torch.empty(case.shape(t), dtype=case.dtype(t), device="meta") for t in operator.inputs]
    try:
        with torch.no_grad(), steps:
            operator.pure(*given)
    except Exception:  # what torch does not do without memory
        steps.are_all = False
    return steps


def does_not_fit(needed: int, device: str) -> str:
    free = devices.free_bytes(device)
    return "" if needed <= free else f"needs {gib(needed)}, {gib(free)} free on {device}"


def gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
