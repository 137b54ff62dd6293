"""Schedules of convolutions: what may be tuned, what a device can hold, and where to begin.

Tiles follow what was measured on an H200 (sm_90, 132 SMs); other devices begin there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelgen.families.convolution.lowering import SPACE, ConvolutionBody
from kernelgen.families.convolution.phases import phases_of
from kernelgen.families.family import LIBRARY as LIBRARY
from kernelgen.families.family import Kernels, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.schedules import SHARED_BYTES
from kernelgen.plan import Parameter, Schedule, table_row
from kernelgen.spec.model import Size

BOXES, GATHER, FOLDED = "boxes", "gather", "folded"
MEANINGS = {
    BOXES: "one tile of pixels by channels per program, tap by tap, from tiles of the channels-last input copied by "
    "TMA (sm_90 and newer); otherwise as `gather`",
    GATHER: "the same for any run of pixels and any stride, with the inputs of a tap loaded through pointers",
    FOLDED: "the same on the input in its own layout, with taps and channels as one summed dimension: for few channels",
    LIBRARY: "torch's convolution, where it is faster; the epilogue is then a separate kernel",
}
FEW_CHANNELS = 15
"""Input channels of which a tap has so few that the copy engine and the matrix units would be fed mostly zeros."""

NARROW_CHANNELS = 16
"""A quarter of what a tile sums at once: in half precision torch's call in channels-last is faster (H200, 16 channels
of 128 images of 128 by 128: 497 us with the turn and the epilogue, in boxes 656)."""

_BOXES = Schedule.make(
    BOXES, BLOCK_M=128, BLOCK_D=1, BLOCK_H=8, BLOCK_W=8, BLOCK_N=128, BLOCK_K=64, GROUP_M=1, num_warps=8, num_stages=3,
    swap=False,
)  # fmt: skip
_WIDE = _BOXES.replace(BLOCK_M=256, BLOCK_K=32, num_stages=4, swap=True)
"""Of float32 on the matrix units, whose operands want what is summed side by side."""
_SWAPPED = _BOXES.replace(BLOCK_M=256, num_stages=4, swap=True)
_GATHER = Schedule.make(GATHER, BLOCK_M=64, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3, swap=False)
_FOLDED = Schedule.make(FOLDED, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, num_warps=4, num_stages=3, swap=False)
_LIBRARY = Schedule.make(LIBRARY, channels_last=False)
_DEFAULTS = {BOXES: _BOXES, GATHER: _GATHER, FOLDED: _FOLDED, LIBRARY: _LIBRARY}


def variants(body: ConvolutionBody) -> tuple[str, ...]:
    found = (BOXES, GATHER) if boxable(body) else (GATHER,)
    # the taps of a phase are not all taps, of which `folded` makes one run with the channels
    return (*found, LIBRARY) if phases_of(body) else (*found, FOLDED, LIBRARY)


def boxable(body: ConvolutionBody) -> bool:
    """Whether what a tap sees of a box of pixels is a box: neighbours are neighbours in the input too, those of a phase
    where a convolution is transposed."""
    whole = {"images", "channels", *(f"{kind}_{d}" for kind in ("out", "tap") for d in SPACE[body.rank])}
    single = {*body.pixels, *(run.index for run in body.extent("k").runs)} <= whole
    near = body.windows.transposed or set(body.windows.stride) == {1}
    return single and near and body.windows.groups == 1


def space(variant: str) -> tuple[Parameter, ...]:
    if variant == LIBRARY:
        last = "the input turned to channels-last before the call"
        return (Parameter("channels_last", (False, True), "memory_access", "structure", last),)
    blocks = {
        "BLOCK_M": ((16, 32, 64, 128, 256), "pixels of a tile"),
        "BLOCK_N": ((16, 32, 64, 128, 256, 512), "output channels of a tile"),
        "BLOCK_K": ((16, 32, 64, 128), "of what is summed, at once"),
    }
    if variant == BOXES:
        sides = (1, 2, 4, 8, 16, 32, 64)
        blocks |= {f"BLOCK_{d}": (sides, f"pixels of a box along its {what}") for d, what in _SIDES.items()}
    found = [Parameter(n, choices, "block_size", "constexpr", what) for n, (choices, what) in blocks.items()]
    found.append(Parameter("num_warps", (4, 8), "warp_stage", "launch", "warps per program"))
    found.append(Parameter("num_stages", (1, 2, 3, 4, 5), "warp_stage", "launch", "tiles of the factors in flight"))
    group = "rows of tiles whose programs run one after the other, so that they share weights in L2"
    found.append(Parameter("GROUP_M", (1, 4, 8, 16), "grid_config", "constexpr", group))
    swap = "the transposed product: channels by pixels"
    found.append(Parameter("swap", (False, True), "data_reuse", "structure", swap))
    return tuple(found)


_SIDES = {"D": "depth", "H": "height", "W": "width"}


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.variant == LIBRARY:
        return None
    if schedule.variant == BOXES and schedule.int("BLOCK_M") % prod(schedule.int(f"BLOCK_{d}") for d in _SIDES):
        return "a tile that is no whole number of boxes"
    rows, cols, depth = (schedule.int(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    if rows * cols > 256 * 32 * schedule.int("num_warps"):
        return "more than 256 sums a thread"
    if (rows + cols) * depth * itemsize * max(schedule.int("num_stages"), 1) > SHARED_BYTES:
        return f"tiles of more than {SHARED_BYTES} bytes of shared memory"
    return None


def holds(body: Body, schedule: Schedule, itemsize: int) -> str | None:
    """Why the windows of a pool are not whole within a tile."""
    if not isinstance(body, ConvolutionBody) or schedule.variant == LIBRARY or not body.pool:
        return None
    sides = dict(zip(list(_SIDES)[-body.rank :], body.pool, strict=True))
    if schedule.variant == BOXES and any(schedule.int(f"BLOCK_{d}") % side for d, side in sides.items()):
        return "a box that is no whole number of windows"
    return None if schedule.int("BLOCK_M") % prod(body.pool) == 0 else "a tile that is no whole number of windows"


def first_table(body: ConvolutionBody) -> Table:
    return tuple(replace(row, schedule=_with_depth(body, row.schedule)) for row in _first_table(body))


def _first_table(body: ConvolutionBody) -> Table:
    """From H200 figures beside cuDNN: boxes 1.08 of its speed for 3x3 with bias and relu in float16, 1.05 to 1.7 for
    float32 in TF32 of an NCHW input; but 0.85 in float16 where nothing follows, 0.66 in float32 in three dimensions,
    and pointers 0.65 with strides, 0.5 of three channels. Of images the swapped product took 0.65 to 0.72 of the time;
    of 64 output channels half of its tile was empty.
    """
    few = _has_few(body)
    if reduces(body):
        tile = _whole_channels(body) if boxable(body) and few is False else _gathered_channels(body)
        return (table_row(tile, itemsize=2), table_row(tile.replace(BLOCK_K=32)))
    if not boxable(body) or few:
        return (table_row(_LIBRARY),)
    half = _LIBRARY if body.is_library else _BOXES if body.rank == 1 else _SWAPPED
    wide = _LIBRARY if body.is_library and body.rank == 3 else _wide(body)
    kinds = [(half, 2), (wide, None)] if wide != half else [(half, None)]
    rows = []
    for own, size in kinds:
        rows += [table_row(own.replace(BLOCK_N=64), N=64, itemsize=size)] if own.get("swap") else []
        rows.append(table_row(own, itemsize=size))
    if few is False or rows[0].schedule == _LIBRARY:
        return tuple(rows)
    turned = _LIBRARY.replace(channels_last=True)
    turns = half.variant == BOXES and may_turn(body) and not body.windows.transposed
    narrow = [table_row(turned, C=NARROW_CHANNELS, itemsize=2)] if turns else []
    return (table_row(_LIBRARY, C=FEW_CHANNELS), *narrow, *rows)


def may_pool(body: ConvolutionBody) -> bool:
    """Whether windows are whole in boxes, and anything but torch's call is known to be fast."""
    table = [row.schedule for row in first_table(body)]
    return any(s.variant != LIBRARY for s in table) and all(holds(body, s, 0) is None for s in table)


