"""The command lines of NAME_accuracy.py and NAME_performance.py."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import device as devices
from . import inputs, lint, memory, mutants, report
from .accuracy import accuracy_case
from .hidden import hidden_cases, not_tried
from .model import Case, CaseReport, Operator, PerformanceReport
from .performance import NO_GPU, OPPONENTS, make_inputs, performance_case
from .timing import HALF_WIDTH, TIME_CAP_S

_NAMED = 8
"""Cases that a message names."""


def accuracy_main(operator: Operator, cases: Sequence[Case], argv: Sequence[str] | None = None) -> int:
    """Check every case and the hidden ones; 0 if all that ran are right and at least one ran, 2 if no case was meant,
    else 1."""
    options = _accuracy_parser(operator).parse_args(argv)
    device = devices.find()
    say = _printer(options.json)
    chosen = [*cases]
    if options.hidden:
        chosen += hidden_cases(operator, cases, device, large=True if options.large else None)
    every, chosen = chosen, _select(chosen, options)
    if not chosen:
        return _no_case(every, options)
    say(f"Testing {operator.name} accuracy on {devices.describe()}")
    width = max(len(c.label) for c in chosen)
    seed = inputs.secret_seed() if options.seed is None else options.seed
    reports: list[CaseReport] = []
    begin = time.perf_counter()
    for case in chosen:
        found = accuracy_case(operator, case, device=device, seed=seed, seeds=options.seeds, verbose=options.verbose)
        reports.append(found)
        say(report.accuracy_line(found, width))
        for line in report.accuracy_details(found) if options.verbose else ():
            say(line)
        if found.fatal:
            say("The device is lost after this fault; the remaining cases were not run.")
            break
    failed = sum(not r.passed for r in reports)
    ran = sum(bool(r.trials) for r in reports)
    left_out = sum(bool(r.left_out) for r in reports)
    say(_verdict(len(reports) - failed - left_out, failed, left_out, len(chosen) - len(reports)))
    if not failed and not ran:
        say(f"Nothing was tested: {_first_reason(reports)}")
    remarks = not_tried(operator, cases, device) if options.hidden and not options.large else []
    remarks += [*mutants.complaints(reports), *lint.reference_lint(operator, cases, device, seed)]
    for remark in remarks:
        say(remark)
    say(f"seed {seed}: --seed {seed} repeats these inputs   {time.perf_counter() - begin:.1f} s")
    code = 1 if failed or not ran or len(reports) < len(chosen) else 0
    if options.json:
        data = {"operator": operator.name, "device": devices.describe(), "seed": seed, "exit_code": code}
        _print_json(data | {"remarks": remarks, "cases": reports})
    return code


def _verdict(passed: int, failed: int, left_out: int, not_run: int) -> str:
    parts = [f"{passed} passed", f"{failed} failed"]
    parts += [f"{left_out} left out"] if left_out else []
    parts += [f"{not_run} not run"] if not_run else []
    return ", ".join(parts)


def _first_reason(reports: Sequence[CaseReport]) -> str:
    """Why the first case did not run, which is why most others did not."""
    return next((f"{r.case.label}: {r.left_out or r.message}" for r in reports if r.left_out or r.message), "no trial")


def performance_main(operator: Operator, cases: Sequence[Case], argv: Sequence[str] | None = None) -> int:
    """Time every case; 1 if a kernel is wrong or slower than --min-speedup, 2 if no case was meant, 3 without a GPU
    where a speedup or a GPU was asked for."""
    options = _performance_parser(operator).parse_args(argv)
    chosen = _select(cases, options)
    if not chosen:
        return _no_case(cases, options)
    say = _printer(options.json)
    say(f"Testing {operator.name} performance on {devices.describe()}")
    asked = options.require_gpu or options.min_speedup is not None
    if devices.is_simulated():
        return _simulated(operator, chosen, options.json, say, code=3 if asked else 0)
    if not devices.timed():
        say(NO_GPU)
        code = 3 if asked else 0
        if options.json:
            _print_json(
                {"operator": operator.name, "measured": False, "reason": NO_GPU, "exit_code": code, "cases": []}
            )
        return code
    copy, fill = devices.bandwidths()
    say(
        f"floor: bytes over this device's own copy ({copy / 1e12:.2f} TB/s) and fill ({fill / 1e12:.2f} TB/s) bandwidth"
    )
    width = max(len(c.label) for c in chosen)
    reports: list[PerformanceReport] = []
    for case in chosen:
        found = performance_case(
            operator,
            case,
            options.against,
            seed=options.seed,
            time_cap_s=options.time_cap,
            half_width=options.half_width,
        )
        reports.append(found)
        for line in report.performance_lines(found, width):
            say(line)
        for line in report.performance_details(found) if options.verbose else ():
            say(line)
    means = report.means(reports)
    for name, mean in means.items():
        say(report.mean_line(name, mean, sum(name in r.comparisons for r in reports)))
    wanted = options.min_speedup
    slow = [] if wanted is None else [r.case.label for r in reports if _slower_than(r, wanted)]
    for label in slow:
        say(f"✗ {label}  below the speedup of {wanted}x that was asked for")
    code = 1 if slow or not means or any(r.message for r in reports) else 0
    if options.json:
        data: dict[str, Any] = {"operator": operator.name, "measured": bool(means), "device": devices.describe()}
        data |= {"copy_bytes_per_s": copy, "fill_bytes_per_s": fill, "exit_code": code}
        geometric = {n: {"estimate": m.ratio, "low": m.interval[0], "high": m.interval[1]} for n, m in means.items()}
        _print_json(data | {"geometric_means": geometric, "cases": reports})
    return code


def _simulated(operator: Operator, cases: Sequence[Case], as_json: bool, say: Any, code: int) -> int:
    """Simulated times, which are this CPU's: neither measured nor compared with anything."""
    from .simulated import time_us

    said = []
    for case in cases:
        if left_out := memory.accuracy_left_out(operator, case, "cpu", memory.INTERPRETER_ELEMENTS):
            say(f"- {case.label}  {left_out}")
            continue
        arguments = make_inputs(operator, case, device="cpu")()
        taken = time_us(operator.at(case).kernel, arguments)
        said.append({"case": case.label, "simulated_us": taken})
        say(f"- {case.label}  simulated {taken:.0f} µs: a stand-in on this CPU, the speed of no NPU")
    if not said:
        say("Nothing was run: every case was left out.")
        code = code or 1
    if as_json:
        _print_json({"operator": operator.name, "measured": False, "simulated": True, "exit_code": code, "cases": said})
    return code


