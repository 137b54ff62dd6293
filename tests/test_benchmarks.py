"""The pages of docs/benchmarks, from small examples, and what runs of docs/benchmarks/peers.py do on a machine without a GPU."""

import gzip
import importlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelgen import generation, judge
from kernelgen.evaluate import Candidate
from kernelgen.knowledge import shipped
from kernelgen.optimization.bench import families_compiler
from kernelgen.outcomes import CaseTiming, Evaluation, Interval, Status
from kernelgen.spec import find_spec, load_spec
from kernelgen.spec.model import Case
from kernelgen.strategies.short import restriction
from kernelgen.strategies.space import axes_of, space_of

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
HEAD = {"device": "a GPU", "torch": "2", "triton": "3", "python": "3.12", "date": "2026-11-22", "command": "c"}


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Quartets that other tests have imported go by the same names."""

    def quartets() -> list[str]:
        return [name for name in sys.modules if name.endswith(("_performance", "_baseline", "_triton"))]

    others = {name: sys.modules.pop(name) for name in quartets()}
    yield
    for name in quartets():
        del sys.modules[name]
    sys.modules.update(others)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("peers")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("small")


def comparison(speedup: float, **more: Any) -> judge.Comparison:
    return judge.Comparison(speedup, speedup - 0.01, speedup + 0.01, "faster", 50.0 * speedup, 50.0, 10, 0.001, **more)


def test_peers_are_checked_and_compared_and_named_where_they_fail(peers: ModuleType) -> None:
    calls = {
        "right": peers.Call("torch:softmax", peers.along_rows),
        "wrong": peers.Call("torch.nn:functional.log_softmax", peers.along_rows),
        "smaller": peers.Call("torch:sum", peers.along_rows),
        "missing": peers.Call("no_such_library:softmax"),
    }
    timed = []

    def compare(peer: Any, kernel: Any, make_inputs: Any) -> judge.Comparison:
        timed.append((peer(*make_inputs()).shape, kernel.__name__))
        return comparison(1.5)

    row = peers.measured(peers.Row("softmax", {"...": (4,), "D": 8}, calls), compare)
    assert timed == [((4, 8), "softmax")]
    assert row["peers"]["right"]["comparison"]["speedup"] == 1.5
    assert row["peers"]["right"]["off_by"] < 1e-3
    errors = {name: peer["error"].split(" ")[:3] for name, peer in row["peers"].items() if "error" in peer}
    assert errors == {
        "wrong": ["ValueError:", "wrong", "by"],
        "smaller": ["ValueError:", "has", "the"],
        "missing": ["ModuleNotFoundError:", "No", "module"],
    }
    assert json.loads(json.dumps(row)) == row


def test_equally_good_indices_are_the_same(peers: ModuleType) -> None:
    import torch

    x = torch.tensor([[1.0, 3.0, 3.0], [0.0, 2.0, 1.0]])
    first = lambda x: x.argmax(-1)  # noqa: E731
    assert peers.off_by(torch.tensor([2, 1]), first, (x,)) == 0
    assert peers.off_by(torch.tensor([2, 2]), first, (x,)) > 0.1


def test_every_row_of_peers_is_a_case_of_its_operator(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls have the operators' parameters, and the sizes bind all that the shapes name."""
    import inspect

    for row in peers.ROWS:
        ours = peers.performance_test(row.operator).OPERATOR
        case = judge.Case(row.sizes, {"T": "float16"})
        assert [case.shape(tensor) for tensor in ours.inputs], row.operator
        for call in row.peers.values():
            inspect.signature(call.call).bind(None, *ours.inputs)
            assert call.function.count(":") == 1


