"""Schedules of convolutions: what may be tuned, what a device can hold, and where to begin.

Tiles follow what was measured on an H200 (sm_90, 132 SMs); other devices begin there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from kernelgen.families.convolution.lowering import (
    NARROW,
    PART_CHANNELS,
    SPACE,
    ConvolutionBody,
    are_parted,
    may_have_parts,
)
from kernelgen.families.convolution.phases import phases_of
from kernelgen.families.family import LIBRARY as LIBRARY
from kernelgen.families.family import Kernels, Refusal, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.schedules import SHARED_BYTES
from kernelgen.plan import Parameter, Schedule, TableRow, table_row
from kernelgen.spec.model import Size

BOXES, STRIPS, GATHER, FOLDED = "boxes", "strips", "gather", "folded"
BY_BOXES = BOXES, STRIPS
"""Whose pixels are a box, which descriptors copy."""
MEANINGS = {
    BOXES: "one tile of pixels by channels per program, tap by tap, from tiles of the channels-last input copied by "
    "TMA (sm_90 and newer); otherwise as `gather`",
    STRIPS: "one tile of pixels by channels per program, row by row of the window, whose taps and channels are one "
    "summed dimension, from tiles of a padded channels-last copy of the input that TMA reads (sm_90 and newer); "
    "otherwise as `gather`: for windows that do not overlap, and other strides",
    GATHER: "the same for any run of pixels and any stride, with the inputs of a tap loaded through pointers",
    FOLDED: "the same on the input in its own layout, with taps and channels as one summed dimension: for few channels "
    "in half precision",
    LIBRARY: "torch's convolution, where it is faster; the epilogue is then a separate kernel",
}
FEW_PIXELS, FEW_COLUMNS = 4096, 512
"""Of which tiles of 256 pixels by 128 channels make half as many programs as there are multiprocessors."""
FEW_CHANNELS = 7
"""Input channels of which a tap has so few that the matrix units would be fed mostly zeros. In three dimensions of
space they are left to torch's call: 617 us of 3 channels, in boxes 1044 without the turn (H200, 3x3x3). Not turned:
then it multiplies in TF32 what it may multiply in float32 as it lies (see `multiplies_as_torch`; KernelBench level 2's
79, of 3 channels, is off by 18 times its tolerance then, 0.01 before), and of few channels of halves it gives NaN where
a sum is infinite (cuDNN 9: 116 of 756 results of 4 channels of spread 100). Phases are multiplied in boxes."""
NARROW_CHANNELS = 8
"""Input channels in three dimensions of space that are left to torch's call for `NARROW` output channels, turned: 1225
us by 2272 in boxes without the turn (H200, 3x3x3 of 8 to 16 channels). More output channels of so few it multiplies in
float32 as they lie (8 to 64, KernelBench level 2's 90: off by 0.008 of KernelBench's tolerance, in TF32 by 3.4)."""

LEAST_DEPTH, LEAST_COLUMNS = 16, 32
"""What a tile sums at once, and its output channels, at the least: what the matrix units take."""

POOLED = 8
"""Pixels a side of a window that a kernel pools at most: of more, few boxes hold whole windows."""

_BOXES = Schedule.make(
    BOXES, BLOCK_M=256, BLOCK_D=1, BLOCK_H=4, BLOCK_W=64, BLOCK_N=128, BLOCK_K=32, GROUP_M=1, num_warps=8,
    num_stages=4, swap=True,
)  # fmt: skip
_SIDES = {"D": "depth", "H": "height", "W": "width"}
_COSTS = {
    1: {256: 1.0, 128: 1.1, 64: 1.08},
    2: {64: 1.0, 32: 1.03, 16: 1.06, 8: 1.2},
    3: {32: 1.0, 16: 1.02, 8: 1.2},
}
"""What a box costs by its width, by the dimensions of space: of a narrow one, short runs of pixels are stored. H200,
float32: 3x3 of 64 to 128 channels, 126 by 126: 357 us 64 wide, 379 16 wide, 444 8 wide; in one dimension 208, 230 and
224 us; in three 358 and 375."""
_PHASE_COSTS = {64: 1.0, 32: 1.06, 16: 1.18}
_PHASES = {w: _BOXES.replace(BLOCK_M=128, BLOCK_H=128 // w, BLOCK_W=w, num_stages=2) for w in _PHASE_COSTS}
"""The same of planes phase by phase of at most 64 output channels, in boxes of 128 pixels: few taps reach a phase, so
that several short programs at once are faster than tiles in flight. H200, float32, 4x4 with stride 2: 64 channels by 32
images of 256 by 256, 2844 us in boxes 4 by 32 with two tiles in flight and 3595 16 by 16 with four; of 128 output
channels 482 and 410."""
_OF_PHASES = _BOXES.replace(BLOCK_M=128, BLOCK_D=2, num_warps=4)
_SPACES_OF_PHASES = {16: _OF_PHASES.replace(BLOCK_H=4, BLOCK_W=16), 8: _OF_PHASES.replace(BLOCK_H=8, BLOCK_W=8)}
"""The same in three dimensions of space. H200, float32, 32 to 64 channels, 3x3x3 with stride 2 (KernelBench level 2's
3, 38 and 49): 0.88 of the time of boxes 2 by 4 by 32 and eight warps, with eight warps 0.97 to 0.99."""
_SPACES = {w: _BOXES.replace(BLOCK_D=2, BLOCK_H=64 // w, BLOCK_W=w, num_warps=4, num_stages=5) for w in (32, 16)}
"""The same of windows that are not transposed, two boxes a tile: 0.89 to 0.95 (43 and 47)."""
_NARROW_PHASES = _BOXES.replace(BLOCK_D=4, BLOCK_H=2, BLOCK_W=32, num_warps=4, num_stages=3)
"""Phases of at most 32 output channels in three dimensions of space: 0.85 (74, 16 to 32 channels), and of 3 to 16
channels 0.49 to 0.60 of torch's call and what follows (50, 58, 72, 89 and 96)."""
_POINTS = Schedule.make(FOLDED, BLOCK_M=64, BLOCK_N=128, BLOCK_K=32, GROUP_M=8, num_warps=8, num_stages=3, swap=False)
"""Of windows of one pixel in half precision: 72 us where boxes take 159 and torch's call with what follows 115 (H200,
64 to 128 channels, 7 images of 256 by 256)."""
_GATHER = Schedule.make(GATHER, BLOCK_M=64, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3, swap=False)
_FOLDED = Schedule.make(FOLDED, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, num_warps=4, num_stages=3, swap=False)
_PATCHES = Schedule.make(
    STRIPS, BLOCK_M=128, BLOCK_D=1, BLOCK_H=16, BLOCK_W=8, BLOCK_N=128, BLOCK_K=64, GROUP_M=1, num_warps=4,
    num_stages=3, swap=True,
)  # fmt: skip
"""Of windows that do not overlap: patches of 16 by 16 pixels of 3 channels as 768 numbers took 106 us, torch's call 584
(H200, 64 images of 224 by 224, float16). 2x2 windows of 384 channels, 7 by 7 of them, took 61 us, torch.compile 35."""
_LIBRARY = Schedule.make(LIBRARY, channels_last=False)
_STRIPS = Schedule.make(STRIPS, **dict(_BOXES.values))
_DEFAULTS = {BOXES: _BOXES, STRIPS: _STRIPS, GATHER: _GATHER, FOLDED: _FOLDED, LIBRARY: _LIBRARY}