def _with_depth(body: ConvolutionBody, schedule: Schedule) -> Schedule:
    """A schedule whose boxes are as deep as the windows of a pool."""
    if schedule.variant != BOXES or not body.pool or body.rank < 3:
        return schedule
    deep = schedule.replace(BLOCK_D=max(schedule.int("BLOCK_D"), body.pool[0]))
    pixels = prod(deep.int(f"BLOCK_{d}") for d in _SIDES)
    return deep.replace(BLOCK_M=max(deep.int("BLOCK_M"), pixels))


def _has_few(body: ConvolutionBody) -> bool | None:
    """Whether there are FEW_CHANNELS; None: their number is not known."""
    known: list[Size] = [body.lowered.space.axes[a] for a in body.run("channels").axes] if _has_channels(body) else [1]
    return prod(size for size in known if isinstance(size, int)) <= FEW_CHANNELS if _are_numbers(known) else None


def _whole_channels(body: ConvolutionBody) -> Schedule:
    """Boxes with all output channels, which are reduced in registers. Compiled and not measured."""
    rows = 128 if body.width <= 128 else 64
    depth = 2 if body.rank == 3 else 1
    return _BOXES.replace(BLOCK_M=rows, BLOCK_N=body.width, BLOCK_D=depth, BLOCK_H=rows // (8 * depth))


def _gathered_channels(body: ConvolutionBody) -> Schedule:
    width = body.width
    return _GATHER.replace(BLOCK_N=width, BLOCK_M=64, num_warps=8, BLOCK_K=32 if width > 128 else 64, num_stages=2)


def _wide(body: ConvolutionBody) -> Schedule:
    return _WIDE.replace(BLOCK_D=2, BLOCK_M=128) if body.rank == 3 else _WIDE


def may_turn(body: ConvolutionBody) -> bool:
    """Whether torch's call may be given a turned input: a kernel follows it, and writes the result as it should lie."""
    return body.rank > 1 and not body.is_library


def _has_channels(body: ConvolutionBody) -> bool:
    return any(run.index == "channels" for run in body.extent("k").runs)


def _are_numbers(sizes: Sequence[Size]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def starts(body: ConvolutionBody) -> tuple[Schedule, ...]:
    """One for every way to feed the matrix units, the most likely first."""
    if reduces(body):
        rows = (row.schedule for row in first_table(body))
        return tuple(dict.fromkeys([*rows, _gathered_channels(body), _LIBRARY]))
    last = (_LIBRARY, *([_LIBRARY.replace(channels_last=True)] if may_turn(body) else []))
    narrow = _SWAPPED.replace(BLOCK_N=64)
    few = tuple(narrow.replace(BLOCK_K=depth) for depth in (16, 32))
    found = {BOXES: (_BOXES, _SWAPPED, narrow, *few, _wide(body)), LIBRARY: last}
    every_one = (_with_depth(body, s) for v in variants(body) for s in found.get(v, (_DEFAULTS[v],)))
    return tuple(s for s in dict.fromkeys(every_one) if holds(body, s, 0) is None)


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(name), legal, kernels) for name, default in _DEFAULTS.items()
    )