def test_the_page_of_peers(peers: ModuleType) -> None:
    kernel = peers.fingerprint("softmax")
    liger = {"function": "l:f", "comparison": judge.to_json(comparison(1.02)), "off_by": 0.0, "first_call_s": 1.0}
    gems = liger | {"comparison": judge.to_json(comparison(0.995, graphed=False))}
    failed = {"function": "h:f", "error": "ValueError: wrong"}
    rows = [
        {
            "operator": "softmax",
            "kernel": kernel,
            "case": "A",
            "floor_us": 45.0,
            "message": "",
            "peers": {"Liger": liger, "FlagGems": gems},
        },
        {
            "operator": "softmax",
            "kernel": "older",
            "case": "B",
            "floor_us": 45.0,
            "message": "",
            "peers": {"Liger": liger, "Helion": failed},
        },
    ]
    versions = {"Liger": "0.8.5", "FlagGems": "5.0.2", "Helion": "1.0.0"}
    page = peers.table({**HEAD, "peers": versions, "rows": rows})
    assert "Liger 0.8.5, FlagGems 5.0.2, Helion 1.0.0" in page
    assert "| softmax | A | 50.0 | 1.020 [1.010, 1.030] | 0.995 [0.985, 1.005] ‡ | – | **0.995** | 90 % |" in page
    assert "| softmax † | B | 50.0 | 1.020 [1.010, 1.030] | – | – | **1.020** | 90 % |" in page
    assert "begins at 0.99 or above in 1 of 2 rows." in page
    assert "Not timed on softmax B: `h:f`, ValueError: wrong" in page
    missing = peers.table({**HEAD, "peers": versions | {"Helion": f"{peers.MISSING} (x)"}, "rows": rows})
    assert "Helion cannot be imported (x)" in missing
    assert "Not timed" not in missing


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("summary")


def anchor(rows: ModuleType, name: str, floor_us: float, ratios: dict[str, float], moved: int = 100) -> dict[str, Any]:
    operator, case = rows.ANCHORS[name]
    found = {against: judge.to_json(comparison(ratio)) for against, ratio in ratios.items()}
    return {"operator": operator, "case": case, "floor_us": floor_us, "bytes": moved, "comparisons": found}


def test_the_rows_in_short(rows: ModuleType) -> None:
    """Kernels of 50 us: one at 80 % of the floor, one past it, a looked up table that the bytes have whole."""
    least = rows.LEAST_BYTES["embedding"]
    data = [
        anchor(rows, "softmax_4096", 40.0, {"eager": 2.0, "compile": 1.25}),
        anchor(rows, "broadcast_512^3_fp16", 60.0, {"eager": 3.0, "max-autotune": 0.96}),
        anchor(rows, "embedding", 90.0, {"compile": 1.0}, moved=2 * least),
        {"operator": "relu", "case": "other", "comparisons": {}},
    ]
    found = {row.name: row for row in rows.measured({"rows": data})}
    assert [row.best for row in found.values()] == ["max-autotune", "compile", "compile"]
    assert {name: round(row.share, 3) for name, row in found.items()} == {
        "broadcast_512^3_fp16": 1.2,
        "softmax_4096": 0.8,
        "embedding": 0.9,
    }
    assert found["softmax_4096"].at_the_floor == pytest.approx(1.25 / 0.8)
    assert found["broadcast_512^3_fp16"].at_the_floor == 0.96
    page = "\n".join(rows.summary({"rows": data}))
    assert "| over the best of the three, geometric mean | 1.063 |" in page
    assert "| rows below 0.97 | 1: broadcast_512^3_fp16 |" in page
    assert "| share of the floor, median | 90 % |" in page
    assert "| share of the floor, worst | 80 % (softmax_4096) |" in page
    assert "| geometric mean at the floor | 1.186 |" in page
    assert f"| 3 of {len(rows.ANCHORS)}; not broadcast_1024^3_fp16," in page


def test_every_row_of_the_summary_is_a_case_of_its_operator(peers: ModuleType, rows: ModuleType) -> None:
    for operator, case in rows.ANCHORS.values():
        assert case in [found.label for found in peers.performance_test(operator).CASES], operator


