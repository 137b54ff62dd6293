"""The one table of what a device can do: limits that a launch must respect and peaks that a floor is computed from.

Sources, named in short below:
  guide      CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability"
  A100       NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020) and the A100 80 GB datasheet
  L40S       NVIDIA L40S datasheet; Ada: NVIDIA Ada GPU Architecture whitepaper (2022)
  H100       NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022) and the H100 datasheet, column SXM
  H200       NVIDIA H200 Tensor Core GPU datasheet, column SXM
  B200       NVIDIA HGX B200 datasheet, an eighth of the system's figures; Blackwell Tuning Guide
  device     the card's own attributes (cuDeviceGetAttribute)
  compiler   what the Ascend compiler of ascendnpu-ir 1.2.0 takes each target for (UB, L1, L0, cores)
  catlass    hicann/catlass, arch.hpp: buffers, cores and L2 of an Ascend 910B3
  msprof     the rated frequency that msprof reports of a 910B (OpBasicInfo.csv)
  estimate   no document states it; close enough to rank kernels, never used for a limit or a floor
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True)
class Peaks:
    """What every device has: bandwidths in bytes a second, arithmetic in operations a second, peaks as the vendor's."""

    key: str
    """Short name, such as "h200"."""
    name: str
    """What people call it, such as "NVIDIA H200"."""
    arch: str
    """Such as "sm_90"."""
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    """Read bandwidth of the L2 (estimate: bytes a clock of the whitepaper times the boost clock)."""
    fp32_flops: float
    fp16_tensor_flops: float
    """Dense fp16 or bf16 on the matrix units, fp32 accumulation."""
    tf32_tensor_flops: float
    """float32 read as TF32."""
    fp8_tensor_flops: float
    """float8; as float16 where the matrix units take none."""
    l2_bytes: int
    memory_bytes: int
    dram_latency_s: float
    """Time from a load to its data, for Little's law (estimate: pointer-chasing benchmarks say 0.4 to 0.7 µs)."""
    launch_latency_s: float
    """Device time of a kernel that does nothing (estimate)."""
    achievable_fraction: float
    """The share of `dram_bytes_per_s` that a plain large copy reaches."""
    source: str
    """Where the figures are from."""

    def product_flops(self, dtype: str) -> float:
        """Operations a second of products of matrices of a dtype, or of float32 read as "tf32" or as "tf32x3", three
        products of that, summed in fp32; float32 itself is multiplied without the matrix units."""
        matrix = {"tf32": self.tf32_tensor_flops, "float16": self.fp16_tensor_flops, "bfloat16": self.fp16_tensor_flops}
        matrix |= {"float8_e4m3fn": self.fp8_tensor_flops, "float8_e5m2": self.fp8_tensor_flops}
        matrix["tf32x3"] = self.tf32_tensor_flops / 3
        return matrix.get(dtype, self.fp32_flops)

    def in_flight_bytes(self) -> float:
        """Bytes that must be on their way at any moment to keep the DRAM busy (Little's law)."""
        return self.dram_bytes_per_s * self.dram_latency_s


@dataclass(frozen=True)
class DeviceFacts(Peaks):
    """An NVIDIA GPU."""

    sms: int
    registers_per_sm: int
    shared_per_sm: int
    shared_per_block_max: int
    max_warps_per_sm: int
    max_programs_per_sm: int
    """Resident thread blocks an SM can hold."""
    max_threads_per_block: int
    registers_per_thread_max: int = 255
    register_allocation: int = 256
    """Registers are handed to a warp in multiples of this (CUDA Occupancy Calculator, capability 3.0 and later)."""
    shared_reserved: int = 1 * KIB
    """Shared memory the system takes for itself from each resident block (guide: 1 KB from capability 8.0 on)."""


