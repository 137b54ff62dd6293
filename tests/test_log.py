"""The optimization log: appended once, whole after any cut, and readable whatever is in a cell."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from kernelgen import log
from kernelgen.errors import UsageError

ENTRY: dict[str, Any] = {
    "operator": "toy", "run": "20260101-000000-aaaaaa", "section": "1", "title": "round 1 · block_size · kept",
    "source": "measured", "headline": "**Kept.**", "summary": [("version", "v1.0")], "bottleneck": "latency",
    "evidence": [("time", "1.0 µs", "measured")], "modification": [("type", "performance parameters")],
    "diff": "-a\n+b", "tried": [{"what": "x", "expected": "+1 %", "outcome": "1.01x"}],
    "cases": [{"case": "[8]", "before": "2", "after": "1", "ratio": "2x", "verdict": "faster"}],
    "columns": ("current µs", "new µs", "current / new"), "result": [("decision", "kept")],
    "worked": ["this"], "failed": ["that"], "next": ["more"], "provenance": [("device", "H200")],
}  # fmt: skip


def entry(section: str, **changes: Any) -> dict[str, Any]:
    return {**ENTRY, "section": section, "title": f"round {section}", **changes}


def whole(path: Path, sections: list[str]) -> bool:
    """Each section's marker once and in order, and right above each the whole text of the section."""
    text = path.read_text()
    if re.findall(r"^<!-- round \S+/(\S+) -->$", text, re.MULTILINE) != sections:
        return False
    return all(f"\n{log.section_text(entry(s))}\n{log.marker(ENTRY['run'], s)}" in text for s in sections)


def test_what_made_the_figures_stands_in_the_sections_first_table() -> None:
    text = log.section_text(entry("1"))
    assert "| version and state | |\n|---|---|\n| version | v1.0 |\n| device | H200 |\n\n" in text
    assert text.count("H200") == 1
    assert "version and state" not in log.section_text(entry("end", summary=[], provenance=[]))


def test_sections_are_appended_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "optimization_log.md"
    assert log.append(path, entry("0"))
    assert log.append(path, entry("1"))
    before = path.read_text()
    assert not log.append(path, entry("0"))
    assert path.read_text() == before
    assert whole(path, ["0", "1"])
    assert before.startswith("# Optimization log\n")
    assert "\n\n\n" not in before


def test_a_section_cut_anywhere_is_said_to_be_cut_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.append(path, entry("0"))
    start = path.stat().st_size
    log.append(path, entry("1"))
    content = path.read_bytes()
    for cut in range(start, len(content), 2):
        path.write_bytes(content[:cut])
        assert log.append(path, entry("1"))
        assert path.read_bytes().startswith(content[:cut]), "nothing that was written is ever changed"
        text = path.read_text(errors="replace")
        fences, comments = len(re.findall(r"^```", text, re.MULTILINE)), text.count("<!--") - text.count("-->")
        assert (fences % 2, comments) == (0, 0), text
        assert log.marker(ENTRY["run"], "1") in text
        said = "was cut off" in text
        assert said == (len(content[start:cut].strip()) > 0), cut
        assert text.count(log.marker(ENTRY["run"], "0")) == 1
        assert text.endswith(f"{log.section_text(entry('1'))}\n{log.marker(ENTRY['run'], '1')}")


def test_the_very_first_write_may_be_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.append(path, entry("0"))
    content = path.read_bytes()
    for cut in range(1, len(content), 7):
        path.write_bytes(content[:cut])
        assert log.append(path, entry("0"))
        assert path.read_text(errors="replace").count(log.marker(ENTRY["run"], "0")) == 1


@pytest.mark.parametrize("note", ["\nA reviewer's note.\n", "\nno newline", "\n## Notes\n\ntext\n"])
def test_what_a_reader_wrote_stays_and_is_no_cut(tmp_path: Path, note: str) -> None:
    path = tmp_path / "optimization_log.md"
    log.append(path, entry("0"))
    with path.open("a") as file:
        file.write(note)
    assert log.append(path, entry("1"))
    assert note in path.read_text()
    assert "was cut off" not in path.read_text()
    assert whole(path, ["0", "1"])


def test_operators_may_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.append(path, entry("0"))
    log.append(path, entry("0", operator="other", run="20260101-000000-bbbbbb"))
    assert path.read_text().count("## toy ·") == 1
    assert path.read_text().count("## other ·") == 1


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "optimization_log.md"
    log.append(path, entry("0"))
    before = path.read_text()
    monkeypatch.setattr(os, "write", lambda handle, data: 3)
    with pytest.raises(UsageError, match=r"optimization_log\.md: cannot write"):
        log.append(path, entry("1"))
    monkeypatch.undo()
    assert path.read_text() == before
    with pytest.raises(UsageError, match="cannot write here"):
        log.append(path / "below", entry("1"))


def test_a_cell_holds_its_text_together() -> None:
    assert log.cell("a | b\nc") == "a \\| b c"