def test_the_page_of_peers_is_made_from_its_data(peers: ModuleType) -> None:
    data, page = FOLDER / "peers.json", FOLDER / "peers.md"
    assert data.exists() == page.exists()
    if data.exists():
        assert page.read_text("utf-8") == peers.table(json.loads(data.read_text("utf-8"))), peers.COMMAND + " --table"


def test_the_page_of_small_sizes_is_made_from_its_data(small: ModuleType) -> None:
    data = json.loads((FOLDER / "small.json").read_text("utf-8"))
    page = (FOLDER / "small.md").read_text("utf-8")
    assert page == small.table(data), "python docs/benchmarks/small.py --table"


def test_the_page_of_gradients_is_made_from_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    gradients = importlib.import_module("gradients")
    data = json.loads((FOLDER / "gradients.json").read_text("utf-8"))
    assert (FOLDER / "gradients.md").read_text("utf-8") == gradients.page(data), gradients.COMMAND + " --table"
    assert {row["operator"] for row in data["rows"]} == set(gradients.NAMES)


def test_the_page_of_an_earlier_commit_is_made_from_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    since = importlib.import_module("since")
    data = json.loads((FOLDER / "since.json").read_text("utf-8"))
    assert (FOLDER / "since.md").read_text("utf-8") == since.table(data), "python docs/benchmarks/since.py --table"


def test_small_shapes_are_of_the_operators_that_have_them(small: ModuleType) -> None:
    """A shape for every size of the spec, and cut shapes no larger than they say."""
    for name in (*small.OTHER, *small.CUT):
        spec = load_spec(small.ROOT / "specs" / f"{name}.yaml")
        known = set(dict(spec.performance[0].sizes))
        cases = list(small.cases_of(spec, name, small.SIZES))
        assert all(set(dict(case.sizes)) == known for _, case in cases), name
        bytes_of = {size: small._bytes(spec, case) for size, case in cases if size != "other"}
        assert bytes_of["decode"] <= bytes_of["few_mb"] <= bytes_of["large"], name


def test_the_report_of_small_shapes_has_means_and_what_is_faster(small: ModuleType) -> None:
    row = {
        "operator": "relu", "size": "decode", "case": "[4096] float16", "over compile": [0.5, 0.4, 0.6],
        "us": {"eager": 4.0, "compile": 2.0, "first": 4.0, "other 0": 1.0},
        "schedules": {"first": "flat BLOCK_SIZE=1024", "other 0": "flat BLOCK_SIZE=256"},
    }  # fmt: skip
    text = small.report({"rows": [row, {**row, "over compile": [2.0, 1.9, 2.1]}]})
    assert "decode      2 rows: 1.000 over compile, 1 below 0.95" in text
    assert "best 1.0 x4.00 (flat BLOCK_SIZE=256)" in text


def test_the_page_of_kernelbench_says_what_is_fast_and_why_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    page = importlib.import_module("kernelbench").page
    row = {"case": "c", "kernel_us": 10.0, "floor_us": 9.0}
    slow, quick = ({"eager": {"speedup": s, "low": s, "high": s}} for s in (0.5, 3.0))
    right = {"state": "right", "seconds": 9.0, "reason": "", "performance": [row | {"against": slow}]}
    optimized = {"kept": 1, "performance": [row | {"against": quick}]}
    problems = [
        {"problem": "1_a", **right, "optimized": optimized},
        {"problem": "2_b", "state": "refused", "seconds": 2.0, "reason": "unsupported: a loop", "performance": []},
    ]
    differs = {"right": False, "max_difference": 0.00118, "error": 0.61, "original_error": 0.573, "as_precise": True}
    problems[0]["kernelbench"] = {"float32": differs}
    evaluated = {"1_a": {"correct": False, "message": "differs"}}
    told = {"taken": "all of the level", "rounds": "", "notes": [], "level": 2, "evaluated": evaluated}
    text = page({**HEAD, **told, "problems": problems})
    assert "# KernelBench, level 2" in text
    assert "| fast_p over eager | fast_0 0.00, fast_1 0.00, fast_1.5 0.00, fast_2 0.00 |" in text
    assert "| 1_a | 0.0012 | 0.61 tolerances | 0.57 tolerances | right |" in text
    del problems[0]["kernelbench"]
    text = page({**HEAD, **told, "problems": problems})
    assert "tolerances |" not in text
    assert "| fast_p over eager | fast_0 0.50, fast_1 0.00, fast_1.5 0.00, fast_2 0.00 |" in text
    assert "| fast_p over eager after rounds | fast_0 0.50, fast_1 0.50, fast_1.5 0.50, fast_2 0.50 |" in text
    assert "| geometric mean over eager after rounds | 3.00 |" in text
    assert "| 1 | unsupported: a loop |" in text
    assert "| 1_a | right | differs |" in text
    assert "1 exported files agrees with ours on 0" in text


