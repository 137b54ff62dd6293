"""An NVIDIA GPU: kernels are verified and measured on it."""

from __future__ import annotations

from functools import cache

from kernelgen.devices import facts, libcuda
from kernelgen.devices.device import Device, cards
from kernelgen.devices.facts import DeviceFacts
from kernelgen.devices.libcuda import Gpu
from kernelgen.errors import NoDeviceError, UsageError

NAME = "cuda"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEFAULT_MODE = 0
"""CU_COMPUTEMODE_DEFAULT of cuda.h: contexts of several processes at once."""
PRIORITY = 10
"""Taken before devices of a lower priority when none was named."""


@cache
def _probe() -> tuple[Gpu | None, str]:
    return libcuda.probe()


def present() -> bool:
    """Whether a GPU and its driver are here. Does not import torch."""
    return _probe()[0] is not None


def knows(arch: str) -> bool:
    """A GPU that is not here is compiled for by the device cpu."""
    return False


def open_device(arch: str | None) -> Device:
    """The first visible GPU. Raises NoDeviceError where there is none."""
    gpu, why = _probe()
    if gpu is None:
        raise NoDeviceError(f"--device cuda: {why}; use --device cpu to verify, compile and predict without a GPU")
    if arch is not None and arch != gpu.arch:
        raise UsageError(
            f"--arch {arch}: this machine's {gpu.name} is {gpu.arch}; use --device cpu to compile for {arch}"
        )
    known = facts.by_name(gpu.name)
    if known is None or not _same_card(known, gpu):
        known = facts_of(gpu)
    found = cards(gpu.names or (gpu.name,), VISIBLE)
    return Device(
        name=NAME, measures=True, facts=known, driver=gpu.driver, cuda=gpu.cuda, cards=found,
        shared=gpu.attributes["compute_mode"] == DEFAULT_MODE,
    )  # fmt: skip


def _same_card(known: DeviceFacts, gpu: Gpu) -> bool:
    """False for an H100 PCIe or NVL, a 40 GB A100, a MIG slice: the same name in part, another bandwidth."""
    # Drivers report up to 8 % more than the datasheet's decimal gigabytes.
    return known.sms == gpu.attributes["sms"] and 0.9 < gpu.memory_bytes / known.memory_bytes < 1.1


def facts_of(gpu: Gpu) -> DeviceFacts:
    """Facts of a GPU that the table does not have, from its driver's attributes."""
    a = gpu.attributes
    clock = a["clock_khz"] * 1e3
    lanes = 64 if gpu.arch in ("sm_75", "sm_80") else 128  # fp32 lanes an SM, CUDA C++ Programming Guide
    fp32 = a["sms"] * lanes * 2 * clock
    # Double data rate. Some drivers no longer report the memory clock; then a bandwidth is
    # assumed that no card of the class exceeds, so that no floor is ever above the truth.
    dram = 2 * a["memory_clock_khz"] * 1e3 * a["memory_bus_bits"] / 8 or 8e12
    return DeviceFacts(
        key=gpu.name.lower().replace(" ", "-"),
        name=gpu.name,
        arch=gpu.arch,
        sms=a["sms"],
        dram_bytes_per_s=dram,
        l2_bytes_per_s=max(2 * dram, 48 * a["sms"] * clock),
        fp32_flops=fp32,
        fp16_tensor_flops=16 * fp32,
        tf32_tensor_flops=8 * fp32,
        fp8_tensor_flops=32 * fp32,
        l2_bytes=a["l2_bytes"],
        memory_bytes=gpu.memory_bytes,
        registers_per_sm=a["registers_per_sm"],
        shared_per_sm=a["shared_per_sm"],
        shared_per_block_max=a["shared_per_block_max"],
        max_warps_per_sm=a["max_threads_per_sm"] // 32,
        max_programs_per_sm=a["max_programs_per_sm"],
        max_threads_per_block=a["max_threads_per_block"],
        dram_latency_s=0.5e-6,
        launch_latency_s=2.0e-6,
        achievable_fraction=0.88,
        source="the driver's device attributes; peaks computed from its clocks",
        shared_reserved=a["shared_reserved"],
    )