def variants(body: ConvolutionBody) -> tuple[str, ...]:
    found = (*([BOXES] if boxable(body) else []), *([STRIPS] if has_strips(body) else []), GATHER)
    # the taps of a phase are not all taps, of which `folded` makes one run with the channels
    return (*found, LIBRARY) if phases_of(body) else (*found, FOLDED, LIBRARY)


def boxable(body: ConvolutionBody) -> bool:
    """Whether what a tap sees of a box of pixels is a box: neighbours are neighbours in the input too, those of a phase
    where a convolution is transposed."""
    return _is_whole(body) and (body.windows.transposed or set(body.windows.stride) == {1})


def _is_whole(body: ConvolutionBody) -> bool:
    """Whether pixels, taps and channels are counted along whole dimensions, and there is one group."""
    whole = {"images", "channels", *(f"{kind}_{d}" for kind in ("out", "tap") for d in SPACE[body.rank])}
    return {*body.pixels, *(run.index for run in body.extent("k").runs)} <= whole and body.windows.groups == 1


def has_strips(body: ConvolutionBody) -> bool:
    """Whether the taps of a row lie side by side, and descriptors have dimensions enough for images, rows of taps, and
    the pixels that see them. Not without strides, where boxes were as fast or faster (H200, 3x3 of 3, 8, 16 and 64
    channels)."""
    how = body.windows
    near = how.dilation[-1] == 1 < how.stride[-1] and body.window[-1] > 1
    return _is_whole(body) and near and body.rank < 3 and not how.transposed and not body.pool