def test_a_run_without_rounds_keeps_what_rounds_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    over = importlib.import_module("kernelbench")._over
    bare, other = {"seconds": 9.0, "time": "1"}, {"seconds": 7.0, "time": "3"}
    rounds = {"seconds": 99.0, "time": "2", "rounds_s": 80.0, "optimized": {"kept": 1}}
    assert over(None, bare) == over(other, bare) == bare
    assert over(bare, rounds) == rounds | {"without_rounds_s": 9.0}
    kept = {"rounds_s": 80.0, "optimized": {"kept": 1}, "without_rounds_s": 7.0}
    assert over(over(bare, rounds), other) == other | kept


def test_the_spaces_of_the_tuner_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases and axes that docs/benchmarks/tuner.py names: on a GPU it would be late to learn that they have moved."""
    monkeypatch.syspath_prepend(FOLDER)
    tuner = importlib.import_module("tuner")
    asked = [(name, (case,), configs) for name, (case, configs) in tuner.COMPARED.items()]
    for name, cases, configs in (*asked, *tuner.RECORDED.values()):
        spec = load_spec(find_spec(name)[0])
        assert set(cases) <= {case.label for case in spec.performance}
        plan, compiler = generation.plan_of(spec, Path("nowhere")), families_compiler()
        for case in (case for case in spec.performance if case.label in cases):
            axes = axes_of(compiler, plan, compiler.row_of(plan, case), (case,))
            space = space_of(compiler, plan, compiler.row_of(plan, case), (case,), restriction(configs, axes))
            assert 24 <= len(space.schedules) <= 200
            assert not space.sampled


def test_a_search_that_knows_another_operator_is_there_sooner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The best of a softmax space is what was fastest on log_softmax; its own rows are not looked at."""
    monkeypatch.syspath_prepend(FOLDER)
    tuner, warm = importlib.import_module("tuner"), importlib.import_module("warm")
    (case, configs), spec = tuner.COMPARED["softmax"], load_spec(find_spec("softmax")[0])
    plan, compiler = generation.plan_of(spec, Path("nowhere")), families_compiler()
    one = next(found for found in spec.performance if found.label == case)
    axes = axes_of(compiler, plan, compiler.row_of(plan, one), (one,))
    space = space_of(compiler, plan, compiler.row_of(plan, one), (one,), restriction(configs, axes))
    best = space.schedules[-1]
    times = {(s.variant, json.dumps(dict(s.values))): 1.0 if s == best else 2.0 for s in space.schedules}
    path = tmp_path / f"softmax-{warm.slug(f'{case}-NVIDIA H200')}.csv.gz"
    path.write_bytes(gzip.compress(tuner._space(times).encode()))
    known = next(row for row in shipped.rows() if row.operator == "log_softmax")
    taught = replace(known, case=case, variant=best.variant, schedule=json.dumps(dict(best.values)), time_us=1.0)
    found = warm.measured(path, [taught], seeds=4)
    assert (found.configurations, found.remembered, found.warm) == (len(space.schedules), 1, 2), "the default is first"
    assert found.cold > 2
    assert warm.measured(path, [replace(taught, operator="softmax")], seeds=1).remembered == 0


