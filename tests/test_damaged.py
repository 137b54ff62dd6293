"""Files that are read back from disk, damaged: one line and nothing written, never a traceback."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import contents, refused
from rounds_fakes import make_plan, run, write_kernel

from kernelgen import journal
from kernelgen.ascend import lowering
from kernelgen.cli import main
from kernelgen.errors import KernelgenError
from kernelgen.manifest import MANIFEST

SPEC = """\
name: op
inputs: [{name: x, shape: [..., D], dtype: T}]
outputs: [{name: out, shape: [..., D], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def op(x):
      return torch.softmax(x, -1)
"""
READ_BY = (
    ["new", "op"],
    ["new", "--check"],
    ["list"],
    ["export", "op", "--format", "custom_op", "--force"],
    ["optimize", "op", "--dry-run", "--device", "cpu"],
)
"""The commands that read a manifest."""
DRAWS = int(os.environ.get("DAMAGED_DRAWS", "4"))
"""Of each kind of damage."""
ODD: tuple[Any, ...] = (None, True, -1, 3, 2**70, 1e308, float("nan"), "", "2d", "\ud800", "../x", [], {}, [[{}]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec, what is generated from it, and a project's settings."""
    root = tmp_path_factory.mktemp("made")
    (root / "op.yaml").write_text(SPEC)
    (root / "pyproject.toml").write_text('[tool.kernelgen]\nrounds = 3\ndevice = "cpu"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("KERNELGEN_VERIFY", "no")
        assert main(["new", "op"]) == 0
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("KERNELGEN_VERIFY", "no")
    return tmp_path / "here"


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in JSON data."""
    yield at
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from paths(data[key], (*at, key))


def changed_values(text: str, draw: random.Random, count: int) -> Iterator[bytes]:
    """JSON with one value, one key or one entry of it changed."""
    data = json.loads(text)
    places = list(paths(data))[1:]
    for _ in range(count):
        made, (*at, last) = copy.deepcopy(data), draw.choice(places)
        parent = made
        for step in at:
            parent = parent[step]
        match draw.randrange(4):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[draw.choice(["", "x", "..", "\x00", str(last)[:-1]])] = parent.pop(last)
            case 2 if isinstance(parent, list):
                parent.append(parent[last])
            case _:
                parent[last] = draw.choice(ODD)
        yield json.dumps(made).encode()


def changed_bytes(content: bytes, draw: random.Random, count: int) -> Iterator[bytes]:
    """A file with a bit flipped, cut off, or with something foreign in it."""
    for _ in range(count):
        at = draw.randrange(len(content))
        match draw.randrange(4):
            case 0 | 1:
                yield content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
            case 2:
                yield content[:at]
            case _:
                yield content[:at] + draw.choice([b"\xff", b"\x00", b"9" * 5000, b"[" * 99999, b"\n"]) + content[at:]


WHOLE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe{}",
    b"[" * 99999,
    b'{"schedules": null}',
    b'{"a": 1, "a": 2}',
    b"9" * 5000,
]


def answers(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], codes: set[int]) -> str:
    """What a command says of damage; nothing may be written where it refuses."""
    before = contents(folder)
    code = main(arguments)
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("spec: ")]
    assert code in codes, said
    if code == 2:
        assert contents(folder) == before
        assert len(said) == 1, said
    return said[0] if code else ""


def restored(folder: Path, made: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(made, folder, dirs_exist_ok=True)


def test_a_damaged_manifest_is_one_line(made: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, draw = folder / "operators" / "op" / MANIFEST, random.Random(0)
    whole = path.read_bytes()
    damaged = [*WHOLE, *changed_values(whole.decode(), draw, DRAWS), *changed_bytes(whole, draw, DRAWS)]
    refusals = 0
    for number, content in enumerate(damaged):
        path.write_bytes(content)
        said = answers(READ_BY[number % len(READ_BY)], folder, capsys, {0, 1, 2})
        refusals += MANIFEST in said
        restored(folder, made)
    assert refusals > len(damaged) / 4


@pytest.mark.parametrize("arguments", READ_BY, ids=lambda a: " ".join(a[:3]))
def test_every_command_says_what_is_damaged(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "operators" / "op" / MANIFEST
    path.write_text(path.read_text().replace('"num_warps": 4', '"num_warps": "2d"'))
    code = main(arguments)
    said = capsys.readouterr()
    if arguments[0] == "list":  # it looks at hashes, and this one is of no file
        assert (code, said.err) == (0, "")
    elif arguments[0] != "export":  # a package needs no schedules
        assert code == 2
        assert f"{MANIFEST}: damaged (schedules[0]: num_warps cannot be '2d'); restore it, or remove it" in said.err


@pytest.mark.parametrize("make", ["folder", "loop", "bytes", "schedule", "escape"])
def test_what_stands_in_its_place(make: str, folder: Path) -> None:
    path = folder / "operators" / "op" / MANIFEST
    text = path.read_text()
    path.unlink()
    places: dict[str, Callable[[], Any]] = {
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path.name),
        "bytes": lambda: path.write_bytes(b"\xff\xfe"),
        "schedule": lambda: path.write_text(text.replace('"variant": "row"', '"variant": "sow"')),
        "escape": lambda: path.write_text(text.replace('"op_triton.py"', '"../../op.yaml"')),
    }
    places[make]()
    assert refused("new", "op", cwd=folder).startswith(f"error: operators/op/{MANIFEST}: ")


@pytest.mark.parametrize("file", ["op_triton.py", "op_baseline.py", "definition.md"])
def test_a_generated_file_that_is_no_text_was_changed_by_hand(
    file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "operators" / "op" / file
    path.write_bytes(path.read_bytes() + b"\xff")
    assert "changed by hand" in answers(["new", "op"], folder, capsys, {2})
    assert "changed by hand" in answers(["new", "--check"], folder, capsys, {1})
    assert file in answers(["export", "op"], folder, capsys, {2})


def test_an_exported_kernel_that_is_no_python_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "operators" / "op" / "op_triton.py").write_text("def op(:\n")
    said = answers(["export", "op", "--format", "custom_op"], folder, capsys, {2})
    assert said.startswith("error: operators/op/op_triton.py:1: not Python")


def test_damaged_settings_are_one_line(made: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, draw = folder / "pyproject.toml", random.Random(1)
    foreign = [b"tool = 5\n", b"[tool]\nkernelgen = []\n", b"a = " + b"[" * 99999, b"x = " + b"9" * 5000]
    foreign.append(b'[tool.kernelgen]\n"a\\nb" = 1\n')
    for content in [*foreign, *changed_bytes(path.read_bytes(), draw, 5 * DRAWS)]:
        path.write_bytes(content)
        answers(["new", "--check"], folder, capsys, {0, 2, 3})


def started(root: Path) -> Path:
    """A run with two rounds that was interrupted."""
    write_kernel(root, make_plan())
    found = run(root, rounds=2).folder
    lines = (found / journal.FILE).read_bytes().splitlines(keepends=True)
    (found / journal.FILE).write_bytes(b"".join(lines[:-1]))
    return found


def refusal(root: Path) -> str:
    """Why a run does not go on; "" where it does."""
    try:
        run(root, rounds=2)
    except KernelgenError as error:
        return str(error)
    return ""


def test_a_damaged_run_goes_on_or_is_one_line(tmp_path: Path) -> None:
    draw = random.Random(2)
    found = started(tmp_path / "made").relative_to(tmp_path / "made")
    stored = sorted(p.relative_to(tmp_path / "made") for p in (tmp_path / "made" / found / "candidates").iterdir())
    others = [Path("operators/toy/toy_triton.py"), Path("operators/toy/optimization_log.md"), Path("logs/toy/lock")]
    for number in range(60):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", root)
        file = draw.choice([found / journal.FILE, found / journal.FILE, *stored[:3], *others])
        whole = (root / file).read_bytes() or b"1"
        [content] = changed_bytes(whole, draw, 1)
        (root / file).write_bytes(content)
        before = contents(root)
        said = refusal(root)
        assert "\n" not in said
        if "damaged record" in said:
            assert contents(root) == before
        shutil.rmtree(root)


def test_a_run_whose_first_record_is_damaged_is_not_begun_again(tmp_path: Path) -> None:
    path = started(tmp_path) / journal.FILE
    path.write_bytes(b"#" + path.read_bytes()[1:])
    with pytest.raises(KernelgenError, match=r"journal\.jsonl:1: damaged record"):
        run(tmp_path, rounds=2)


@pytest.mark.parametrize("data", [[], None, "text", [[1]]])
def test_a_record_is_a_mapping(data: Any, tmp_path: Path) -> None:
    record = journal.Record(1, "run", "now", data)
    (tmp_path / journal.FILE).write_bytes(record.line() + journal.Record(2, "step", "now", {}).line())
    with pytest.raises(KernelgenError, match=r":1: damaged record"):
        journal.read(tmp_path)


LOWERED = {
    "findings": [{"kind": "int64", "line": 3, "text": "slow"}], "cores": "aiv", "planned": True, "overflow": ["ub", 9, 8],
    "multibuffer_dropped": False, "ub_bytes": 8, "l0c_bytes": 0, "l1_bytes": 0, "object": "", "object_message": "none",
    "message": "", "line": 0,
}  # fmt: skip


def test_a_damaged_lowering_is_made_anew(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / lowering.ANSWER).write_text(json.dumps(LOWERED))
    assert lowering.known(kept) is not None
    for content in [*WHOLE, json.dumps({**LOWERED, "planned": "2d"}).encode(), b'{"refused": 1}']:
        kept.mkdir(exist_ok=True)
        (kept / lowering.ANSWER).write_bytes(content)
        assert lowering.known(kept) is None
        assert not kept.exists()
