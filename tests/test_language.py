"""The log and the definition in Chinese: every phrase is in the catalogue, nothing else is touched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rounds_fakes import FakeEvaluator, make_plan, run, write_kernel

from kernelgen import generation
from kernelgen.cli import main
from kernelgen.definition import MEANINGS
from kernelgen.diagnose import UNITS, WHY
from kernelgen.evaluate import Candidate
from kernelgen.families import FAMILIES
from kernelgen.language import catalogue, translate, untranslated
from kernelgen.outcomes import Evaluation, Status
from kernelgen.settings import resolve
from kernelgen.spec.model import Target
from kernelgen.strategies import strategies

REPO = Path(__file__).parent.parent
TARGET = Target(1.0, 0.6, 0.8)


def log_of(root: Path, evaluator: FakeEvaluator | None = None, **options: object) -> str:
    """A log of rounds on a device that only computes."""
    plan = make_plan(target=TARGET)
    write_kernel(root, plan)
    run(root, evaluator, plan=plan, **options)
    return (root / "operators" / "toy" / "optimization_log.md").read_text()


def bad(step: str, candidate: Candidate, found: Evaluation) -> Evaluation:
    """Every second candidate is refused, and no winner is right."""
    if step == "search" and int(candidate.source_hash, 16) % 2:
        return replace(found, status=Status.COMPILE_ERROR, message="ptxas", timings=())
    return (
        replace(found, status=Status.INCORRECT, message="off") if step == "verify" and "64" in candidate.what else found
    )


@pytest.mark.parametrize(
    "evaluator",
    [FakeEvaluator(), FakeEvaluator(measures=False), FakeEvaluator(twist=bad)],
    ids=["measured", "predicted", "failures"],
)
def test_every_phrase_of_a_log_is_known(tmp_path: Path, evaluator: FakeEvaluator) -> None:
    of_the_toy = {"how the L2 keeps it", "loads in flight", "blocks that share a load"}
    assert set(untranslated(log_of(tmp_path, evaluator, rounds=5), "zh")) <= of_the_toy


def test_every_phrase_of_the_shipped_definitions_is_known() -> None:
    found = {}
    for path in sorted(REPO.glob("operators/**/definition.md")):
        _, _, rest = path.read_text("utf-8").partition("\nGenerated from")  # the summary is the author's
        found |= dict.fromkeys(untranslated(f"Generated from{rest}", "zh"), path.parent.name)
    assert found == {}, "kernelgen/language/zh.txt lacks these"


def test_every_phrase_that_modules_keep_in_tables_is_known() -> None:
    meanings = [variant.meaning for family in FAMILIES.values() for variant in family.every]
    said = [*MEANINGS.values(), *WHY.values(), *UNITS.values(), *meanings]
    assert {text: untranslated(text, "zh") for text in said if untranslated(text, "zh")} == {}, "zh.txt"
    assert set(MEANINGS) == set(strategies()) - {"adopt"}


def test_the_templates_have_no_sentence_that_is_not_in_the_catalogue() -> None:
    for name in ("definition.md", "optimization_head.md", "optimization_log.md"):
        text = (REPO / "kernelgen" / "templates" / f"{name}.jinja").read_text("utf-8")
        # sentences around a loop are seen in the definitions alone
        plain = [line for line in re.sub(r"\n\{%-", "{%-", text).split("\n") if not re.search(r"\w.*\{%-? for", line)]
        said = re.sub(r"\{\{.*?\}\}", "1", re.sub(r"\{%-?.*?-?%\}", "", "\n".join(plain)))
        assert untranslated(said, "zh") == [], name


def test_a_catalogue_is_whole() -> None:
    for english, said in catalogue("zh").items():
        holes = len(re.findall(r"\{[*#]?\}", english))
        assert sorted(set(re.findall(r"\{(\d)\}", said))) == [str(n) for n in range(holes)], english
        assert re.search("[\u4e00-\u9fff]|Roofline|µs", said), english


@pytest.mark.parametrize(
    ("english", "said"),
    [
        ("2.200x [2.195, 2.205] over eager", "相对 eager 2.200x [2.195, 2.205]"),
        ("87 to 88 % of roofline (predicted)", "Roofline 的 87 至 88 %（预测）"),
        ("268 MB to 1.07 GB", "268 MB 至 1.07 GB"),
        ("# toy: v1.3, targets met", "# toy：v1.3，目标达成"),
        ("- **Problem:** latency on [8] float32: registers spill to memory, so every value kept there costs a round trip",
         "- **问题分析：** [8] float32 的主要瓶颈是内存延迟：寄存器溢出到内存，每个溢出的值都要往返一次"),
        ("| round | strategy |\n|---:|---|", "| 轮次 | 策略 |\n|---:|---|"),
        ("```diff\n- kept\n```", "```diff\n- kept\n```"),
        ("<!-- round 1/2 -->", "<!-- round 1/2 -->"),
        ("A user wrote this; all of it.", "A user wrote this; all of it."),
    ],
)  # fmt: skip
def test_phrases(english: str, said: str) -> None:
    assert translate(english, "zh") == said
    assert translate(english, "en") == english


def test_what_is_not_in_the_catalogue_is_found() -> None:
    assert untranslated("- the kernel sings loudly", "zh") == ["the kernel sings loudly"]


def test_the_language_is_kept_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "relu", "--lang", "zh", "--no-verify"]) == 0
    definition = Path("operators/relu/definition.md")
    assert "## 概览" in definition.read_text("utf-8")
    assert json.loads(definition.with_name("generated.json").read_text())["language"] == "zh"
    assert main(["new", "--check"]) == 0
    assert main(["new", "relu", "--no-verify"]) == 0
    assert "## 概览" in definition.read_text("utf-8"), "as it was"
    assert generation.new(generation_spec(), Path("operators"), language="en").change == "definition"
    assert "## At a glance" in definition.read_text("utf-8")
    assert main(["new", "relu", "--lang", "de"]) == 2
    assert resolve({}, env={"KERNELGEN_LANG": "zh"}).lang == "zh"


def generation_spec():  # type: ignore[no-untyped-def]
    from kernelgen import load_spec

    return load_spec("relu")


def test_a_log_is_written_in_it_and_journals_stay_english(tmp_path: Path) -> None:
    text = log_of(tmp_path, rounds=2, language="zh")
    assert "## toy · 第 1 轮" in text
    assert "<!-- head toy: remade after each round -->" in text
    again = log_of(tmp_path, rounds=1, language="zh")
    assert again.count("<!-- head toy") == 1
    assert "Baseline" in next((tmp_path / "logs" / "toy").glob("*/journal.jsonl")).read_text()
