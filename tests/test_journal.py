"""The journal: what was recorded stays, what was torn goes, what was damaged is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernelgen import journal
from kernelgen.errors import UsageError
from kernelgen.journal import Journal, JournalError, LockedError


def write(folder: Path, count: int) -> bytes:
    opened = Journal.open(folder)
    for number in range(count):
        opened.append("step", {"number": number, "time": 0.1 + number, "text": "µ\r\n|", "none": None})
    opened.close()
    return (folder / journal.FILE).read_bytes()


def numbers(folder: Path) -> list[int]:
    opened = Journal.open(folder)
    opened.close()
    return [record.data["number"] for record in opened.records()]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    opened = Journal.open(tmp_path / "run")
    first = opened.append("run", {"key": "k", "pair": (1, 2)})
    opened.append("step", {"x": float("nan")})
    opened.close()
    again = Journal.open(tmp_path / "run")
    assert again.records()[0] == first
    assert first.data == {"key": "k", "pair": [1, 2]}, "what is worked with is what a resumed run would read"
    assert [r.seq for r in again.records()] == [1, 2]
    assert [r.kind for r in again.records("step")] == ["step"]
    again.close()


def test_every_record_is_a_line_of_json_with_a_checksum(tmp_path: Path) -> None:
    lines = write(tmp_path, 3).decode().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["crc", "data", "kind", "seq", "time"]] * 3


def test_a_journal_torn_at_any_byte_of_its_last_record_loses_only_that(tmp_path: Path) -> None:
    content = write(tmp_path, 3)
    last = content.rindex(b"\n", 0, len(content) - 1) + 1
    for cut in range(last, len(content)):
        (tmp_path / journal.FILE).write_bytes(content[:cut])
        opened = Journal.open(tmp_path)
        opened.append("step", {"number": 7})
        opened.close()
        assert numbers(tmp_path) == [0, 1, 7]


@pytest.mark.parametrize("tail", [b"\x00" * 64, b"{}\n", b'{"seq": 4}\n', b"\xff\xfe\n", b"\n"])
def test_rubbish_at_the_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    content = write(tmp_path, 2)
    (tmp_path / journal.FILE).write_bytes(content + tail)
    assert numbers(tmp_path) == [0, 1]
    assert (tmp_path / journal.FILE).read_bytes() == content


def test_a_flipped_bit_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    lines = write(tmp_path, 3).splitlines(keepends=True)
    for number in (0, 1):
        damaged = list(lines)
        damaged[number] = damaged[number].replace(b'"number":', b'"numbex":')
        (tmp_path / journal.FILE).write_bytes(b"".join(damaged))
        with pytest.raises(JournalError, match=rf"journal.jsonl:{number + 1}: damaged record"):
            Journal.open(tmp_path)


def test_a_missing_line_is_an_error(tmp_path: Path) -> None:
    lines = write(tmp_path, 3).splitlines(keepends=True)
    (tmp_path / journal.FILE).write_bytes(lines[0] + lines[2] + lines[1])
    with pytest.raises(JournalError, match=r"journal\.jsonl:2"):
        Journal.open(tmp_path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_record_that_could_not_be_made_durable_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    content = write(tmp_path, 2)
    opened = Journal.open(tmp_path)

    def fail(handle: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises((UsageError, KeyboardInterrupt)):
            opened.append("step", {"number": 2})
    assert (tmp_path / journal.FILE).read_bytes() == content
    opened.append("step", {"number": 3})
    opened.close()
    assert numbers(tmp_path) == [0, 1, 3]


def test_a_candidate_is_kept_by_its_hash_and_watched(tmp_path: Path) -> None:
    opened = Journal.open(tmp_path)
    name = opened.store("x = 1\n")
    assert opened.store("x = 1\n") == name
    assert [p.name for p in opened.candidates.iterdir()] == [f"{name}.py"]
    assert opened.source(name) == "x = 1\n"
    (opened.candidates / f"{name}.py").write_text("x = 2\n")
    with pytest.raises(JournalError, match="was changed"):
        opened.source(name)
    with pytest.raises(JournalError, match="cannot be read"):
        opened.source("0" * 16)
    opened.close()


def test_the_second_one_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    told = rf"toy is being optimised by another process \(pid {os.getpid()}\)"
    with journal.locked(tmp_path / "toy"), pytest.raises(LockedError, match=told), journal.locked(tmp_path / "toy"):
        pass
    with journal.locked(tmp_path / "toy"):
        pass


def begin(folder: Path, name: str, key: str, *kinds: str) -> Path:
    opened = Journal.open(folder / name)
    opened.append("run", {"key": key})
    for kind in kinds:
        opened.append(kind, {})
    opened.close()
    return folder / name


def test_the_newest_unfinished_run_of_a_key_is_found(tmp_path: Path) -> None:
    begin(tmp_path, "20260101-000000-aaaaaa", "k", "round")
    newest = begin(tmp_path, "20260102-000000-aaaaaa", "k", "round")
    begin(tmp_path, "20260103-000000-aaaaaa", "other")
    (tmp_path / "20260104-000000-aaaaaa").mkdir()
    (tmp_path / "20260105-000000-aaaaaa").mkdir()
    (tmp_path / "20260105-000000-aaaaaa" / journal.FILE).write_bytes(b'{"seq":1,')
    assert journal.unfinished(tmp_path, "k") == newest
    assert journal.unfinished(tmp_path, "nobody") is None
    begin(tmp_path, "20260106-000000-aaaaaa", "k", "finished")
    assert journal.unfinished(tmp_path, "k") is None, "a finished run supersedes what was left before it"


def test_an_unwritable_place_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write here"):
        Journal.open(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="cannot write here"), journal.locked(tmp_path / "file" / "toy"):
        pass


def test_a_resume_key_is_of_all_its_parts() -> None:
    parts: dict[str, Any] = {"spec": "a", "device": {"name": "x", "driver": "1"}}
    assert journal.resume_key(**parts) == journal.resume_key(**dict(reversed(parts.items())))
    assert journal.resume_key(**parts) != journal.resume_key(**{**parts, "spec": "b"})


def test_run_names_sort_by_time_and_differ() -> None:
    first, second = journal.run_name("k"), journal.run_name("k")
    assert first != second
    assert first[:15] <= second[:15]
