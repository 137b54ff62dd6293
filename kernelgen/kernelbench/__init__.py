"""KernelBench's problems one by one, unattended: imported, generated, judged; a record of each in a journal."""

from __future__ import annotations

import hashlib
import math
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelgen.devices.cpu import cores
from kernelgen.errors import UsageError
from kernelgen.files import write_atomic
from kernelgen.journal import Journal
from kernelgen.kernelbench.asked import DTYPES as DTYPES
from kernelgen.kernelbench.asked import VARIABLES
from kernelgen.kernelbench.asked import Asked as Asked
from kernelgen.kernelbench.turns import Turns, said

KIND = "problem"
OPPONENTS = ("eager", "compile")
FAST = (0.0, 1.0, 1.5, 2.0)
"""The p of fast_p."""
MOST_CORES = 8
"""At most so many cores share the judging of one problem's small shapes: each fork has a context on the GPU."""
STATES = ("right", "wrong", "refused", "untested", "timed out", "fault")
"""What `state` says of a problem."""

Outcome = dict[str, Any]
"""A problem's record: which stages it passed, why it was refused, and its figures."""


def problems(folder: Path, level: int, only: Sequence[str] = ()) -> list[Path]:
    """The files of a level, by number. UsageError where there are none."""
    places = [folder / f"level{level}", folder / "KernelBench" / f"level{level}", folder]
    place = next((p for p in places if p.is_dir() and any(p.glob("*.py"))), None)
    if place is None:
        raise UsageError(f"{folder}: no problem files here, in level{level}/ or in KernelBench/level{level}/")
    files = sorted(place.glob("*.py"), key=_number)
    chosen = [f for f in files if not only or any(_is_called(f, text) for text in only)]
    if not chosen:
        raise UsageError(f"{place}: no problem is called {' or '.join(only)}")
    return chosen


def _is_called(path: Path, text: str) -> bool:
    """Digits are a number: 2 is not also problem 12, nor every Conv2d."""
    return text == str(_number(path)[0]) if text.isdigit() else text in path.stem


def _number(path: Path) -> tuple[int, str]:
    found = re.match(r"\d+", path.name)
    return (int(found[0]) if found else sys.maxsize, path.name)


