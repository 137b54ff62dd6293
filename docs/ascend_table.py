"""Makes the table of docs/ascend.md: every shipped operator lowered, planned and run on the CPU for one NPU.

    python docs/ascend_table.py [--target ascend910b3] [--only NAME ...] [--all]

Needs the compiler (`kernelgen doctor --setup ascend`). Each operator is kept in docs/ascend.json as soon as it is done,
with the hash of the file with its kernels and the hash of the compiler's version and of what asks it: an interrupted
run goes on, what has changed is made anew, and what has not is taken over. What judges results is not hashed: after a
change of it, --all makes every row anew. --only looks at some operators alone; rows made by another version of
the compiler, or by asking it in another way, are marked with †.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelgen import generation
from kernelgen.ascend import room_client, venv
from kernelgen.ascend.report import Report
from kernelgen.cli.lowered import Chosen, report_of
from kernelgen.devices import find
from kernelgen.errors import KernelgenError
from kernelgen.spec import load_spec, shipped_specs
from kernelgen.spec.model import Case, OperatorSpec

HERE = Path(__file__).parent
DATA, PAGE = HERE / "ascend.json", HERE / "ascend.md"
ROOM = room_client.ROOM
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="ascend910b3")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--all", action="store_true", help="take no row over")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}
    for path in shipped_specs():
        spec = load_spec(path)
        if options.only and spec.name not in options.only:
            continue
        made = examined(spec, path, options.target, {} if options.all else known.get(spec.name, {}))
        if made is None:
            continue
        known[spec.name] = made
        DATA.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
        print(row(spec.name, known[spec.name]), flush=True)
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    rows = "\n".join(row(name, known[name]) for name in sorted(known))
    PAGE.write_text(f"{head}{BEGIN}\n{HEADER}\n{rows}\n{END}{tail}", encoding="utf-8")


def examined(spec: OperatorSpec, path: Path, target: str, known: dict[str, Any]) -> dict[str, Any] | None:
    """One operator's report in short, or why there is none; None where what is known still holds."""
    judged, planned = choice(spec)
    with tempfile.TemporaryDirectory() as folder:
        try:
            device = find("npu", target)
            made = generation.new(spec, Path(folder), chip=generation.chip_of(device)).folder / f"{spec.name}_triton.py"
            source = digest(made)
            if known.get("source") == source and known.get("asked") == asked():
                return None
            report = report_of(str(path), device, Chosen(planned=planned, judged=judged), root=Path(folder))
        except KernelgenError as error:
            return {"refused": str(error).splitlines()[0].replace(f"{path.parent.parent}/", "")}
    return {"source": source, "asked": asked(), **shortened(report)}


def asked() -> str:
    """What tells two ways of asking apart: the compiler's version, the script that asks it and what runs its answer."""
    return digest(venv.folder() / "ready", ROOM, ROOM.with_name("runtime.c"), ROOM.with_name("launches.py"))


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def choice(spec: OperatorSpec) -> tuple[frozenset[str], frozenset[str]]:
    """The cases to judge (three shapes, in all dtypes) and those to plan (all of accuracy, the largest measured)."""
    by_size: dict[int, list[Case]] = {}
    for case in spec.accuracy:
        size = sum(math.prod(case.shape(t.shape)) for t in (*spec.inputs, *spec.outputs))
        by_size.setdefault(size, []).append(case)
    sizes = sorted(by_size)
    chosen = {sizes[len(sizes) // 4], sizes[len(sizes) // 2], sizes[-1]}
    judged = frozenset(case.label for size in chosen for case in by_size[size])
    return judged, frozenset(c.label for c in (*spec.accuracy, *spec.performance))


def shortened(report: Report) -> dict[str, Any]:
    """What the table and its readers need."""
    return {
        "kernels": len(report.kernels),
        "ub": max((k.ub_bytes for k in report.kernels), default=0),
        "ub_of": report.facts.ub_bytes,
        "one_buffer": sum(not k.overlapped and not k.refused for k in report.kernels),
        "refused_kernels": [f"{k.name}: {k.refused}" for k in report.kernels if k.refused],
        "faults": [asdict(f) for f in report.faults],
        "accuracy": [asdict(a) for a in report.accuracy],
        "left_out": report.left_out,
        "verdict": report.verdict() if report.accuracy else "",
        "good": report.good,
    }


HEADER = """\
| operator | kernels | UB at most | overflow | element by element | right on the CPU |
|---|---:|---:|---|---|---|"""


def row(name: str, data: dict[str, Any]) -> str:
    """One line of the table; † where the compiler was asked in another way than today."""
    if "refused" in data:
        return f"| {name} | – | – | – | – | refused: {data['refused']} |"
    name += "" if data.get("asked") == asked() else " †"
    severe = sorted({f["kind"] for f in data["faults"] if f["severe"]}) + data["refused_kernels"][:1]
    slow = sum(f["kind"] in ("scalar fallback", "int64") for f in data["faults"])
    share = f"{data['ub'] / data['ub_of']:.0%}"
    verdict = data["verdict"].removeprefix("accuracy: ") or "no case that a CPU takes"
    wrong = [f"{a['case']}: {a['message']}" for a in data["accuracy"] if not a["passed"]]
    wrong += [f"{label}: {why}" for label, why in data["left_out"][:1]]
    shown = verdict + (f"; {wrong[0]}" if wrong else "")
    return f"| {name} | {data['kernels']} | {share} | {', '.join(severe) or 'none'} | {slow or '–'} | {shown} |"


if __name__ == "__main__":
    main()
