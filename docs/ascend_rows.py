"""Makes the second table of docs/ascend.md: the longest row that is held whole, ours and the compiler's own.

    python docs/ascend_rows.py [--target ascend910b3] [--only NAME ...]

Needs the compiler (`kernelgen doctor --setup ascend`). Rows of 64, 128 ... 131072 elements are launched in every dtype:
what the wrapper chooses must be planned without overflow. The compiler's own longest row is that of the same kernel
where every row is held. Ends with 1 where something overflows, or where a row is walked that would take at most 90% of
the buffer. --only prints the lines of some operators and leaves the page alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelgen import families, frontend, generation, render
from kernelgen.ascend import launches
from kernelgen.ascend.lowering import Lowered
from kernelgen.devices import Device, find
from kernelgen.plan import Plan, TableRow
from kernelgen.spec import load_spec, shipped_specs
from kernelgen.spec.model import OperatorSpec
from kernelgen.worker import load

PAGE = Path(__file__).parent / "ascend.md"
BEGIN, END = "<!-- rows -->", "<!-- end of rows -->"
OPERATORS = (
    "add_rms_norm", "argmax", "cosine_similarity", "cross_entropy", "cross_entropy_rows", "cummax", "cumsum",
    "cumsum_exclusive", "kl_div", "l2_normalize", "layer_norm", "log_softmax", "logsumexp", "masked_cumsum",
    "quantize_int8_rows", "reverse_cumsum", "rms_norm", "row_any", "row_sum", "row_var", "silu_mul_int8_rows",
    "softmax", "triplet_margin_loss",
)  # fmt: skip
"""Those that reduce or scan rows of one dimension."""
LENGTHS = tuple(1 << n for n in range(6, 18))
OTHERS = 16
"""Every other size: rows enough for a tile of several."""
ENOUGH = 0.9
"""The share of the buffer up to which a row must be held."""
HEADER = """\
| operator | dtypes | held whole up to | UB | planned whole up to | UB |
|---|---|---:|---:|---:|---:|"""


@dataclass(frozen=True)
class Longest:
    """One operator in one dtype."""

    held: int
    held_bytes: int
    planned: int
    planned_bytes: int
    overflows: tuple[int, ...]
    """The lengths for which what the wrapper chooses does not fit; there should be none."""

    def short(self, buffer_bytes: int) -> bool:
        """Whether a row is walked that the buffer holds easily."""
        return self.held < self.planned and self.planned_bytes <= ENOUGH * buffer_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="ascend910b3")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    device = find("npu", options.target)
    rows, wrong = [], []
    for path in shipped_specs():
        if path.stem not in (options.only or OPERATORS):
            continue
        found = dict(examined(load_spec(path), device))
        made = list(lines(path.stem, found, device.npu.ub_bytes))
        print("\n".join(made), flush=True)
        rows += made
        bad = {d: one for d, one in found.items() if one.overflows or one.short(device.npu.ub_bytes)}
        wrong += [f"{path.stem} {dtype}: {one}" for dtype, one in bad.items()]
    print("\n".join(wrong), file=sys.stderr)
    if not options.only:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        table = "\n".join([BEGIN, HEADER, *rows, END])
        PAGE.write_text(head + table + rest.partition(END)[2], encoding="utf-8")
    return 1 if wrong else 0


def examined(spec: OperatorSpec, device: Device) -> Iterator[tuple[str, Longest]]:
    """Every dtype of an operator with what was found."""
    chip = generation.chip_of(device)
    assert chip is not None
    graph, notes = frontend.trace(spec)
    plan = families.retarget(families.lower(spec, graph, notes), chip)
    whole = plan.with_table((TableRow(None, families.module(plan).default("row")),))
    space = plan.body.lowered.space
    (row,) = (space.axes[axis] for axis in sorted(plan.body.columns()))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in dict(spec.dtypes)["T"]:
            ours = {n: lowered(spec, plan, Path(folder), device, dtype, row, n) for n in LENGTHS}
            every = {}
            for length in LENGTHS:
                every[length] = lowered(spec, whole, Path(folder), device, dtype, row, length)[1]
                if not every[length].planned:
                    break
            held = max(n for n, (kernel, _) in ours.items() if "looped" not in kernel)
            planned = max(n for n, one in every.items() if one.planned)
            overflows = tuple(n for n, (_, one) in ours.items() if not one.planned)
            yield dtype, Longest(held, ours[held][1].ub_bytes, planned, every[planned].ub_bytes, overflows)


def lowered(
    spec: OperatorSpec, plan: Plan, folder: Path, device: Device, dtype: str, row: object, length: int
) -> tuple[str, Lowered]:
    """The kernel that a wrapper launches first for rows of one length, and what the compiler says of it."""
    path = folder / f"{spec.name}_{len(plan.table)}.py"
    if not path.is_file():
        path.write_text(render.triton_source(plan), encoding="utf-8")
    sizes = {row: length}
    inputs = [
        [
            [size if isinstance(size, int) else sizes.get(size, OTHERS) for size in tensor.shape],
            dtype if tensor.dtype in dict(spec.dtypes) else tensor.dtype,
        ]
        for tensor in spec.inputs
    ]
    launch = launches.recorded(load.candidate(str(path), spec.name), inputs, device.npu.compiler_target)[0]
    return launch.kernel, launch.lowered()


def lines(name: str, found: dict[str, Longest], buffer_bytes: int) -> Iterator[str]:
    """The operator's lines of the table, one for all dtypes of which the same is true."""
    shown: dict[str, list[str]] = {}
    for dtype, one in found.items():
        held, planned = (f"{used / buffer_bytes:.0%}" for used in (one.held_bytes, one.planned_bytes))
        shown.setdefault(f"{one.held} | {held} | {one.planned} | {planned} |", []).append(dtype)
    for figures, dtypes in shown.items():
        yield f"| {name} | {', '.join(dtypes)} | {figures}"


if __name__ == "__main__":
    sys.exit(main())
