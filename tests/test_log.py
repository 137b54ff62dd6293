"""The optimization log: sections once and whole, a head that is remade, and everything else left as it is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from kernelgen import log
from kernelgen.errors import UsageError

RUN = "20260101-000000-aaaaaa"

ENTRY: dict[str, Any] = {
    "operator": "toy", "run": RUN, "section": "1", "title": "round 1 · block_size · kept",
    "source": "measured", "headline": "**Kept:** x.", "row": None, "standing": None,
    "points": [("Problem", "latency"), ("Idea", "larger blocks")], "profile": [("time", "1.0 µs", "measured")],
    "diff": "-a\n+b", "tried": [{"what": "x", "expected": "at most +1 %", "outcome": "1.01x"}],
    "tried_title": "1 tried", "cases": [{"case": "[8]", "before": "2", "after": "1", "ratio": "2x", "verdict": "faster"}],
    "columns": ("previous µs", "new µs", "speedup"), "failed": ["that"], "next": ["more"], "made": "run a",
}  # fmt: skip

HEAD: dict[str, Any] = {
    "operator": "toy", "title": "v1.1, 2.000x over eager", "device": "H200", "targets": [("speedup: 2x", "✓")],
    "rounds": [(1, {"strategy": "block_size", "change": "x", "previous": "1.01x", "result": "kept"})],
    "versions": ["v1.0", "v1.1"], "parameters": [("all", "BLOCK", ["1", "2"])], "same": ["num_warps 4"], "next": "more",
}  # fmt: skip


def entry(section: str, **changes: Any) -> dict[str, Any]:
    return {**ENTRY, "section": section, "title": f"round {section}", **changes}


def head(**changes: Any) -> dict[str, Any]:
    return {**HEAD, **changes}


def whole(path: Path, sections: list[str]) -> bool:
    """Each section's marker once and in order, and right above each the whole text of the section."""
    text = path.read_text()
    if re.findall(r"^<!-- round \S+/(\S+) -->$", text, re.MULTILINE) != sections:
        return False
    return all(f"\n{log.section_text(entry(s))}\n{log.marker(RUN, s)}" in text for s in sections)


def test_sections_are_added_once_and_the_head_stands_above_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "optimization_log.md"
    assert log.update(path, head(), [entry("0")]) == 1
    assert log.update(path, head(), [entry("0"), entry("1")]) == 1
    before = path.read_text()
    assert log.update(path, head(), [entry("0")]) == 0
    assert path.read_text() == before
    assert whole(path, ["0", "1"])
    assert before.startswith(log.head_text(HEAD))
    assert "\n\n\n" not in before


def test_the_head_is_remade_and_nothing_else_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.update(path, head(), [entry("0")])
    first = path.read_bytes()
    log.update(path, head(title="v1.2, 3.000x over eager"), [entry("1")])
    text = path.read_bytes()
    below = first.split(log.head_markers("toy")[1].encode(), 1)[1]
    assert text.count(b"# toy: ") == 1
    assert b"3.000x over eager" in text
    assert b"2.000x over eager" not in text
    assert text.split(log.head_markers("toy")[1].encode(), 1)[1].startswith(below)


def test_a_section_that_is_already_there_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.update(path, head(), [entry("0")])
    log.update(path, head(), [entry("0", headline="another story")])
    assert "another story" not in path.read_text()


def test_a_log_cut_anywhere_gets_its_sections_back(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.update(path, head(), [entry("0"), entry("1")])
    content = path.read_bytes()
    for cut in range(0, len(content), 7):
        path.write_bytes(content[:cut])
        log.update(path, head(), [entry("0"), entry("1")])
        text = path.read_text(errors="replace")
        for section in ("0", "1"):
            assert text.count(log.marker(RUN, section)) == 1, cut
            assert f"{log.section_text(entry(section))}\n{log.marker(RUN, section)}" in text, cut
        assert log.head_text(HEAD) in text, cut


@pytest.mark.parametrize("note", ["\nA reviewer's note.\n", "\nno newline", "\n## Notes\r\n\n\udcff\n"])
def test_what_a_reader_wrote_stays(tmp_path: Path, note: str) -> None:
    path = tmp_path / "optimization_log.md"
    written = note.encode("utf-8", "surrogateescape")
    log.update(path, head(), [entry("0")])
    with path.open("ab") as file:
        file.write(written)
    log.update(path, head(title="v2"), [entry("1")])
    assert written in path.read_bytes()


def test_operators_may_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "optimization_log.md"
    log.update(path, head(), [entry("0")])
    log.update(path, head(operator="other"), [entry("0", operator="other", run="20260101-000000-bbbbbb")])
    log.update(path, head(title="newer"), [])
    text = path.read_text()
    assert [text.count(f"# {name}: ") for name in ("toy", "other")] == [1, 1]
    assert [text.count(f"## {name} ·") for name in ("toy", "other")] == [1, 1]


def test_a_full_disk_is_one_clear_line_and_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "optimization_log.md"
    log.update(path, head(), [entry("0")])
    before = path.read_text()

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"optimization_log\.md: cannot write: No space left"):
        log.update(path, head(), [entry("1")])
    monkeypatch.undo()
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no temporary file stays"
    with pytest.raises(UsageError, match="cannot write here"):
        log.update(path / "below", head(), [entry("1")])


def test_a_cell_holds_its_text_together() -> None:
    assert log.cell("a | b\nc") == "a \\| b c"


def test_shipped_logs_answer_first_and_are_read_in_one_sitting() -> None:
    logs = sorted(Path("operators").glob(f"*/{log.FILE}"))
    assert logs
    for path in logs:
        text, name = path.read_text(), path.parent.name
        assert text.startswith(f"{log.head_markers(name)[0]}# {name}: v"), path
        assert text.count("\n") <= 400, path
        sections = re.findall(r"^<!-- round (\S+) -->$", text, re.MULTILINE)
        assert len(set(sections)) == len(sections) > 0, path
