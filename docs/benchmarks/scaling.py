"""A simulation of 10,000 operators over 8 to 512 GPUs: `python docs/benchmarks/scaling.py [--write]`.

Discrete events: workers compile and measure, and send records to one collecting machine, which writes them one after
the other. Nothing of this ran on so many GPUs. What its figures come from is in `scaling.json`, which --write makes
again: what the collecting machine takes is measured on the machine where this is run, with the functions that collect;
how long PyTorch is compared with is drawn from `h200.json`; the rest is assumed and says so. --write also puts the
tables into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import random
import statistics
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kernelgen.files import write_atomic
from kernelgen.fleet import work
from kernelgen.fleet.files import Collector, gather
from kernelgen.fleet.model import Job, Shipment, Tree
from kernelgen.journal import Journal

HERE = Path(__file__).parent
DATA, PAGE = HERE / "scaling.json", HERE.parent / "scaling.md"
BEGIN, END = "<!-- simulated by docs/benchmarks/scaling.py -->", "<!-- end -->"
SLOWER = 10
"""A shared or a network disk; the same machine took as long while others used its disk."""
OPERATORS, SIZES, SEED = 10_000, (8, 32, 64, 128, 256, 512), 7


@dataclass(frozen=True)
class Assumed:
    """What no committed measurement says."""

    rounds: int = 5
    candidates: int = 24
    """A round."""
    compile_core_s: float = 0.8
    """Of a candidate; the order of a product of matrices on one core."""
    cores_per_gpu: int = 16
    measure_s: float = 0.5
    """Of a candidate, raced against the current kernel."""
    start_s: float = 8.0
    """Of a command, until torch is imported and the workers are there."""
    record_bytes: int = 4096
    """Of a candidate's record."""
    network_bytes_per_s: float = 1.25e9
    """Into the collecting machine: 10 Gbit/s."""
    object_store_bytes: float = 2e9
    """Of the node that collects, for what was sent and not yet written."""


@dataclass(frozen=True)
class Measured:
    """Seconds of the collecting machine: lower quartiles, since others used the machine as well."""

    machine: str
    begin_s: float
    """An operator's lock, its files read."""
    shipment_s: float
    """One shipment: checked, a journal extended, a candidate stored, all of it on the disk."""
    candidate_s: float
    """Each more record and candidate of a shipment."""
    end_s: float
    """The last shipment: a kernel, a log and a manifest."""
    compare_s: tuple[float, ...]
    """Of every operator of h200.json: all its cases against eager and torch.compile."""
    source_bytes: int
    """The median kernel of operators/."""


def measured(assumed: Assumed) -> Measured:
    rows = json.loads((HERE / "h200.json").read_text())["rows"]
    compared: dict[str, float] = {}
    for row in rows:
        seconds = sum(one["seconds"] for one in row["comparisons"].values())
        compared[row["operator"]] = compared.get(row["operator"], 0.0) + seconds
    sources = [path.stat().st_size for path in (HERE.parent.parent / "operators").rglob("*_triton.py")]
    size = int(statistics.median(sources))
    one, many, begin, end = (_collecting(what, assumed, size) for what in ("one", "many", "begin", "end"))
    return Measured(
        f"{platform.machine()}, {platform.system()} {platform.release()}", begin, one, (many - one) / 9, end,
        tuple(round(seconds, 3) for seconds in compared.values()), size,
    )  # fmt: skip


