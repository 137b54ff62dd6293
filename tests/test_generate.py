"""Writing an operator's files: what is new, stale, edited or kept, and whether the four agree."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_frontend import spec_of

from kernelgen import generation, manifest, render
from kernelgen.errors import DamagedError, HandEditedError, SpecError, UnsupportedError
from kernelgen.families import reduction
from kernelgen.manifest import MANIFEST
from kernelgen.plan import TableRow, table_row
from kernelgen.spec.model import OperatorSpec

FILES = ["op_triton.py", "op_baseline.py", "op_accuracy.py", "op_performance.py", "definition.md"]


@pytest.fixture
def spec() -> OperatorSpec:
    return spec_of("return torch.softmax(x, -1)")


@pytest.fixture
def folder(spec: OperatorSpec, tmp_path: Path) -> Path:
    generation.new(spec, tmp_path)
    return tmp_path / "op"


def test_everything_is_written_once(spec: OperatorSpec, tmp_path: Path) -> None:
    first = generation.new(spec, tmp_path)
    assert first.change == "new"
    assert list(first.written) == FILES
    assert {p.name for p in first.folder.iterdir()} == {*FILES, MANIFEST}
    before = {p: p.stat().st_mtime_ns for p in first.folder.iterdir()}
    second = generation.new(spec, tmp_path)
    assert (second.change, second.written, list(second.unchanged)) == ("none", (), FILES)
    assert {p: p.stat().st_mtime_ns for p in first.folder.iterdir()} == before


def test_a_dry_run_writes_nothing(spec: OperatorSpec, tmp_path: Path) -> None:
    assert list(generation.new(spec, tmp_path, dry_run=True).written) == FILES
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_the_spec(spec: OperatorSpec, tmp_path: Path) -> None:
    assert generation.new(replace(spec, folder="norms/op"), tmp_path).folder == tmp_path / "norms" / "op"


def test_what_the_spec_now_says_makes_files_stale(spec: OperatorSpec, folder: Path) -> None:
    root = folder.parent
    assert generation.stale(spec, root) == ()
    changed = spec_of("return torch.softmax(x * 2, -1)")
    assert [line.rpartition(": ")[2] for line in generation.stale(changed, root)] == ["no longer matches its spec"] * 3
    (folder / "op_accuracy.py").unlink()
    assert generation.stale(spec, root) == (f"{folder}/op_accuracy.py: missing",)


def test_hand_edits_are_kept_unless_forced(spec: OperatorSpec, folder: Path) -> None:
    path = folder / "op_triton.py"
    original = path.read_text()
    path.write_text(original + "# mine\n")
    (folder / "definition.md").unlink()
    assert manifest.hand_edited(folder) == ("op_triton.py",)
    assert generation.stale(spec, folder.parent) == (
        f"{path}: changed by hand", f"{folder}/definition.md: missing",
    )  # fmt: skip
    with pytest.raises(HandEditedError, match=r"op_triton.py: changed by hand since it was generated; --force"):
        generation.new(spec, folder.parent)
    assert path.read_text() == original + "# mine\n"
    assert not (folder / "definition.md").exists()
    assert generation.new(spec, folder.parent, force=True).written == ("op_triton.py", "definition.md")
    assert path.read_text() == original
    assert manifest.hand_edited(folder) == ()


CHANGES = {
    "logic": spec_of("return torch.log_softmax(x, -1)"),
    "interface": spec_of("return torch.softmax(x, -1)", "x: [A, D] T", "out: [A, D] T"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_the_kind_of_a_change_is_told(folder: Path, kind: str) -> None:
    written = generation.new(CHANGES[kind], folder.parent)
    assert written.change == kind
    assert {"op_triton.py", "op_baseline.py"} <= set(written.written)
    assert generation.stale(CHANGES[kind], folder.parent) == ()


def test_a_change_of_schedule_rewrites_the_kernel_alone(spec: OperatorSpec, folder: Path) -> None:
    table = [{"upto": {}, **reduction.default("row").replace(num_warps=8).to_json()}]
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"schedules": table}))
    written = generation.new(spec, folder.parent)
    assert (written.change, written.written) == ("performance parameters", ("op_triton.py",))
    assert '"num_warps": 8' in (folder / "op_triton.py").read_text()


def test_a_table_of_before_a_parameter_keeps_what_it_chose(spec: OperatorSpec, folder: Path) -> None:
    chosen = reduction.default("row").replace(num_warps=8)
    manifest = json.loads((folder / MANIFEST).read_text())

    def found(row: dict[str, object]) -> tuple[TableRow, ...]:
        (folder / MANIFEST).write_text(json.dumps(manifest | {"schedules": [{"upto": {}, **row}]}))
        return generation.plan_of(spec, folder.parent).table

    older = {name: value for name, value in chosen.values if name != "loads"}
    assert found({"variant": "row", "values": older}) == (TableRow((), chosen),)
    with pytest.raises(DamagedError, match="row has no parameter 'of_another_time'"):
        found({"variant": "row", "values": {**older, "of_another_time": 1}})


def test_a_table_of_before_sizes_had_names_is_read(spec: OperatorSpec, folder: Path) -> None:
    row, looped = reduction.default("row"), reduction.default("looped")
    old = [{"max_bytes": 4096, **row.to_json()}, {"max_bytes": None, **looped.to_json()}]
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"schedules": old}))
    table = generation.plan_of(spec, folder.parent).table
    assert table == (table_row(row, row_bytes=4096), table_row(looped))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([{"M": 4}, {}], "schedules[0].upto: reduction has no size 'M'"),
        (
            [{"row_bytes": 4}, {"row_bytes": 2, "rows": 1}, {}],
            "schedules: row 1 serves nothing that a row before it does",
        ),
        ([{}, {}], "schedules: row 1 serves nothing that a row before it does"),
        ([{"rows": 8}], "schedules: the last row must serve all sizes"),
    ],
)
def test_limits_that_no_table_has_are_damage(
    spec: OperatorSpec, folder: Path, limits: list[dict[str, int]], said: str
) -> None:
    rows = [{"upto": upto, **reduction.default("row").to_json()} for upto in limits]
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"schedules": rows}))
    with pytest.raises(DamagedError, match=re.escape(said)):
        generation.plan_of(spec, folder.parent)


def test_the_chosen_table_survives_the_next_new(spec: OperatorSpec, folder: Path) -> None:
    plan = generation.plan_of(spec, folder.parent)
    chosen = plan.with_table((TableRow((), reduction.default("looped").replace(BLOCK_SIZE_N=4096)),))
    (folder / "op_triton.py").write_text(render.triton_source(chosen))
    generation.record(chosen, folder)
    assert manifest.hand_edited(folder) == ()
    assert generation.plan_of(spec, folder.parent).table == chosen.table
    assert generation.new(spec, folder.parent).change == "none"
    # a table of another family is of another reference, and let go
    other = spec_of("return x * 2")
    assert generation.plan_of(other, folder.parent).table == generation.plan_of(other, folder.parent / "none").table


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schedules": null}',
        '{"files": []}',
        '{"schedules": [1]}',
        '{"schedules": [{"upto": {"row_bytes": 1}}]}',
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(spec: OperatorSpec, folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DamagedError, match=r"generated\.json: damaged \("):
        generation.new(spec, folder.parent)
    (folder / MANIFEST).unlink()
    assert generation.new(spec, folder.parent).change == "none"


@pytest.mark.parametrize(
    ("body", "outputs", "error"),
    [
        ("return torch.msort(x)", "out: [..., D] T", UnsupportedError),
        ("return x.sum(-1)", "out: [..., D] T", SpecError),
    ],
)
def test_nothing_is_written_for_a_spec_that_is_refused(
    tmp_path: Path, body: str, outputs: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        generation.new(spec_of(body, outputs=outputs), tmp_path)
    assert list(tmp_path.iterdir()) == []


BREAKS = {
    "function name": ("op_baseline.py", "def op(", "def other("),
    "parameters": ("op_triton.py", "def op(x: torch.Tensor)", "def op(y: torch.Tensor)"),
    "types": ("op_triton.py", "def op(x: torch.Tensor)", "def op(x: object)"),
    "returns": ("op_baseline.py", "def op(x: torch.Tensor) -> torch.Tensor", "def op(x: torch.Tensor) -> None"),
    "input checks": ("op_triton.py", "if x.ndim < 1", "if x.ndim < 2"),
    "tests import": ("op_performance.py", "from op_accuracy import OPERATOR", "OPERATOR = None"),
}


@pytest.mark.parametrize("item", BREAKS)
def test_files_that_do_not_agree_are_found_out(spec: OperatorSpec, tmp_path: Path, item: str) -> None:
    files = render.quartet(generation.plan_of(spec, tmp_path))
    assert all(a.agrees for a in generation.interface_agreement(spec, files))
    name, old, new = BREAKS[item]
    assert old in files[name]
    broken = generation.interface_agreement(spec, {**files, name: files[name].replace(old, new)})
    assert item in [a.item for a in broken if not a.agrees]