@dataclass(frozen=True)
class NpuFacts(Peaks):
    """An Ascend NPU: cores with buffers that programs fill and empty themselves."""

    cube_cores: int
    vector_cores: int
    clock_hz: float
    ub_bytes: int = 192 * KIB  # compiler, catlass
    """Unified buffer of a vector core: what the tiles of a vector kernel must fit in."""
    ub_alignment: int = 32  # compiler
    """Bytes of which rows in the unified buffer are multiples."""
    l1_bytes: int = 512 * KIB  # compiler, catlass
    l0a_bytes: int = 64 * KIB  # compiler, catlass
    l0b_bytes: int = 64 * KIB  # compiler, catlass
    l0c_bytes: int = 128 * KIB  # compiler, catlass
    max_grid: int = 65535
    """Programs of a launch; more crash it (triton-ascend documents the limit of coreDim)."""

    @property
    def compiler_target(self) -> str:
        """What the Ascend compiler calls it, such as "Ascend910B3"."""
        return self.name.removeprefix("Huawei ").replace(" ", "")


A100 = DeviceFacts(
    key="a100",
    name="NVIDIA A100-SXM4-80GB",
    arch="sm_80",
    sms=108,  # A100
    dram_bytes_per_s=2.039e12,  # A100: 2039 GB/s
    l2_bytes_per_s=5120 * 1.410e9,  # A100: 5120 bytes a clock, 1410 MHz
    fp32_flops=19.5e12,  # A100
    fp16_tensor_flops=312e12,  # A100, dense
    tf32_tensor_flops=156e12,  # A100, dense
    fp8_tensor_flops=312e12,  # A100: no float8
    l2_bytes=40 * MIB,  # A100
    memory_bytes=80 * 10**9,  # A100
    registers_per_sm=65536,  # guide
    shared_per_sm=164 * KIB,  # guide
    shared_per_block_max=163 * KIB,  # guide
    max_warps_per_sm=64,  # guide
    max_programs_per_sm=32,  # guide
    max_threads_per_block=1024,  # guide
    dram_latency_s=0.45e-6,  # estimate
    launch_latency_s=2.0e-6,  # estimate
    achievable_fraction=0.88,  # estimate, as measured on the H200
    source="A100 80 GB datasheet and whitepaper; CUDA C++ Programming Guide",
)

L40S = DeviceFacts(
    key="l40s",
    name="NVIDIA L40S",
    arch="sm_89",
    sms=142,  # L40S: 18176 CUDA cores, 128 an SM
    dram_bytes_per_s=0.864e12,  # L40S: 864 GB/s
    l2_bytes_per_s=5120 * 2.52e9 / 2,  # estimate: half as wide as the A100's, 2520 MHz
    fp32_flops=91.6e12,  # L40S
    fp16_tensor_flops=362e12,  # L40S, dense
    tf32_tensor_flops=183e12,  # L40S, dense
    fp8_tensor_flops=733e12,  # L40S, dense
    l2_bytes=96 * MIB,  # Ada whitepaper: the whole AD102
    memory_bytes=48 * 10**9,  # L40S
    registers_per_sm=65536,  # guide
    shared_per_sm=100 * KIB,  # guide
    shared_per_block_max=99 * KIB,  # guide
    max_warps_per_sm=48,  # guide
    max_programs_per_sm=24,  # guide
    max_threads_per_block=1024,  # guide
    dram_latency_s=0.5e-6,  # estimate
    launch_latency_s=2.0e-6,  # estimate
    achievable_fraction=0.88,  # estimate, as measured on the H200
    source="L40S datasheet; Ada architecture whitepaper; CUDA C++ Programming Guide",
)

