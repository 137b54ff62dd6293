"""Devices: the table of facts, and finding a device without importing torch."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from kernelgen import devices, doctor
from kernelgen.devices import cuda, facts, nvml
from kernelgen.devices.libcuda import ATTRIBUTES, Gpu
from kernelgen.errors import NoDeviceError, UsageError

ATTRIBUTE_VALUES = {
    "max_threads_per_block": 1024,
    "clock_khz": 1_980_000,
    "sms": 132,
    "compute_mode": 0,
    "memory_clock_khz": 3_201_000,
    "memory_bus_bits": 6144,
    "l2_bytes": 62914560,
    "max_threads_per_sm": 2048,
    "major": 9,
    "minor": 0,
    "shared_per_sm": 233472,
    "registers_per_sm": 65536,
    "shared_per_block_max": 232448,
    "max_programs_per_sm": 32,
    "shared_reserved": 1024,
}
AN_H200 = Gpu("NVIDIA H200", "sm_90", 150_754_820_096, ATTRIBUTE_VALUES, "13.0", "580.65.06")


@pytest.mark.parametrize("device", facts.TABLE, ids=lambda d: d.key)
def test_the_table_is_sane(device: facts.DeviceFacts) -> None:
    """No figure is missing, units are what they say, and a device is found by its own key and name."""
    assert all(getattr(device, f.name) for f in fields(device))
    assert 5e11 < device.dram_bytes_per_s < device.l2_bytes_per_s < 1e14
    assert 1e13 < device.fp32_flops < device.fp16_tensor_flops < 1e16
    assert device.shared_per_block_max < device.shared_per_sm <= 228 * 1024
    assert 0.8 < device.achievable_fraction < 1
    assert 4e5 < device.in_flight_bytes() < 1e7
    assert facts.by_name(device.name) is device
    assert facts.by_name(device.key) is device
    assert facts.by_arch(device.arch) is not None


def test_names_that_are_not_in_the_table() -> None:
    assert facts.by_name("NVIDIA GeForce RTX 4090") is None
    assert facts.by_name("NVIDIA A10") is None
    assert facts.by_arch("sm_75") is None


def test_the_cpu_device_predicts_for_the_named_architecture() -> None:
    assert devices.find("cpu").facts is facts.H200
    assert devices.find("cpu", "sm_80").facts is facts.A100
    assert devices.find("cpu", "h100").facts is facts.H100
    device = devices.find("cpu", "sm_100")
    assert not device.measures
    assert device.arch == "sm_100"
    assert "predicted" in device.describe()["device"]
    assert device.describe()["driver"] == "none"


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("sm90", "h200"), ("SM_90a", "h200"), ("90", "h200"), ("9.0", "h200"), ("compute_80", "a100"), ("sm_89", "l40s"),
        ("sm-100", "b200"), ("H100", "h100"), ("910b", "ascend910b3"), ("910B4", "ascend910b4"), ("snt9b", "ascend910b3"),
        ("Ascend-snt9b", "ascend910b3"), ("Ascend 910B2", "ascend910b2"),
    ],
)  # fmt: skip
def test_architectures_as_people_write_them(written: str, key: str) -> None:
    assert devices.find("npu" if key.startswith("ascend") else "cpu", written).facts.key == key


@pytest.mark.parametrize(
    ("name", "arch", "hint"),
    [("cud", None, "did you mean cuda?"), ("xyzzy", None, "known are"), ("cpu", "sm_91", "did you mean sm_90?")],
)
def test_an_unknown_device_is_a_usage_error(name: str, arch: str | None, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as error:
        devices.find(name, arch)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` without a GPU is an error with what to do; without a name the cpu device takes its place."""
    monkeypatch.setattr(cuda, "_probe", lambda: (None, "no NVIDIA driver"))
    with pytest.raises(NoDeviceError, match="--device cpu") as error:
        devices.find("cuda")
    assert error.value.exit_code == 3
    assert devices.find().name == "cpu"


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known card has the table's facts; another architecture is refused or left to the cpu device."""
    monkeypatch.setattr(cuda, "_probe", lambda: (AN_H200, ""))
    device = devices.find()
    assert device.name == "cuda"
    assert device.measures
    assert device.facts is facts.H200
    assert device.shared
    assert device.describe()["driver"] == "580.65.06"
    assert devices.find(None, "sm_80").name == "cpu"
    with pytest.raises(UsageError, match="sm_80"):
        devices.find("cuda", "sm_80")


def test_a_gpu_that_is_one_processs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    exclusive = replace(AN_H200, attributes={**ATTRIBUTE_VALUES, "compute_mode": 3})
    monkeypatch.setattr(cuda, "_probe", lambda: (exclusive, ""))
    assert not devices.find().shared