def has_patches(body: ConvolutionBody) -> bool:
    """Whether windows have strides of their own size, so that none overlaps another."""
    return has_strips(body) and body.window == body.windows.stride


def space(variant: str) -> tuple[Parameter, ...]:
    if variant == LIBRARY:
        last = "the input turned to channels-last before the call"
        return (Parameter("channels_last", (False, True), "memory_access", "structure", last),)
    blocks = {
        "BLOCK_M": ((16, 32, 64, 128, 256), "pixels of a tile"),
        "BLOCK_N": ((16, 32, 64, 128, 256, 512), "output channels of a tile"),
        "BLOCK_K": ((16, 32, 64, 128), "of what is summed, at once"),
    }
    if variant in BY_BOXES:
        sides = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        blocks |= {f"BLOCK_{d}": (sides, f"pixels of a box along its {what}") for d, what in _SIDES.items()}
    found = [Parameter(n, choices, "block_size", "constexpr", what) for n, (choices, what) in blocks.items()]
    found.append(Parameter("num_warps", (4, 8), "warp_stage", "launch", "warps per program"))
    found.append(Parameter("num_stages", (1, 2, 3, 4, 5), "warp_stage", "launch", "tiles of the factors in flight"))
    group = "rows of tiles whose programs run one after the other, so that they share weights in L2"
    found.append(Parameter("GROUP_M", (1, 4, 8, 16), "grid_config", "constexpr", group))
    swap = "the transposed product: channels by pixels"
    found.append(Parameter("swap", (False, True), "data_reuse", "structure", swap))
    return tuple(found)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.variant == LIBRARY:
        return None
    if schedule.variant in BY_BOXES and schedule.int("BLOCK_M") % _pixels(schedule):
        return "a tile that is no whole number of boxes"
    rows, cols, depth = (schedule.int(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    if rows * cols > 256 * 32 * schedule.int("num_warps"):
        return "more than 256 sums a thread"
    if (rows + cols) * depth * itemsize * max(schedule.int("num_stages"), 1) > SHARED_BYTES:
        return f"tiles of more than {SHARED_BYTES} bytes of shared memory"
    return None


def room(body: Body, itemsize: int) -> Refusal:
    """Why the channels that are reduced, or the windows of a pool, are not whole within a tile."""
    assert isinstance(body, ConvolutionBody)
    whole, windows = body.width if reduces(body) else 0, prod(body.pool)
    sides = dict(zip(list(_SIDES)[-body.rank :], body.pool, strict=True)) if body.pool else {}

    def refusal(schedule: Schedule) -> str | None:
        if schedule.variant == LIBRARY:
            return None
        if schedule.int("BLOCK_N") < whole:
            return f"tiles of {schedule.int('BLOCK_N')} channels, where {whole} are reduced"
        if schedule.variant == BOXES and any(schedule.int(f"BLOCK_{d}") % side for d, side in sides.items()):
            return "a box that is no whole number of windows"
        return None if schedule.int("BLOCK_M") % windows == 0 else "a tile that is no whole number of windows"

    return refusal


def first_table(body: ConvolutionBody, widths: Sequence[int] = ()) -> Table:
    """From H200 figures beside cuDNN and torch.compile, which calls it with a turned input; NCHW in and out. In float32
    (TF32) boxes take 0.55 to 0.98 of the time of the better of them; in half precision 0.9 to 1.07 from 32 channels on,
    of fewer 0.6 to 0.71 of torch's call and what follows without the turn, which was not timed; but torch's call alone
    is faster where nothing follows. With strides pointers take 1.2 times as long as torch's call, of three channels
    four times. `widths`: pixels that boxes may lie along.
    """
    few, alone = _has_few(body), body.is_library and not has_bias(body)
    if reduces(body):
        tile = _whole_channels(body) if boxable(body) and few is False else _gathered_channels(body)
        return (table_row(tile, itemsize=2), table_row(tile.replace(BLOCK_K=32)))
    if has_patches(body):
        patches = _PATCHES if body.rank == 2 else _PATCHES.replace(BLOCK_H=1, BLOCK_W=128)
        return table_row(patches, itemsize=2), table_row(_LIBRARY)
    if not boxable(body) or (alone and prod(body.window) == 1):
        return (table_row(_LIBRARY),)
    box = _box(body, widths)
    narrow = _box(body, widths, narrow=True) if _narrow_boxes(body) else None
    in_halves = narrow if narrow and body.rank == 2 else None  # others were measured in float32
    if alone:
        halves: Table = (table_row(_LIBRARY, itemsize=2),)
    elif prod(body.window) == 1 and FOLDED in variants(body):
        halves = (table_row(_POINTS, itemsize=2),)
    else:
        halves = _by_columns(body, box.replace(BLOCK_K=64), in_halves and in_halves.replace(BLOCK_K=64), itemsize=2)
        if _channels(body) is None:
            shallow = box.replace(BLOCK_K=LEAST_DEPTH)
            halves = (*_by_columns(body, shallow, None, C=LEAST_DEPTH, itemsize=2), *halves)
    of_few = _of_few(body, box, _LIBRARY.replace(channels_last=not alone))
    return (*halves, *of_few, *(() if any(not row.upto for row in of_few) else _by_columns(body, box, narrow)))


def _of_few(body: ConvolutionBody, box: Schedule, turned: Schedule) -> Table:
    """The rows of few float32 channels."""
    channels = _channels(body)
    if body.rank == 3 and body.pool:  # what follows torch's call does not read whole lines then
        return ()
    if body.rank == 3:
        few, narrow = (table_row(_LIBRARY, C=c) for c in (FEW_CHANNELS, NARROW_CHANNELS))
        rows = [few, table_row(turned, N=NARROW, C=NARROW_CHANNELS), narrow]
        if phases_of(body) and may_have_parts(body):
            tile = _NARROW_PHASES.replace(BLOCK_K=LEAST_DEPTH)
            rows[:1] = [
                table_row(tile.replace(BLOCK_N=LEAST_DEPTH), N=LEAST_DEPTH, C=FEW_CHANNELS),
                table_row(tile.replace(BLOCK_N=LEAST_COLUMNS), C=FEW_CHANNELS),
            ]
        if (columns := _known(body, body.extent("n").axes)) is not None:
            rows = [row for row in rows if columns <= (row.limit("N") or columns)]
        return tuple(rows) if channels is None else _of_known(rows, channels)
    if not may_have_parts(body):
        return ()
    # each as three TF32 numbers
    half = box.replace(**{"BLOCK_M": 128, ("BLOCK_H" if body.rank == 2 else "BLOCK_W"): _half_side(box, body.rank)})
    small = (half if room(body, 0)(half) is None else box).replace(BLOCK_N=64, BLOCK_K=32, num_warps=4)
    return (table_row(small, C=None if channels else PART_CHANNELS),)


def _of_known(rows: Sequence[TableRow], channels: int) -> Table:
    """The rows that so many channels reach, where their number is known and need not be asked for."""
    found: list[TableRow] = []
    for row in rows:
        upto = dict(row.upto)
        if channels <= upto.pop("C"):
            found.append(table_row(row.schedule, **upto))
            if not upto:
                break
    return tuple(found)


def _half_side(box: Schedule, rank: int) -> int:
    """The side that makes of a box one of 128 pixels, or of as many as it has."""
    side = box.int("BLOCK_H" if rank == 2 else "BLOCK_W")
    return max(side * 128 // max(_pixels(box), 128), 1)


def _by_columns(body: ConvolutionBody, box: Schedule, narrow: Schedule | None, **upto: int) -> Table:
    """A box's rows by the number of output channels; its tiles have no more channels than are known to be there.
    `narrow`: the box for few of these, where it is another."""
    channels, columns = _channels(body), _known(body, body.extent("n").axes)
    if channels is not None:
        box = box.replace(BLOCK_K=min(box.int("BLOCK_K"), _enough(channels, LEAST_DEPTH)))
    if columns is not None:
        width = min(box.int("BLOCK_N"), _enough(columns, LEAST_COLUMNS))
        box = narrow if narrow and width <= 64 else box
        return (*_of_few_pixels(box.replace(BLOCK_N=width), upto), table_row(box.replace(BLOCK_N=width), **upto))
    thin = (narrow or box).replace(BLOCK_N=64)
    few = (table_row(_of_four_warps(thin), M=2 * FEW_PIXELS, N=64, **upto),) if _of_four_warps(thin) != thin else ()
    return (*few, table_row(thin, N=64, **upto), *_of_few_pixels(box, upto), table_row(box, **upto))


def _of_four_warps(box: Schedule) -> Schedule:
    """A box with half the warps, but for one of so many pixels that its sums would spill (sm_90, 512 pixels by 64
    channels: 632 B a thread)."""
    return box.replace(num_warps=4) if box.int("BLOCK_M") <= 256 else box


def _of_few_pixels(box: Schedule, upto: Mapping[str, int]) -> Table:
    """In half precision, where wider tiles would be fewer than half of the multiprocessors: narrow ones, which took
    0.66 to 0.75 of the time of 196 to 3136 pixels by 256 or 512 channels (H200, docs/benchmarks/small.json), by four
    warps, which took 0.72 to 1.01 of the time of eight."""
    if box.int("BLOCK_N") <= 64 or upto.get("itemsize") != 2 or "C" in upto:
        return ()
    return (table_row(_of_four_warps(box.replace(BLOCK_N=64)), M=FEW_PIXELS, N=FEW_COLUMNS, **upto),)


@dataclass(frozen=True)
class Timed:
    """The sizes of a case that schedules depend on."""

    channels: int
    columns: int
    """Output channels."""
    pixels: int
    """Of the result, of all images."""
    width: int | None
    """Pixels that a box may lie along: of the result, of a phase of it where a convolution is transposed."""
    itemsize: int


def for_cases(body: ConvolutionBody, timed: Sequence[Timed]) -> Table:
    """The first table for what is timed: boxes that its widths fill, and rows of their own for fewer input channels
    than a tile sums at once, or fewer output channels than it has. Not of what reduces channels."""
    found: list[TableRow] = []
    rows = first_table(body, [one.width for one in timed if one.width])
    taken = [next(row for row in rows if _admits(row, one)) for one in timed]
    for row in rows:
        own = [_narrowed(body, row, one) for one, its in zip(timed, taken, strict=True) if its is row]
        found += sorted({row.upto: row for row in own}.values(), key=_limits)
        found += [row] if row not in own else []
    return tuple(found)


def _admits(row: TableRow, timed: Timed) -> bool:
    sizes = {"C": timed.channels, "N": timed.columns, "M": timed.pixels, "itemsize": timed.itemsize}
    return all(sizes[name] <= limit for name, limit in row.upto)


def _narrowed(body: ConvolutionBody, row: TableRow, timed: Timed) -> TableRow:
    """Whose tiles have no more channels than there are."""
    schedule, upto = row.schedule, dict(row.upto)
    if schedule.variant not in BY_BOXES:
        return row
    in_parts = timed.itemsize == 4 and are_parted(body, timed.channels, timed.columns)
    parts = 4 if in_parts else 1  # three, and their padding
    blocks = [("BLOCK_N", "N", timed.columns, 1)]
    if schedule.variant == BOXES:  # strips sum taps and channels together
        blocks.insert(0, ("BLOCK_K", "C", timed.channels, parts))
    for block, name, size, each in blocks:
        enough = _enough(size * each, LEAST_DEPTH if name == "C" else LEAST_COLUMNS)
        if enough < schedule.int(block):
            schedule = schedule.replace(**{block: enough})
            upto[name] = min(enough // each, upto.get(name, enough))
    if body.rank == 3 and phases_of(body) and _is_narrow(schedule, timed):
        sides = {f"BLOCK_{side}": _NARROW_PHASES.int(f"BLOCK_{side}") for side in "MDHW"}
        schedule = schedule.replace(num_warps=4, **sides)
    return table_row(schedule, **upto)


def _is_narrow(schedule: Schedule, timed: Timed) -> bool:
    """Whether `_NARROW_PHASES` were measured for what a schedule serves, and its boxes are filled."""
    width = _NARROW_PHASES.int("BLOCK_W")
    fills = timed.width is not None and -(-timed.width // width) * width < 1.1 * timed.width
    return timed.itemsize == 4 and schedule.variant == BOXES and schedule.int("BLOCK_N") <= LEAST_COLUMNS and fills


def _enough(size: int, least: int) -> int:
    return max(1 << (size - 1).bit_length(), least)


def _channels(body: ConvolutionBody) -> int | None:
    """The input channels of a group, where they are a number."""
    return _known(body, body.run("channels").axes) if _has_channels(body) else 1


def _known(body: ConvolutionBody, axes: Sequence[int]) -> int | None:
    """The product of sizes that are numbers, or None."""
    sizes = [body.lowered.space.axes[a] for a in axes]
    return prod(size for size in sizes if isinstance(size, int)) if _are_numbers(sizes) else None


def _limits(row: TableRow) -> tuple[float, ...]:
    return tuple(dict(row.upto).get(name, inf) for name in ("itemsize", "C", "N"))


def _box(body: ConvolutionBody, widths: Sequence[int], *, narrow: bool = False) -> Schedule:
    """The box that is fastest for results of such widths, counting pixels beyond their edges. `narrow`: of at most 64
    output channels."""
    costs, found = _COSTS[body.rank], _narrow_boxes(body) if narrow else _boxes(body)
    if narrow and body.rank == 2:
        costs = _PHASE_COSTS

    def cost(width: int) -> float:
        return costs[width] * (sum(-(-w // width) * width / w for w in widths) if widths else 1)

    return found[min(found, key=cost)]


def _boxes(body: ConvolutionBody) -> dict[int, Schedule]:
    """Boxes by their width, of those that hold whole windows of a pool."""
    if body.rank == 1:
        found = {w: _BOXES.replace(BLOCK_H=1, BLOCK_W=w) for w in _COSTS[1]}
    elif body.rank == 2:
        found = {w: _BOXES.replace(BLOCK_H=min(256 // w, 16), BLOCK_W=w) for w in (64, 32, 16)}
        found[8] = _BOXES.replace(BLOCK_H=8, BLOCK_W=8)
    else:
        found = {w: _BOXES.replace(BLOCK_D=2, BLOCK_H=128 // w, BLOCK_W=w) for w in (32, 16)}
        found[8] = _BOXES.replace(BLOCK_M=128, BLOCK_D=2, BLOCK_H=8, BLOCK_W=8)
    deep = {width: _with_depth(body, box) for width, box in found.items()}
    return {w: box for w, box in deep.items() if room(body, 0)(box) is None} or deep


def _narrow_boxes(body: ConvolutionBody) -> dict[int, Schedule]:
    """Boxes of their own for at most 64 output channels, by their width; none where they are the same."""
    if body.rank == 2:
        return _PHASES if phases_of(body) else {}
    if body.rank == 1 or body.pool:
        return {}
    if phases_of(body):
        return _SPACES_OF_PHASES
    return {} if body.windows.transposed else _boxes(body) | _SPACES


def may_pool(body: ConvolutionBody) -> bool:
    """Whether windows are whole in boxes, and anything but torch's call is known to be fast."""
    table = [row.schedule for row in first_table(body)]
    return (
        max(body.pool) <= POOLED
        and any(s.variant != LIBRARY for s in table)
        and all(room(body, 0)(s) is None for s in table)
    )


def _with_depth(body: ConvolutionBody, schedule: Schedule) -> Schedule:
    """A schedule whose boxes are as deep as the windows of a pool."""
    if schedule.variant != BOXES or not body.pool or body.rank < 3:
        return schedule
    deep = schedule.replace(BLOCK_D=max(schedule.int("BLOCK_D"), body.pool[0]))
    return deep.replace(BLOCK_M=max(deep.int("BLOCK_M"), _pixels(deep)))


def _has_few(body: ConvolutionBody) -> bool | None:
    """Whether there are FEW_CHANNELS; None: their number is not known."""
    channels = _channels(body)
    return None if channels is None else channels <= FEW_CHANNELS


def _whole_channels(body: ConvolutionBody) -> Schedule:
    """Boxes with all output channels, which are reduced in registers. Compiled and not measured."""
    rows = 128 if body.width <= 128 else 64
    depth = 2 if body.rank == 3 else 1
    return _BOXES.replace(BLOCK_M=rows, BLOCK_N=body.width, BLOCK_D=depth, BLOCK_H=rows // (8 * depth))


def _gathered_channels(body: ConvolutionBody) -> Schedule:
    width = body.width
    return _GATHER.replace(BLOCK_N=width, BLOCK_M=64, num_warps=8, BLOCK_K=32 if width > 128 else 64, num_stages=2)


def multiplies_as_torch(body: ConvolutionBody, channels: int, columns: int) -> Refusal:
    """Why a schedule multiplies float32 as TF32 where torch's call does not though it may, of so many input and output
    channels. H200, cuDNN 9, windows of 3 a side, 16 and 64 output channels: errors of up to 6e-7 of the largest result
    in float32 and from 3e-4 on in TF32. In two dimensions up to 8 channels are multiplied in float32 as they lie, up to
    4 also turned; in three dimensions 3, and up to 8 by 64, none turned; transposed ones mostly in TF32.
    """
    exact = not body.windows.transposed and are_parted(body, channels, columns)
    turned = _LIBRARY.replace(channels_last=True) if body.rank == 3 or channels > 4 else None

    def refusal(schedule: Schedule) -> str | None:
        if exact and (schedule == turned or schedule.variant == FOLDED):
            return f"TF32 of {channels} input channels, which torch's call multiplies in float32"
        return None

    return refusal


def has_bias(body: ConvolutionBody) -> bool:
    """Whether torch's call adds a bias that is wanted, which takes it another pass over the result."""
    return "{2}" in body.call and any(stored.value != body.dot for stored in body.lowered.outputs)


def may_turn(body: ConvolutionBody) -> bool:
    """Whether torch's call may be given a turned input: in one dimension of space there is no such memory format."""
    return body.rank > 1


def _has_channels(body: ConvolutionBody) -> bool:
    return any(run.index == "channels" for run in body.extent("k").runs)


def _are_numbers(sizes: Sequence[Size]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def starts(body: ConvolutionBody) -> tuple[Schedule, ...]:
    """One for every way to feed the matrix units, the most likely first."""
    if reduces(body):
        rows = (row.schedule for row in first_table(body))
        return tuple(dict.fromkeys([*rows, _gathered_channels(body), _LIBRARY]))
    found: dict[str, tuple[Schedule, ...]] = {LIBRARY: (_LIBRARY,)}
    if may_turn(body):
        found[LIBRARY] = (_LIBRARY, _LIBRARY.replace(channels_last=True))
    if boxable(body):
        box = _box(body, ())
        narrow = box.replace(BLOCK_N=64)
        depths = (narrow.replace(BLOCK_K=16), box.replace(BLOCK_K=64), narrow.replace(BLOCK_K=64))
        smaller = box.replace(BLOCK_M=max(box.int("BLOCK_M") // 2, _pixels(box)), swap=False)
        found[BOXES] = (box, narrow, *depths, *_boxes(body).values(), smaller)
    if has_strips(body):
        strip = _STRIPS.replace(**dict(_box(body, ()).values))
        found[STRIPS] = (strip, strip.replace(BLOCK_N=64), strip.replace(BLOCK_N=64, BLOCK_K=64))
    found[FOLDED] = (_FOLDED, *([_POINTS] if prod(body.window) == 1 else []))
    every_one = (s for v in variants(body) for s in found.get(v, (_DEFAULTS[v],)))
    return tuple(s for s in dict.fromkeys(every_one) if room(body, 0)(s) is None)


def _pixels(box: Schedule) -> int:
    return prod(box.int(f"BLOCK_{d}") for d in _SIDES)


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(name), legal, kernels) for name, default in _DEFAULTS.items()
    )