H100 = DeviceFacts(
    key="h100",
    name="NVIDIA H100 80GB HBM3",
    arch="sm_90",
    sms=132,  # H100, SXM5
    dram_bytes_per_s=3.35e12,  # H100: 3.35 TB/s
    l2_bytes_per_s=5120 * 1.755e9,  # estimate: as wide as the A100's, 1755 MHz
    fp32_flops=67e12,  # H100
    fp16_tensor_flops=989.4e12,  # H100, dense
    tf32_tensor_flops=494.7e12,  # H100, dense
    fp8_tensor_flops=1978.9e12,  # H100, dense
    l2_bytes=50 * MIB,  # H100
    memory_bytes=80 * 10**9,  # H100
    registers_per_sm=65536,  # guide
    shared_per_sm=228 * KIB,  # guide
    shared_per_block_max=227 * KIB,  # guide
    max_warps_per_sm=64,  # guide
    max_programs_per_sm=32,  # guide
    max_threads_per_block=1024,  # guide
    dram_latency_s=0.5e-6,  # estimate
    launch_latency_s=2.0e-6,  # estimate
    achievable_fraction=0.88,  # estimate, as measured on the H200
    source="H100 SXM datasheet and whitepaper; CUDA C++ Programming Guide",
)

H200 = DeviceFacts(
    key="h200",
    name="NVIDIA H200",
    arch="sm_90",
    sms=132,  # device; the H100's GH100 die
    dram_bytes_per_s=4.8e12,  # H200: 4.8 TB/s
    l2_bytes_per_s=5120 * 1.98e9,  # estimate: as wide as the A100's, 1980 MHz
    fp32_flops=67e12,  # H200
    fp16_tensor_flops=989.5e12,  # H200: 1979 with sparsity, halved
    tf32_tensor_flops=494.75e12,  # H200: half of fp16
    fp8_tensor_flops=1979e12,  # H200: 3958 with sparsity, halved
    l2_bytes=60 * MIB,  # device; the full GH100's 60 MB (H100 whitepaper)
    memory_bytes=141 * 10**9,  # H200
    registers_per_sm=65536,  # guide
    shared_per_sm=228 * KIB,  # guide
    shared_per_block_max=227 * KIB,  # guide
    max_warps_per_sm=64,  # guide
    max_programs_per_sm=32,  # guide
    max_threads_per_block=1024,  # guide
    dram_latency_s=0.5e-6,  # estimate
    launch_latency_s=2.0e-6,  # estimate
    achievable_fraction=0.883,  # measured: a 2 GiB copy in torch 2.11 moved 4.24 of 4.8 TB/s
    source="H200 SXM datasheet; CUDA C++ Programming Guide",
)

B200 = DeviceFacts(
    key="b200",
    name="NVIDIA B200",
    arch="sm_100",
    sms=148,  # device; 74 on each of two dies
    dram_bytes_per_s=8.0e12,  # B200: up to 8 TB/s
    l2_bytes_per_s=2 * 5120 * 1.965e9,  # estimate: two dies as wide as the A100's, 1965 MHz
    fp32_flops=75e12,  # B200: 600 TFLOPS in a system of eight
    fp16_tensor_flops=2250e12,  # B200: 36 PFLOPS with sparsity in a system of eight, halved
    tf32_tensor_flops=1125e12,  # B200: 18 PFLOPS with sparsity in a system of eight, halved
    fp8_tensor_flops=4500e12,  # B200: 72 PFLOPS with sparsity in a system of eight, halved
    l2_bytes=126 * MIB,  # B200, tuning guide
    memory_bytes=180 * 10**9,  # B200: 1.44 TB in a system of eight
    registers_per_sm=65536,  # guide
    shared_per_sm=228 * KIB,  # guide
    shared_per_block_max=227 * KIB,  # guide
    max_warps_per_sm=64,  # guide
    max_programs_per_sm=32,  # guide
    max_threads_per_block=1024,  # guide
    dram_latency_s=0.6e-6,  # estimate
    launch_latency_s=2.0e-6,  # estimate
    achievable_fraction=0.88,  # estimate, as measured on the H200
    source="HGX B200 datasheet; Blackwell Tuning Guide; CUDA C++ Programming Guide",
)

TABLE = (A100, L40S, H100, H200, B200)