def test_several_gpus_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_probe", lambda: (replace(AN_H200, names=("NVIDIA H200", "NVIDIA H200")), ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.find().each == ((("CUDA_VISIBLE_DEVICES", "0"),), (("CUDA_VISIBLE_DEVICES", "1"),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert devices.find().each == ((("CUDA_VISIBLE_DEVICES", "2"),), (("CUDA_VISIBLE_DEVICES", "GPU-5"),))
    monkeypatch.setattr(cuda, "_probe", lambda: (replace(AN_H200, names=("NVIDIA H200", "NVIDIA A100")), ""))
    assert [card.name for card in devices.find().cards] == ["NVIDIA H200", "NVIDIA A100"]
    assert devices.find().each == ((),), "unlike ones are not for one benchmark"


def test_a_card_that_is_not_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a known card, or another card, is described by its driver's attributes."""
    card = replace(AN_H200, attributes={**ATTRIBUTE_VALUES, "sms": 60}, memory_bytes=70_000_000_000)
    monkeypatch.setattr(cuda, "_probe", lambda: (card, ""))
    found = devices.find("cuda").facts
    assert found.sms == 60
    assert found.dram_bytes_per_s == pytest.approx(4.9e12, rel=0.01)
    assert found.fp32_flops == pytest.approx(60 * 128 * 2 * 1.98e9)
    assert found.max_warps_per_sm == 64
    assert ATTRIBUTES.keys() == ATTRIBUTE_VALUES.keys()


def test_finding_a_device_imports_no_torch() -> None:
    code = "import sys; from kernelgen import devices; devices.find('cpu').describe(); devices.find();"
    code += "sys.exit(bool({'torch', 'triton', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_the_gpu_here() -> None:
    """The driver's and torch's views of the card agree."""
    import torch

    device = devices.find("cuda")
    properties = torch.cuda.get_device_properties(0)
    assert device.arch == f"sm_{properties.major}{properties.minor}"
    assert device.facts.sms == properties.multi_processor_count
    assert device.facts.l2_bytes == properties.L2_cache_size
    assert device.driver


def test_the_doctor_says_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = doctor.checks()
    assert len({f.name for f in findings}) == len(findings)
    assert all(f.found for f in findings)
    assert all(f.remedy for f in findings if f.state != "ok")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert doctor.compiler(gpu=True).state == "missing"
    assert doctor.compiler(gpu=False).state == "warn"


def test_the_doctor_says_what_candidates_are_held_to_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.isolation(gpu=False)
    assert "scrubbed environment" in found.found
    lines = ("no network (namespace)", "missing: landlock: the worker does not start with it: exited with 1: /dev/x")
    monkeypatch.setattr(doctor, "_confined", lambda gpu: lines)
    assert doctor.isolation(gpu=True) == doctor.Finding("isolation", "warn", lines[0], lines[1])


@pytest.mark.parametrize(
    ("torch", "triton", "state", "words"),
    [
        ("2.11.0+cu130", "3.6.0", "ok", "torch 2.11.0"),
        ("2.13.0+cpu", "3.7.1", "ok", "triton 3.7.1"),
        ("2.13.0", "3.6.0", "warn", "triton 3.7"),
        ("2.9.1", "3.5.0", "warn", "torch 2.11 with triton 3.6"),
        (None, "3.6.0", "missing", "torch not installed"),
        (None, None, "missing", "torch and triton not installed"),
    ],
)
def test_torch_and_triton_must_belong_together(torch: str | None, triton: str | None, state: str, words: str) -> None:
    found = doctor.pairing(torch, triton)
    assert found.state == state
    assert words in found.found + found.remedy


def test_a_cpu_torch_beside_a_gpu_is_noticed() -> None:
    assert doctor.torch_build("2.13.0+cpu", gpu=True).state == "warn"
    assert doctor.torch_build("2.13.0+cpu", gpu=False).state == "ok"
    assert doctor.torch_build("2.11.0+cu130", gpu=True).state == "ok"


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert doctor.cache().state == "missing"


class Nvml:
    """A library that says what a throttled H200 with a neighbour would, and nothing of its power."""

    def nvmlDeviceGetClockInfo(self, handle: object, clock: int, out: Any) -> int:
        out._obj.value = {nvml.SM: 1500, nvml.MEMORY: 3201}[clock]
        return 0

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int, out: Any) -> int:
        out._obj.value = 84
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: object, out: Any) -> int:
        return 3

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: object, out: Any) -> int:
        out._obj.value = 0x01 | 0x20
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: object, count: Any, room: None) -> int:
        count._obj.value = 2
        return 7


def test_how_a_gpu_is_while_it_is_measured() -> None:
    wanted = {"sm_mhz": 1500, "memory_mhz": 3201, "celsius": 84, "throttled": ["software thermal"]}
    assert nvml.read(Nvml(), ctypes.c_void_p()) == {**wanted, "compute_processes": 2}
    assert devices.find("cpu").state() == {}


@pytest.mark.gpu
def test_the_clocks_of_a_gpu_are_read() -> None:
    found = devices.find("cuda").state()
    assert found["sm_mhz"] > 0
    assert found["throttled"] is not None