def run(
    files: Sequence[Path],
    out: Path,
    limit_s: float,
    device: str,
    say: Callable[[Outcome], None],
    asked: Asked,
    again: bool = False,
    jobs: int = 1,
    each: Sequence[Mapping[str, str]] = ({},),
) -> list[Outcome]:
    """Every problem that the journal in `out` does not have yet, each within its time; all outcomes in order.

    `jobs`: so many problems are at work at once, each with its share of the cores: all but one of a device's are
    imported, generated and judged at small shapes while that one has its turn there. `each`: for every device, the
    variables that show it alone to a process. A round of optimisation may take as long again as `limit_s`. The
    limit is multiplied by N where N problems share a device: what would disturb times waits for whoever takes them. A
    record belongs to the file's text, the device and what is asked: a problem that changed is run again.

    As with all of multiprocessing's processes, a script that calls this does so under `if __name__ == "__main__":`.
    """
    ledger, turns = Ledger(files, out, device, again, asked), _turns(each)
    jobs = max(1, min(jobs, len(ledger.todo)))
    each_has = min(MOST_CORES, max(1, cores() // jobs))
    limit_s *= math.ceil(jobs / len(each))
    with ThreadPoolExecutor(jobs) as pool:
        try:
            running = {pool.submit(_one, f, out, limit_s, turns, asked, each_has): f for f in ledger.todo}
            for done in as_completed(running):
                say(ledger.add(running[done], done.result()))
        finally:
            turns.end()
            pool.shutdown(wait=False, cancel_futures=True)
    return ledger.outcomes()


def _turns(each: Sequence[Mapping[str, str]]) -> Turns:
    return Turns([{**VARIABLES, **variables} for variables in each], "kernelgen.kernelbench.prepared")


class Ledger:
    """What the journal in a folder has of problems on a device, and what is still to be run."""

    def __init__(self, files: Sequence[Path], out: Path, device: str, again: bool, asked: Asked) -> None:
        self._journal = Journal.open(out)
        self._known = {} if again else {_key(r.data): r.data for r in self._journal.records(KIND)}
        said = {"device": device, **asked.entry()}
        self._entries: dict[Path, Outcome] = {
            f: {"problem": f.stem, "sha256": hashlib.sha256(f.read_bytes()).hexdigest(), **said} for f in files
        }
        self.todo = [f for f, entry in self._entries.items() if _key(entry) not in self._known]

    def add(self, file: Path, found: Outcome) -> Outcome:
        """Record what a problem came to."""
        outcome = self._entries[file] | found
        outcome["state"] = state(outcome)
        self._journal.append(KIND, outcome)
        self._known[_key(outcome)] = outcome
        return outcome

    def outcomes(self) -> list[Outcome]:
        """Of every problem that has been run, in the order of the files."""
        return [self._known[_key(entry)] for entry in self._entries.values() if _key(entry) in self._known]


def _key(entry: Outcome) -> tuple[str, ...]:
    return tuple(str(entry.get(field)) for field in ("problem", "sha256", "device", "rounds", "precision", "dtypes"))


def _one(file: Path, out: Path, limit_s: float, turns: Turns, asked: Asked, has_cores: int) -> Outcome:
    """One problem in its process; at the limit it is killed, and what it had answered stands."""
    from kernelgen.kernelbench import problem  # whoever only reads outcomes needs nothing of what it imports

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        log = out / "logs" / f"{file.stem}.txt"
        write_atomic(log, "")
        limit_s *= 1 + asked.rounds
        code, seconds = turns.run(problem.main, (file, out, answer, asked, has_cores), answer, limit_s, log)
        found: Outcome = said(answer) or {"stage": "start"}
    found["seconds"] = round(seconds, 2)
    if code is None:
        found |= {"timed_out": True, "reason": f"still at '{found['stage']}' after {limit_s:g} s"}
    elif code != 0:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        found |= {"fault": True, "reason": f"the process ended with {how} at '{found['stage']}'"}
    return found


def state(entry: Outcome) -> str:
    """refused, right, wrong, untested, timed out or fault: one word for a problem. Untested: no case of it ran."""
    if entry.get("fault"):
        return "fault"
    if wrong(entry):
        return "wrong"
    if entry.get("timed_out"):
        return "timed out"
    if not entry.get("generated"):
        return "refused"
    ran = any(entry.get(key, {}).get("passed", 0) for key in ("accuracy", "accuracy_at_its_shapes"))
    return "right" if ran or any(found["right"] for found in entry.get("kernelbench", {}).values()) else "untested"


def wrong(entry: Outcome) -> bool:
    """Some case failed, under our bound, or under KernelBench's tolerance where the original is more precise."""
    ours = [entry.get(key, {}).get("failed", 0) for key in ("accuracy", "accuracy_at_its_shapes")]
    return any(ours) or any(not found.get("as_precise") for found in differing(entry).values())


def differing(entry: Outcome) -> dict[str, dict[str, Any]]:
    """By precision, where the result differs from the original's by KernelBench's tolerance, whoever is off."""
    return {name: found for name, found in entry.get("kernelbench", {}).items() if found["right"] is False}


def ratios(entry: Outcome, opponent: str) -> list[dict[str, Any]]:
    """A problem's timed cases against an opponent; `entry` may also be what `optimized` holds of it."""
    return [row["against"][opponent] for row in entry.get("performance", []) if opponent in row["against"]]


def faster(entry: Outcome, opponent: str) -> bool | None:
    """Whether the whole interval is above 1 in every timed case; None where nothing was timed."""
    rows = ratios(entry, opponent)
    return all(row["low"] > 1 for row in rows) if rows else None


def last(entry: Outcome) -> Outcome:
    """What a problem came to after its rounds; where none was kept, or what was kept was not found right, before
    them."""
    found: Outcome = entry.get("optimized", {})
    return entry | found if found.get("performance") and not wrong(found) else entry


def speedup(entry: Outcome, opponent: str) -> float | None:
    """The geometric mean of a right problem's timed cases; None where nothing was timed, or it is not right."""
    found = [float(row["speedup"]) for row in ratios(entry, opponent)]
    return geometric_mean(found) if found and entry["state"] == "right" else None


def fast(outcomes: Sequence[Outcome], opponent: str, at_least: float) -> float:
    """KernelBench's fast_p: the share of all problems that are right and more than so many times as fast; fast_0 is the
    share of those that are right, timed or not. What differs by its tolerance is not right, as KernelBench has it."""
    if not outcomes:
        return 0.0
    right = [o for o in outcomes if o["state"] == "right" and not differing(o)]
    if at_least <= 0:
        return len(right) / len(outcomes)
    return sum((speedup(o, opponent) or 0.0) > at_least for o in right) / len(outcomes)


def mean_speedup(outcomes: Sequence[Outcome], opponent: str) -> float | None:
    """The geometric mean over the problems that are right and timed."""
    found = [s for o in outcomes if (s := speedup(o, opponent)) is not None]
    return geometric_mean(found) if found else None


def refusals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many problems were refused for which reason, the most frequent first: without file, place and figures."""
    found = Counter(
        re.sub(r"\d+", "N", re.sub(r"^\S*:\d+:\d+: ", "", str(o.get("reason", ""))))
        for o in outcomes
        if o["state"] == "refused"
    )
    return dict(found.most_common())


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many problems got how far."""
    counts = {"problems": len(outcomes)}
    counts |= {stage: sum(bool(o.get(stage)) for o in outcomes) for stage in ("imported", "generated")}
    counts |= {name: sum(o["state"] == name for o in outcomes) for name in STATES}
    if differ := sum(bool(differing(o)) for o in outcomes):
        counts["differ by KernelBench's tolerance"] = differ
    counts["timed"] = sum(faster(o, "eager") is not None for o in outcomes)
    counts |= {f"faster than {name}": sum(bool(faster(o, name)) for o in outcomes) for name in OPPONENTS}
    if any("optimized" in o for o in outcomes):
        ended = [last(o) for o in outcomes]
        counts["made faster by rounds"] = sum(o.get("optimized", {}).get("kept", 0) > 0 for o in outcomes)
        counts |= {f"faster than {name} after rounds": sum(bool(faster(o, name)) for o in ended) for name in OPPONENTS}
    return counts


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """fast_p and geometric means of what was timed, before rounds and after them."""
    found: dict[str, float] = {}
    stages = {"": list(outcomes)}
    if any("optimized" in o for o in outcomes):
        stages[" after rounds"] = [last(o) for o in outcomes]
    for when, entries in stages.items():
        for name in OPPONENTS:
            mean = mean_speedup(entries, name)
            if mean is not None:
                found[f"geometric mean over {name}{when}"] = mean
                found |= {f"fast_{p:g} over {name}{when}": fast(entries, name, p) for p in FAST}
    return found