def _collecting(what: str, assumed: Assumed, size: int, times: int = 100) -> float:
    """The seconds of a step, done with the functions that collect, in a folder of this disk."""
    taken = []
    with tempfile.TemporaryDirectory(dir=HERE) as name:
        root = Path(name)
        trees = (Tree("operators/op", root / "operators/op"), Tree("logs/op", root / "logs/op"))
        job = Job("op", (), inputs=trees, outputs=trees, logs=root / "logs/op")
        other = Journal.open(root / "other")
        other.append("run", {"key": "k"})
        for kind in ("triton", "baseline", "accuracy", "performance"):
            write_atomic(root / f"operators/op/op_{kind}.py", "x" * size)
        at, path = 0, root / "other" / "journal.jsonl"
        collector = Collector(job, Path())
        for number in range(times):
            count = {"one": 1, "many": 10}.get(what, 0)
            for _ in range(count):
                other.append("candidate", {"text": "x" * assumed.record_bytes})
            content = path.read_bytes()
            files = [(f"logs/op/run/candidates/{number}_{n}.py", b"x" * size) for n in range(count)]
            if what == "end":
                files = [
                    (f"operators/op/{n}", b"x" * size + str(number).encode()) for n in ("k.py", "log.md", "g.json")
                ]
            lines = (("logs/op/run/journal.jsonl", at, content[at:]),) if len(content) > at else ()
            at = len(content)
            began = time.perf_counter()
            if what == "begin":
                collector.close()
                collector = Collector(job, Path())
                gather(job, Path())
            else:
                collector.write(Shipment(tuple(files), lines))
            taken.append(time.perf_counter() - began)
        collector.close()
        other.close()
    return statistics.quantiles(taken, n=4)[0]


@dataclass(frozen=True)
class Result:
    gpus: int
    hours: float
    busy: float
    """The share of the time in which GPUs have an operator."""
    driver: float
    """The share of the time in which the collecting machine writes."""
    late_s: float
    """The longest that something which was sent waited to be written."""
    store_mb: float
    """The most that waited."""
    network: float
    """The share of the network."""


def simulate(gpus: int, assumed: Assumed, known: Measured, send_s: float, operators: int = OPERATORS) -> Result:
    """Workers send; the collecting machine takes one message at a time; a worker waits for its next operator alone."""
    dice = random.Random(SEED)
    round_s = assumed.candidates * (assumed.compile_core_s / assumed.cores_per_gpu + assumed.measure_s)
    shipments = max(1, round(min(assumed.candidates, round_s / send_s)))
    each = assumed.candidates / shipments
    cost = known.shipment_s + (each - 1) * known.candidate_s
    size = each * (assumed.record_bytes + known.source_bytes)
    events: list[tuple[float, int, int, int]] = [(0.0, worker, 0, 0) for worker in range(gpus)]
    free_at = sent = writing = busy = late = 0.0
    waiting: list[tuple[float, float]] = []
    stored = most = 0.0
    begun, last = 0, 0.0
    steps = assumed.rounds * shipments
    per_round: dict[int, float] = {}
    while events:
        now, worker, step, _ = heapq.heappop(events)
        while waiting and waiting[0][0] <= now:
            stored -= heapq.heappop(waiting)[1]
        ends = step == steps + 1
        taken, bytes_in = (known.end_s, 4.0 * known.source_bytes) if ends else (cost, size)
        if step == 0:
            if begun == operators:
                continue
            begun += 1
            per_round[worker] = dice.choice(known.compare_s)
            free_at = max(free_at, now) + known.begin_s
            writing += known.begin_s
            first = free_at + assumed.start_s + per_round[worker]
            busy += first - now
            heapq.heappush(events, (first, worker, 1, 0))
            continue
        free_at = max(free_at, now) + taken
        writing += taken
        late, last = max(late, free_at - now), max(last, free_at)
        sent += bytes_in
        stored += bytes_in
        most = max(most, stored)
        heapq.heappush(waiting, (free_at, bytes_in))
        if ends:  # the next operator is given when the end of this one is written
            heapq.heappush(events, (free_at, worker, 0, 0))
            continue
        # a round's last shipment is followed by the comparison with PyTorch
        spent = round_s / shipments + (per_round[worker] if step % shipments == 0 else 0.0)
        spent = 0.0 if step == steps else spent * dice.uniform(0.8, 1.2)
        busy += spent
        heapq.heappush(events, (now + spent, worker, step + 1, 0))
    return Result(
        gpus, last / 3600, busy / (gpus * last), writing / last, late, most / 1e6,
        sent / last / assumed.network_bytes_per_s,
    )  # fmt: skip


