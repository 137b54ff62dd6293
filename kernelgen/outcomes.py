"""Typed outcomes: what became of a candidate, as frozen data that crosses processes as JSON.

Knows nothing of torch, specs or devices, so every room may import it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Source = Literal["measured", "predicted"]


class Status(StrEnum):
    """What became of a candidate."""

    OK = "ok"
    """Compiled, and where it was run, ran to its end."""
    COMPILE_ERROR = "compile_error"
    """Triton or ptxas refused it."""
    LAUNCH_ERROR = "launch_error"
    """It asks for more than the device has (shared memory, threads, registers)."""
    INCORRECT = "incorrect"
    """The accuracy test failed."""
    CRASHED = "crashed"
    """The worker died or the device reported a fault."""
    TIMEOUT = "timeout"
    """It did not finish within its time limit."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device's or the host's memory ran out."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval; ratios are dimensionless, above 1 is better."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f}x [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class StaticFacts:
    """What the compiled kernel says of itself, for one launch of one case."""

    kernel: str
    arch: str
    """Such as sm_90."""
    grid: tuple[int, ...]
    num_warps: int
    registers: int
    """Per thread."""
    spill_bytes: int
    """Stack and local memory per thread, bytes."""
    shared_bytes: int
    """Shared memory per program, bytes."""
    occupancy: float
    """Resident warps over the most an SM can hold, 0 to 1."""
    waves: float
    """Programs over the programs the device can hold at once."""
    load_bytes: int
    """The widest global load instruction, bytes a thread; 0 where the kernel loads nothing."""
    store_bytes: int
    """The widest global store instruction, bytes a thread."""
    loads: int = 0
    """Global load instructions in the kernel's text."""
    stores: int = 0
    buffer_bytes: int = 0
    """What a program takes of its core's own buffer, where the processor has such buffers and no registers to count."""
    buffer_share: float = 0.0
    overlapped: bool = False
    """Whether copies run beside arithmetic: everything has two buffers."""
    element_wise: int = 0
    """Accesses and operations in the kernel's text that are done element by element."""
    tile_elements: int = 0
    row_bytes: int = 0
    """What one copy moves in a row."""


@dataclass(frozen=True)
class CaseTiming:
    """One case: the candidate against what it is compared with."""

    case: str
    """The case's label."""
    source: Source
    time_us: float
    """Device time of the candidate, median of the samples, or the prediction."""
    against: str
    """`current`, `eager` or `compile`."""
    against_us: float
    speedup: float
    """against_us over time_us, paired where it was measured."""
    interval: Interval | None
    """Of the speedup; None for a prediction."""
    call_us: float | None = None
    """Wall time of a call of the candidate in a back-to-back loop, launch overhead included; None if not measured."""
    against_call_us: float | None = None
    floor_us: float | None = None
    """The least time physics allows."""


@dataclass(frozen=True)
class Counters:
    """What the profiler read for one launch; None where it could not be read."""

    source: str
    """Such as "ncu" or "computed from bytes and time"."""
    dram_utilisation: float | None = None
    """Achieved over peak DRAM throughput, 0 to 1."""
    l2_hit: float | None = None
    l1_hit: float | None = None
    achieved_occupancy: float | None = None
    sm_utilisation: float | None = None
    matrix_utilisation: float | None = None
    """The share of the time in which a GPU's matrix units multiply."""
    busy: tuple[tuple[str, float], ...] = ()
    """The share of the time that each unit of an NPU's cores worked: vector, cube, scalar, mte2 (loads), mte3 …"""
    block_dim: int = 0
    """Programs that ran side by side on an NPU; 0 where it is not known."""
    kernels_us: float | None = None
    """Time of one call's kernels by an NPU's profiler, which leaves the launches out."""

    @property
    def read(self) -> bool:
        """Whether a profiler read them; else they are worked out from the time, the bytes and the compiled kernel."""
        return self.source == "ncu" or bool(self.busy)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Counters:
        """The inverse of `to_json`."""
        return Counters(**{**data, "busy": tuple((unit, share) for unit, share in data.get("busy", ()))})


@dataclass(frozen=True)
class AccuracyResult:
    """One accuracy case as the judge reports it."""

    case: str
    passed: bool
    message: str
    max_error: float
    """Largest absolute error against the fp64 reference."""
    eager_error: float
    """PyTorch's own largest absolute error on the same inputs."""
    relative_error: float | None = None
    """Largest error over its element of the reference; None in a journal from before it was kept, as below."""
    l2_error: float | None = None
    """Norm of the errors over the norm of the reference."""
    bound_share: float | None = None
    """Largest error over the bound of its element: at most 1 in a pass."""
    peak_bytes: int | None = None
    """Device memory that a call takes beside its inputs; None where nobody counts it."""


@dataclass(frozen=True)
class Evaluation:
    """All that is known of one candidate after it was compiled, checked and timed as far as it got."""

    source_hash: str
    """SHA-256 of the candidate's `_triton.py`, first 16 hex digits."""
    status: Status
    message: str = ""
    """Why, when the status is not OK: one line."""
    facts: tuple[tuple[str, StaticFacts], ...] = ()
    """By case label."""
    accuracy: tuple[AccuracyResult, ...] = ()
    timings: tuple[CaseTiming, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """Cases that were not run, each with its reason (such as memory)."""
    counters: tuple[tuple[str, Counters], ...] = ()
    seconds: float = 0.0
    simulated_us: tuple[tuple[str, float], ...] = ()
    """By case label: times by the events of a device that is simulated, the speed of nothing. They are in no
    CaseTiming, so that no speedup can be made of them."""

    def speedups(self, against: str) -> tuple[CaseTiming, ...]:
        return tuple(t for t in self.timings if t.against == against)


def to_json(value: Any) -> Any:
    """Plain JSON data of any outcome."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value


def evaluation_from_json(data: dict[str, Any]) -> Evaluation:
    """The inverse of `to_json` for an Evaluation; raises TypeError or KeyError on data of another form."""
    return Evaluation(
        source_hash=data["source_hash"],
        status=Status(data["status"]),
        message=data["message"],
        facts=tuple((label, StaticFacts(**{**f, "grid": tuple(f["grid"])})) for label, f in data["facts"]),
        accuracy=tuple(AccuracyResult(**a) for a in data["accuracy"]),
        timings=tuple(timing_from_json(t) for t in data["timings"]),
        left_out=tuple((label, why) for label, why in data["left_out"]),
        counters=tuple((label, Counters.from_json(c)) for label, c in data["counters"]),
        seconds=data["seconds"],
        simulated_us=tuple((label, time) for label, time in data.get("simulated_us", ())),
    )


def timing_from_json(data: dict[str, Any]) -> CaseTiming:
    """The inverse of `to_json` for a CaseTiming."""
    interval = data["interval"]
    return CaseTiming(**{**data, "interval": Interval(**interval) if interval else None})
