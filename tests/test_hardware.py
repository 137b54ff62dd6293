"""What a device reaches: measured by one code path on a CPU and a GPU, kept, drawn, and used by predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from cli_process import kernelgen, refused

from kernelgen.cli.hardware import prediction_errors
from kernelgen.cli.picture import picture
from kernelgen.devices import ceilings
from kernelgen.devices.ceilings import Ceilings, Rate
from kernelgen.devices.facts import H200, MIB
from kernelgen.errors import UsageError
from kernelgen.worker import ceilings as measuring

ROOT = Path(__file__).parent.parent
FOUND = Ceilings(
    "NVIDIA H200", "2.11", "2026-11-23", 60 * MIB,
    (
        Rate("copy", 16 * MIB, 9e12), Rate("copy", 1 << 30, 4.2e12), Rate("copy", 1 << 31, 4.3e12),
        Rate("read", 16 * MIB, 7e12), Rate("read", 1 << 30, 4.4e12), Rate("matrix float16", 8192, 7e14),
        Rate("launch", 4, 8e5),
    ),
    (("matrix float8_e4m3fn 1024", "not built"),),
)  # fmt: skip


def test_ceilings_are_of_what_no_cache_holds_and_of_what_one_does() -> None:
    assert FOUND.dram == 4.3e12
    assert FOUND.l2 == 7e12
    assert FOUND.best("atomics") is None
    assert replace(FOUND, l2_bytes=0).l2 is None


def test_they_are_kept_by_device_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ceilings.known("NVIDIA H200") is None
    ceilings.save(FOUND)
    assert ceilings.known("NVIDIA H200") == FOUND
    assert ceilings.known("NVIDIA H100") is None


def test_predictions_use_what_was_measured_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ceilings.applied(H200) == (H200, "")
    ceilings.save(FOUND)
    used, said = ceilings.applied(H200)
    assert said == "ceilings measured on NVIDIA H200, 2026-11-23"
    assert used.achievable_fraction == pytest.approx(4.3e12 / H200.dram_bytes_per_s)
    assert (used.l2_bytes_per_s, used.launch_latency_s) == (7e12, 1.25e-6)
    assert used.dram_bytes_per_s == H200.dram_bytes_per_s, "a peak stays the data sheet's"


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"form": 9}', "written by a newer kernelgen"), ("{", "is damaged"), ('{"form": 1, "rates": 3}', "is damaged")],
)
def test_a_file_that_cannot_be_used_is_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = ceilings.save(FOUND)
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as wrong:
        ceilings.applied(H200)
    assert "\n" not in str(wrong.value)
    assert path.read_text() == text


def test_a_cpu_is_measured_by_the_same_code_at_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SAMPLE_S", 1e-5)
    threads = torch.get_num_threads()
    found = measuring.measure("cpu", small=True)
    torch.set_num_threads(threads)
    kinds = {rate["what"] for rate in found["rates"]}
    assert kinds >= {"copy", "read", "write", "fill", "matrix float32", "launch", "host call", "atomics"}
    assert {rate["size"] for rate in found["rates"] if rate["what"] == "copy"} == set(measuring.SMALL_SIZES)
    assert all(rate["per_s"] > 0 for rate in found["rates"])


def test_what_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SAMPLE_S", 1e-5)
    monkeypatch.setattr(measuring, "DTYPES", ("float99",))
    monkeypatch.setattr(measuring, "SMALL_SIZES", (64,))
    threads = torch.get_num_threads()
    found = measuring.measure("cpu", small=True)
    torch.set_num_threads(threads)
    assert [what for what, _ in found["left_out"]] == ["matrix float99 64", "matrix float99 128"]
    assert any(rate["what"] == "copy" for rate in found["rates"])


@pytest.mark.parametrize("found", [None, FOUND, replace(FOUND, device="CPU"), replace(FOUND, rates=())])
def test_a_roofline_is_a_picture(found: Ceilings | None) -> None:
    root = ElementTree.fromstring(picture(H200, found))
    said = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("TB/s" in str(text) for text in said)
    if found is FOUND:
        assert "fp16, bf16: 700 TFLOP/s" in said
        assert "fp32: 67 TFLOP/s (data sheet)" in said


def test_the_command_measures_keeps_and_draws(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = kernelgen("hardware", "--measure", "--device", "cpu", "--svg", "r.svg", "--json", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout)["measured"]["rates"]
    assert rates
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    assert (tmp_path / "cache/kernelgen/ceilings/cpu-one-thread.json").is_file()


def test_without_a_gpu_there_is_nothing_to_measure(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    line = "hardware --measure needs an NVIDIA GPU, and none was found; --device cpu measures this CPU"
    assert refused("hardware", "--measure", cwd=tmp_path, code=3) == f"error: {line}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "was not written by docs/benchmarks/measure.py"),
        ('{"device": "NVIDIA H200", "rows": [{"operator": 1}]}', "was not written by docs/benchmarks/measure.py"),
        ('{"device": "Abacus", "rows": []}', "is of Abacus, which is not in the table"),
    ],
)
def test_a_file_that_holds_no_measurements(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        list(prediction_errors(tmp_path / "x.json", []))


def test_predictions_are_set_beside_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (row,) = prediction_errors(ROOT / "docs/benchmarks/h200.json", ["relu"])
    assert (row["operator"], row["case"]) == ("relu", "[8192, 16384] float16")
    assert row["error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1)
    assert abs(row["error"]) < 0.3
    assert row["from"] == "predicted, ceilings estimated"


@pytest.mark.gpu
def test_a_gpu_reaches_most_of_its_data_sheet(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = kernelgen("hardware", "--measure", "--json", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = ceilings._from_json(document["measured"])
    assert found.dram is not None
    assert found.l2 is not None
    if found.device == H200.name:
        assert 0.8 < found.dram / H200.dram_bytes_per_s < 1
        assert found.l2 > found.dram
        assert 0.5 < (found.best("matrix float16") or 0) / H200.fp16_tensor_flops < 1