def _ascend(variant: str, cubes: int, clock_hz: float, memory_gib: int, dram: float) -> NpuFacts:
    """One of the 910B family, which differ in cores, clock and memory alone."""
    return NpuFacts(
        key=f"ascend{variant.lower()}",
        name=f"Huawei Ascend {variant}",
        arch=f"ascend{variant.lower()}",
        dram_bytes_per_s=dram,  # estimate: from above, so that no floor is above the truth
        l2_bytes_per_s=2 * cubes * 64 * clock_hz,  # estimate: 64 bytes a clock and vector core
        fp32_flops=2 * cubes * 64 * 2 * clock_hz,  # estimate: 256-byte vectors, a multiply-add a lane and clock
        fp16_tensor_flops=cubes * 16**3 * 2 * clock_hz,  # a 16x16x16 product a clock and cube core
        tf32_tensor_flops=cubes * 16**3 * clock_hz,  # estimate: HF32 at half of that
        fp8_tensor_flops=cubes * 16**3 * 2 * clock_hz,  # catlass: no float8 of this family
        l2_bytes=192 * MIB,  # catlass
        memory_bytes=memory_gib * 2**30,
        dram_latency_s=0.6e-6,  # estimate
        launch_latency_s=5.0e-6,  # estimate: a launch of torch-npu's is never seen below that
        achievable_fraction=0.85,  # estimate
        source="cores and buffers: the Ascend compiler, catlass; clock: msprof; bandwidths and latencies are estimates",
        cube_cores=cubes,  # compiler
        vector_cores=2 * cubes,  # compiler
        clock_hz=clock_hz,  # msprof: 1800 MHz
    )


NPU_TABLE = (
    _ascend("910B1", 24, 1.8e9, 64, 1.6e12),
    _ascend("910B2", 24, 1.8e9, 64, 1.6e12),
    _ascend("910B2C", 24, 1.8e9, 64, 1.6e12),
    _ascend("910B3", 20, 1.8e9, 64, 1.6e12),
    _ascend("910B4", 20, 1.8e9, 32, 0.8e12),
)
"""The family in the order of the compiler's names. UB, L1 and L0 are the same in all of them."""

DEFAULT_BY_ARCH = {"sm_80": A100, "sm_89": L40S, "sm_90": H200, "sm_100": B200}
"""The device that stands for an architecture when only that was named."""


ALIASES = dict.fromkeys(("910b", "ascend910b", "snt9b", "ascendsnt9b"), "ascend910b3")
"""Names of the whole Ascend 910B family, `snt9b` in Huawei's cloud, and the member that stands for it."""
_CAPABILITY = re.compile(r"(?:sm|compute)?[_ -]?(\d{1,2})\.?(\d)a?")


def canonical(written: str) -> str:
    """An architecture as it is called here: `SM90`, `sm-90`, `sm_90a`, `compute_90`, `90` and `9.0` are `sm_90`, `910B`
    is an NPU of that family. What is neither stays, in lower case."""
    name = written.strip().lower()
    if found := _CAPABILITY.fullmatch(name):
        return f"sm_{found[1]}{found[2]}"
    plain = name.removeprefix("huawei").replace(" ", "").replace("-", "")
    if plain in ALIASES:
        return ALIASES[plain]
    return f"ascend{plain}" if plain.startswith("910b") else name


def by_arch(arch: str) -> DeviceFacts | None:
    """The default device of an architecture such as "sm_90"; None where the table has none."""
    return DEFAULT_BY_ARCH.get(arch)


def by_name(name: str) -> DeviceFacts | None:
    """The device whose key is a word of the name that the driver or torch reports, such as "NVIDIA H200"."""
    words = name.lower().replace("-", " ").split()
    return next((facts for facts in TABLE if facts.key in words), None)


def npu_by_name(name: str) -> NpuFacts | None:
    """The NPU that a target such as "ascend910b3", or a name that torch-npu reports such as "Ascend910B3", means."""
    wanted = name.lower().replace("huawei", "").replace(" ", "").partition("_")[0]
    return next((facts for facts in NPU_TABLE if wanted in (facts.key, facts.key.removeprefix("ascend"))), None)