class Clock:
    """An evaluator on which a program more costs twice its share, and the first a percent besides."""

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def verify(self, candidate: Candidate) -> Evaluation:
        return Evaluation(candidate.source_hash, Status.OK)

    def final(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        planted = re.search(r"M \+ M \* (\d+) // 1000", candidate.source)
        more = 1.01 + 2 * int(planted[1]) / 1000 if planted else 1.0
        ratio = self.rng.gauss(1 / more, 0.002)
        interval = Interval(ratio, ratio - 0.003, ratio + 0.003)
        timings = [CaseTiming(c.label, "measured", 65 * more, "current", 65, ratio, interval) for c in cases]
        return Evaluation(candidate.source_hash, Status.OK, timings=tuple(timings))


def test_what_the_gate_calls_is_counted_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    tried = importlib.import_module("gate")
    source, slowed, same = (text.splitlines() for text in tried.texts(30))
    assert sum(a != b for a, b in zip(source, slowed, strict=True)) == 2
    assert same[:-1] == source
    case = next(c for c in load_spec(find_spec("softmax")[0]).performance if c.label == tried.CASE)
    tried.compare(Clock(), case, {"device": "a GPU"}, 20, 60.0, tmp_path)
    row = json.loads((tmp_path / "gate.json").read_text())
    assert row["more_programs"] == 0.01, "what costs 3 % is planted, whatever share of the programs that takes"
    assert (row["planted"]["slower"], row["planted"]["runs"]) == (20, 20)
    assert (row["same"]["unchanged"], row["same"]["runs"]) == (20, 20)
    said = tried.page("<!-- gate.json -->\n?\n<!-- end of gate.json -->\n", row)
    # of two measurements the gate keeps the one that says less
    assert re.search(r"a slowdown of (2[.][789]|3[.]0) % planted in .* slower in 20 of 20", " ".join(said.split()))
    kept = FOLDER / "gate.json"
    ci = (FOLDER.parent / "ci.md").read_text("utf-8")
    assert not kept.exists() or tried.page(ci, json.loads(kept.read_text())) == ci


def test_jobs_run_one_a_gpu_at_a_time_and_are_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    several = importlib.import_module("several")
    monkeypatch.setattr(several, "LEAST_S", 0.0)
    monkeypatch.setattr(several, "ENDING_S", 0.5)
    jobs = several.jobs_of(
        "# what is measured\n"
        "first 9 echo $CUDA_VISIBLE_DEVICES; exit 3\n"
        "asked 0.5 python3 -c 'import time; time.sleep(9)'\n"
        "deaf 0.5 trap '' INT; sleep 9\n"
        f"grouped 0.5 timeout 60 sleep 59.{os.getpid()}; true\n"
        f"left 9 timeout 60 sleep 58.{os.getpid()} & exit 0\n"
    )
    several.run(jobs, ["4"], tmp_path, several.time.monotonic() + 60)
    said = (tmp_path / "jobs.log").read_text()
    assert (tmp_path / "first.log").read_text() == "4\n"
    assert re.findall(r"^(\w+): (?:begins on GPU (\d)|exit (-?\d+))", said, re.MULTILINE) == [
        ("first", "4", ""), ("first", "", "3"), ("asked", "4", ""), ("asked", "", "-2"), ("deaf", "4", ""),
        ("deaf", "", "-9"), ("grouped", "4", ""), ("grouped", "", "-2"), ("left", "4", ""), ("left", "", "0"),
    ]  # fmt: skip
    lines = subprocess.check_output(["ps", "-eo", "args"], text=True).splitlines()
    assert not {f"sleep 59.{os.getpid()}", f"sleep 58.{os.getpid()}"} & set(lines), "in a group of its own"
    assert said.endswith("all done\n")