def _slower_than(found: PerformanceReport, wanted: float) -> bool:
    """The best opponent is what counts: the least speedup over any of them."""
    return any(not c.speedup >= wanted for c in found.comparisons.values())  # NaN reaches nothing


def _accuracy_parser(operator: Operator) -> argparse.ArgumentParser:
    parser = _parser(operator, "accuracy")
    parser.add_argument("--seeds", type=_positive, default=3, help="at least so many trials a case (default 3)")
    parser.add_argument("--no-hidden", dest="hidden", action="store_false", help="only the listed cases")
    parser.add_argument("--large", action="store_true", help="a case beyond 2**31 elements even where memory is tight")
    return parser


def _performance_parser(operator: Operator) -> argparse.ArgumentParser:
    parser = _parser(operator, "performance")
    parser.add_argument("--against", nargs="+", choices=OPPONENTS, default=["eager", "compile"])
    parser.add_argument(
        "--min-speedup", type=_speedup, metavar="X", help="exit with 1 below this, against any opponent"
    )
    parser.add_argument("--require-gpu", action="store_true", help="exit with 3 without a GPU, as --min-speedup does")
    parser.add_argument("--time-cap", type=float, default=TIME_CAP_S, metavar="S", help="seconds a comparison may take")
    parser.add_argument(
        "--half-width", type=float, default=HALF_WIDTH, help="of the interval, aimed at (default 0.005)"
    )
    return parser


def _parser(operator: Operator, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{operator.name}_{what}.py", description=f"{what} of {operator.name}")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")
    parser.add_argument("--verbose", action="store_true", help="every trial, or how each time was measured")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="cases whose label contains TEXT")
    parser.add_argument("--skip", action="append", default=[], metavar="TEXT", help="leave such cases out")
    parser.add_argument("--seed", type=int, help="repeat a run; without it the inputs are secret")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _speedup(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def _select(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    def named(case: Case, texts: Sequence[str]) -> bool:
        # from the start of a word: "float16" must not choose bfloat16
        return any(re.search(rf"(?<!\w){re.escape(text)}", case.label) for text in texts)

    return [c for c in cases if (not options.only or named(c, options.only)) and not named(c, options.skip)]


def _no_case(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """That --only and --skip leave nothing is a mistake in them, and no test that passed."""
    texts = [f"--only {text}" for text in options.only] + [f"--skip {text}" for text in options.skip]
    labels = "; ".join(case.label for case in cases[:_NAMED])
    others = f"; and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    print(f"error: {' '.join(texts)}: no case is left; the cases are {labels}{others}", file=sys.stderr)
    return 2


def _printer(as_json: bool) -> Any:
    stream = sys.stderr if as_json else sys.stdout
    return lambda line: print(line, file=stream, flush=True)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(report.to_json(data), ensure_ascii=False))