def limit(assumed: Assumed, known: Measured, send_s: float) -> int:
    """GPUs at which the collecting machine writes all the time."""
    few = simulate(8, assumed, known, send_s, 400)
    return int(8 / few.driver)


HEAD = ("GPUs", "hours", "GPUs busy", "collector busy", "written late by", "unwritten", "network")


def table(results: list[Result]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---:|" * len(HEAD)]
    for r in results:
        late = f"{r.late_s:.1f} s | {r.store_mb:.1f} MB"
        lines.append(f"| {r.gpus} | {r.hours:.1f} | {r.busy:.1%} | {r.driver:.0%} | {late} | {r.network:.2%} |")
    return "\n".join(lines)


def page(assumed: Assumed, known: Measured, operators: int) -> str:
    send, often = work.SEND_S, 0.5
    slow = replace(
        known, **{name: SLOWER * seconds for name, seconds in asdict(known).items() if isinstance(seconds, float)}
    )

    def results(figures: Measured) -> str:
        return table([simulate(gpus, assumed, figures, send, operators) for gpus in SIZES])

    ms = {name: f"{1e3 * seconds:.1f} ms" for name, seconds in asdict(known).items() if isinstance(seconds, float)}
    compared = statistics.median(known.compare_s)
    lines = [
        f"{operators:,} operators, {assumed.rounds} rounds of {assumed.candidates} candidates each. As in reality, a "
        f"worker sends its results after every round and every {send:g} s. *Busy* is the share of the whole time; "
        "*written late by* and *unwritten* are maxima over the run.",
        f"- Measured on one machine ({known.machine}) with the real collecting functions, lower quartiles: "
        f"{ms['shipment_s']} to store one record and one candidate, {ms['candidate_s']} for each further candidate, "
        f"{ms['begin_s']} to begin an operator, {ms['end_s']} to end it.",
        "- From `h200.json`: the time to compare an operator with PyTorch, drawn at random for each operator "
        f"(median {compared:.1f} s, maximum {max(known.compare_s):.0f} s).",
        f"- Assumed: a command starts in {assumed.start_s:g} s; a candidate compiles in {assumed.compile_core_s:g} s "
        f"on one of {assumed.cores_per_gpu} cores per GPU and is measured in {assumed.measure_s:g} s; a record has "
        f"{assumed.record_bytes} bytes; nothing fails; the collecting machine receives 10 Gbit/s; Ray itself costs no "
        "time.",
        results(known),
        f"With a disk {SLOWER} times as slow:",
        results(slow),
        "GPUs are idle mainly at the end, when fewer operators than GPUs are left. The limit is the collecting "
        f"machine, which stores one result after the other and waits for its disk: about "
        f"{limit(assumed, known, send):,} GPUs, or {limit(assumed, slow, send):,} with the slower disk. If workers "
        f"sent every {often:g} s it would be {limit(assumed, known, often):,} and {limit(assumed, slow, often):,}. The "
        "network and Ray's object store (by default 30 % of a node's memory) are far from their limits.",
    ]
    return "\n\n".join(line if line.startswith("|") else textwrap.fill(line, 120) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write", action="store_true", help="measure again, and write scaling.json and docs/scaling.md"
    )
    parser.add_argument("--operators", type=int, default=OPERATORS)
    options = parser.parse_args()
    assumed = Assumed()
    if options.write:
        known = measured(assumed)
        write_atomic(DATA, json.dumps({"measured": asdict(known), "assumed": asdict(assumed)}, indent=1) + "\n")
    else:
        known = Measured(**json.loads(DATA.read_text())["measured"])
    text = page(assumed, known, options.operators)
    print(text)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        write_atomic(PAGE, f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
