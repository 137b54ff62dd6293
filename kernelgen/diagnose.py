"""From what was seen of a kernel to what holds it back, and which strategies could win how much of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kernelgen.analysis import Work
from kernelgen.devices import DeviceFacts, Peaks
from kernelgen.outcomes import CaseTiming, Counters, StaticFacts

BOTTLENECKS = ("memory bandwidth", "cache", "parallelism", "latency", "compute", "launch overhead")

LAUNCH_SHARE = 0.5
"""Above this share of the time spent in the launch itself no schedule helps: half of it is out of reach."""
BANDWIDTH_SATURATED = 0.75
"""Share of the DRAM peak from which the bandwidth is the limit: a plain large copy reaches 0.85 to 0.9."""
COMPUTE_SATURATED = 0.6
"""Share of the arithmetic peak from which arithmetic is the limit: tuned matrix kernels reach 0.6 to 0.8."""
MATRIX_SATURATED = 0.6
"""Share of the matrix units' peak from which they are the limit: the best kernels reach 0.65 to 0.7 (predict.py)."""
EPILOGUE = 0.3
"""A result whose bytes take more than this share of the least time of its products is stored, not multiplied, in much
of the time: the sums are short."""
FULL_WAVES = 1.0
"""With fewer programs than the device can hold at once, some of it idles from start to end."""
TAIL_WAVES = 4.0
"""With more waves than this, a partly filled last one costs less than a few per cent."""
TAIL_WASTE = 0.15
"""Share of all program slots left empty in the last wave from which balance matters more than the rest."""
SMALL = 100
"""A launch with less than one part in so many of the largest one's threads is not what takes the time."""
OVERFETCH = 1.25
"""DRAM traffic over the bytes the operator must move; above it data is fetched again that a cache should have kept."""
LOW_L2_HIT = 0.5
"""Below this hit rate traffic beyond the needed bytes is the L2's failure, however slow the kernel is."""
BUSY = 0.5
"""Share of the DRAM peak from which traffic beyond the needed bytes costs time even if the caches hit."""

SHARE: Mapping[str, Mapping[str, float]] = {
    # What part of the time above the floor each strategy can plausibly win back. The strategies that lead a row are
    # the customary direction: cache -> reuse and block size, parallelism -> grid, latency -> warps and stages,
    # compute -> block size and warps. grid_config stands above custom twice, first for bandwidth (custom: memory
    # access) and level with the first for latency: it switches the variant of the kernel, that is how often a row is
    # read and how much of it is in flight, and no other change was measured to matter as much.
    "memory bandwidth": {"memory_access": 0.5, "block_size": 0.4, "warp_stage": 0.3, "grid_config": 0.55,
                         "data_reuse": 0.25, "dynamic_shape": 0.1},
    "cache": {"data_reuse": 0.5, "block_size": 0.45, "memory_access": 0.4, "grid_config": 0.3, "warp_stage": 0.15,
              "dynamic_shape": 0.1},
    "parallelism": {"grid_config": 0.6, "block_size": 0.5, "warp_stage": 0.3, "dynamic_shape": 0.2,
                    "memory_access": 0.1, "data_reuse": 0.1},
    "latency": {"warp_stage": 0.5, "block_size": 0.45, "grid_config": 0.5, "memory_access": 0.3, "data_reuse": 0.2,
                "dynamic_shape": 0.1},
    "compute": {"block_size": 0.4, "warp_stage": 0.4, "data_reuse": 0.2, "grid_config": 0.2, "memory_access": 0.1,
                "dynamic_shape": 0.1},
    "launch overhead": {"grid_config": 0.1, "block_size": 0.1, "warp_stage": 0.1, "dynamic_shape": 0.05,
                        "memory_access": 0.02, "data_reuse": 0.02},
}  # fmt: skip

CEILING: Mapping[str, float] = {
    "grid_config": 0.20, "block_size": 0.30, "warp_stage": 0.20, "memory_access": 0.15, "data_reuse": 0.20,
    "dynamic_shape": 0.15,
}  # fmt: skip
"""The most a strategy is ever expected to gain in one round: the upper end of what is customary for each."""

UNKNOWN = 0.1
"""Share and ceiling of a strategy that the tables above do not know."""
WRITTEN = {"llm": 0.5, "tune": 0.5}
"""Share and ceiling of strategies that may change anything of a kernel; the tables above are of single decisions."""

WHY: Mapping[str, str] = {
    "grid_config": "another grid spreads the work over the device differently",
    "block_size": "another block size changes how many programs there are and how many bytes each has in flight",
    "warp_stage": "more warps or stages put more loads in flight, fewer leave more registers to each",
    "memory_access": "wider accesses and cache hints move the same bytes in fewer transactions",
    "data_reuse": "data that several programs need is fetched once and kept",
    "dynamic_shape": "sizes that want different schedules each get their own",
    "llm": "a language model may write the kernel another way",
    "tune": "a search of all schedules finds what changes of single decisions do not",
}

BANDWIDTH = "bandwidth utilisation"

UNITS: Mapping[str, str] = {
    "cube": "cube unit", "vector": "vector unit", "scalar": "scalar unit", "mte1": "copies into the cube unit (MTE1)",
    "mte2": "loads (MTE2)", "mte3": "stores (MTE3)",
}  # fmt: skip
"""The units of an NPU's core, in words."""
SCALAR_BOUND = 0.5
"""Above this share of the time in the scalar unit elements are handled one by one, or only addresses are computed."""

LEAST_SHARE = 0.05
"""Of a time, what its kernels have at least beside calls of torch's that took longer than their floor."""

Figure = tuple[str, str, str]
"""A name, a value as it is shown, and where it is from."""


@dataclass(frozen=True)
class Seen:
    """All that is known of the current kernel on one case."""

    timing: CaseTiming
    work: Work
    facts: tuple[StaticFacts, ...] = ()
    """One for each kernel that a call launches."""
    counters: Counters | None = None


@dataclass(frozen=True)
class Advice:
    """A strategy, and what it is expected to bring."""

    strategy: str
    gain: float
    """Predicted current time over new time; 1.05 is 5 % faster."""
    reason: str
    known: str = ""
    """What earlier rounds like it came to, with counts; empty where there were none."""


class Learnt(Protocol):
    """What rounds of a strategy against a bottleneck came to."""

    @property
    def rounds(self) -> int: ...

    @property
    def gain(self) -> float:
        """The geometric mean over all of them, those that were not kept as 1."""

    @property
    def prior_rounds(self) -> float:
        """How many rounds the tables here count as."""

    @property
    def words(self) -> str: ...


Measured = Mapping[tuple[str, str], Learnt]
"""By bottleneck and strategy."""


@dataclass(frozen=True)
class Diagnosis:
    """What holds the kernel back on the case with the most to win."""

    bottleneck: str
    """One of BOTTLENECKS."""
    case: str
    """The case the evidence is of."""
    evidence: tuple[Figure, ...]
    headroom: float
    """Geometric mean over the cases of the time over the least time possible, the launch included in both."""
    ranked: tuple[Advice, ...]
    """The largest predicted gain first."""

    def gain(self, strategy: str) -> float:
        return next((a.gain for a in self.ranked if a.strategy == strategy), 1.0)


def diagnose(
    seen: tuple[Seen, ...], device: Peaks, strategies: tuple[str, ...], measured: Measured | None = None
) -> Diagnosis:
    """The bottleneck on the case with the most to win, and the strategies ranked by what they could win on all.

    What earlier rounds came to moves what the tables expect, the further the more rounds there were.
    """
    measured = measured or {}
    worst = focus(seen, device)
    bottleneck, why = _bottleneck(worst, device)
    advice = [
        Advice(
            s, _expected(s, seen, device, measured), f"{why}; {WHY.get(s, s)}",
            measured[bottleneck, s].words if (bottleneck, s) in measured else "",
        )
        for s in strategies
    ]  # fmt: skip
    ranked = tuple(sorted(advice, key=lambda a: -a.gain))
    overall = geomean([headroom(s, device) for s in seen])
    return Diagnosis(bottleneck, worst.timing.case, evidence(worst, device), overall, ranked)


def focus(seen: tuple[Seen, ...], device: Peaks) -> Seen:
    """The case with the most to win; one that only waits for its launch has little, however far its floor."""
    return max(seen, key=lambda s: (headroom(s, device) - 1) * max(SHARE[_bottleneck(s, device)[0]].values()))


def _expected(strategy: str, seen: tuple[Seen, ...], device: Peaks, measured: Measured) -> float:
    """Geometric mean over the cases of what a strategy could win, each case having a bottleneck of its own."""
    ceiling = CEILING.get(strategy, WRITTEN.get(strategy, UNKNOWN))
    gains = []
    for one in seen:
        bottleneck, left = _bottleneck(one, device)[0], headroom(one, device)
        share = SHARE[bottleneck].get(strategy, WRITTEN.get(strategy, UNKNOWN))
        gains.append(min(_posterior(1 + min(ceiling, (left - 1) * share), measured.get((bottleneck, strategy))), left))
    return geomean(gains)


def _posterior(prior: float, learnt: Learnt | None) -> float:
    """The tables' gain and the measured one, each by the rounds it stands for."""
    if learnt is None:
        return prior
    rounds = learnt.rounds + learnt.prior_rounds
    return math.exp((learnt.prior_rounds * math.log(prior) + learnt.rounds * math.log(learnt.gain)) / rounds)


def bandwidth_utilisation(timing: CaseTiming, work: Work, device: Peaks) -> float:
    """The bytes the kernels must move over what the DRAM could have moved in their time, 0 to 1."""
    moved = work.bytes_read + work.bytes_written
    return moved / (kernel_seconds(timing, work, device) * device.dram_bytes_per_s)


def kernel_seconds(timing: CaseTiming, work: Work, device: Peaks) -> float:
    """The time without calls of torch's, which are taken at their floor: nobody times them apart."""
    whole = timing.time_us * 1e-6
    return max(whole - sum(call.seconds(device) for call in work.calls), LEAST_SHARE * whole)


def evidence(seen: Seen, device: Peaks) -> tuple[Figure, ...]:
    """Every figure the log must show of a case, each with its source; what could not be read says so."""
    timing, counters = seen.timing, seen.counters
    time_from = timing.source
    rows = [
        ("time", f"{timing.time_us:.2f} µs", time_from),
        ("share of roofline", _of_roofline(timing), f"{time_from}, roofline of {device.name}'s peaks"),
        (BANDWIDTH, _at_most(bandwidth_utilisation(timing, seen.work, device), seen.work),
         f"needed bytes over {time_from} time and peak"),
    ]  # fmt: skip
    if seen.work.calls:
        floor = sum(call.seconds(device) for call in seen.work.calls)
        rows.append(("torch's calls", f"{floor * 1e6:.2f} µs", "their floor, left out of the utilisation above"))
    rows += _multiplied(seen, device)
    if counters and counters.busy:
        rows += _units(counters)
    elif counters and counters.read:
        rows.append(_counted("DRAM throughput", counters, "dram_utilisation"))
        rows.append(_counted("L2 hit rate", counters, "l2_hit"))
        rows.append(_counted("L1 hit rate", counters, "l1_hit"))
        rows.append(_counted("achieved occupancy", counters, "achieved_occupancy"))
    else:  # throughput and occupancy would repeat the bandwidth above and the limit below
        rows.append(("L2, L1 hit rate", "not read", f"no counters: {counters.source}" if counters else "no counters"))
    if not (counters and counters.busy):
        rows.append(_counted("core (SM) utilisation", counters, "sm_utilisation"))
    for facts in seen.facts:
        name = f"{facts.kernel}: " if len(seen.facts) > 1 else ""
        compiled = f"compiled for {facts.arch}"
        if facts.buffer_bytes:
            rows += _buffered(name, facts, compiled)
            continue
        if name:
            rows.append((facts.kernel, _in_a_line(facts), compiled))
            continue
        rows += [
            ("occupancy limit", _percent(facts.occupancy), compiled),
            ("programs, waves", f"{_programs(facts)}, {facts.waves:.2f}", compiled),
            ("registers, spills, shared memory",
             f"{facts.registers}, {facts.spill_bytes} B, {facts.shared_bytes} B", compiled),
            ("widest load, store", f"{facts.load_bytes} B, {facts.store_bytes} B", compiled),
        ]  # fmt: skip
    if timing.call_us is not None:
        rows.append(("time of a whole call", f"{timing.call_us:.2f} µs", time_from))
    return tuple(rows)


def _share(computed: float, counted: float | None, work: Work) -> float:
    """How much of a peak is used. Where the data leaves out some of the work, what is computed from sizes is the most
    that it may be, and a counter knows better."""
    if not work.at_most:
        return computed
    return min(computed, 1.0) if counted is None else counted


def _at_most(share: float, work: Work) -> str:
    """A share of a peak; the most that it may be where the data says how much of the work is left out."""
    return f"at most {_percent(min(share, 1.0))}" if work.at_most else _percent(share)


def _in_a_line(facts: StaticFacts) -> str:
    """One kernel of several."""
    return (
        f"occupancy limit {_percent(facts.occupancy)}; {_programs(facts)} programs, {facts.waves:.2f} waves; "
        f"{facts.registers} registers, {facts.spill_bytes} B spilled, {facts.shared_bytes} B shared; "
        f"widest load {facts.load_bytes} B, store {facts.store_bytes} B"
    )


def _multiplied(seen: Seen, device: Peaks) -> list[Figure]:
    """The figures of products of matrices; none where the kernels have none."""
    products = [p for p in seen.work.products if p.flops]
    if not products:
        return []
    time_s = kernel_seconds(seen.timing, seen.work, device)
    rate = sum(p.flops for p in products) / time_s
    peak = sum(p.flops for p in products) / sum(p.seconds(device) for p in products)
    rate = min(rate, peak) if seen.work.at_most else rate
    most = "at most " if seen.work.at_most else ""
    rows: list[Figure] = [
        ("products", f"{most}{rate / 1e12:.0f} TFLOP/s, {_percent(rate / peak)} of the peak in {products[0].dtype}",
         f"2 M N K over {seen.timing.source} time"),
        ("epilogue", f"{_percent(_stored(seen.work, device))} of the products' least time",
         "the result's bytes at the peak bandwidth"),
    ]  # fmt: skip
    counters = seen.counters
    if counters and counters.matrix_utilisation is not None:
        rows.append(_counted("matrix pipe active", counters, "matrix_utilisation"))
    return rows


def _stored(work: Work, device: Peaks) -> float:
    """The least time of storing the results over that of the products."""
    return work.bytes_written / device.dram_bytes_per_s / sum(p.seconds(device) for p in work.products)


def _units(counters: Counters) -> list[Figure]:
    """What the units of an NPU's cores do with their time."""
    shares = [(f"{UNITS.get(unit, unit)} busy", _percent(share), counters.source) for unit, share in counters.busy]
    programs = str(counters.block_dim) if counters.block_dim else "not read"
    kernels = f"{counters.kernels_us:.2f} µs" if counters.kernels_us is not None else "not read"
    return [
        ("time of the kernels alone", kernels, counters.source),
        _counted("DRAM throughput", counters, "dram_utilisation"),
        *shares,
        ("programs side by side", programs, counters.source),
    ]


def _buffered(name: str, facts: StaticFacts, compiled: str) -> list[Figure]:
    """The figures of a kernel whose programs fill and empty buffers of their own."""
    return [
        (f"{name}programs, tiles per program", f"{_programs(facts)}, {facts.waves:.2f}", compiled),
        (f"{name}buffer", f"{facts.buffer_bytes} B, {_percent(facts.buffer_share)}", compiled),
        (f"{name}copies beside arithmetic", "yes" if facts.overlapped else "no", compiled),
        (f"{name}done element by element", str(facts.element_wise), compiled),
    ]


def _bottleneck(seen: Seen, device: Peaks) -> tuple[str, str]:
    """What limits one case, and the sentence that says why; the first rule that applies."""
    timing, work, counters = seen.timing, seen.work, seen.counters or Counters("none")
    time_s = kernel_seconds(timing, work, device)
    launches = max(1, len(seen.facts))
    launch = launches * device.launch_latency_s / time_s
    if launch > LAUNCH_SHARE:
        return "launch overhead", f"{_percent(min(launch, 1.0))} of the time is the launch itself"
    dram = device.dram_bytes_per_s
    bandwidth = bandwidth_utilisation(timing, work, device)
    bandwidth = _share(bandwidth, counters.dram_utilisation, work)
    said = f"the needed bytes alone use {_percent(bandwidth)} of the DRAM's peak"
    if work.at_most:
        said = f"the bytes use at most {_percent(bandwidth)} of the DRAM's peak"
        said = said if counters.dram_utilisation is None else f"the DRAM is at {_percent(bandwidth)} of its peak"
    traffic = max(bandwidth, counters.dram_utilisation or 0.0)
    if work.products and work.arithmetic_seconds(device) > (work.bytes_read + work.bytes_written) / dram:
        return _of_products(seen, device)
    arithmetic = _share(work.arithmetic_seconds(device) / time_s, counters.sm_utilisation, work)
    arithmetic = max(arithmetic, counters.sm_utilisation or 0.0)
    if arithmetic > COMPUTE_SATURATED and arithmetic > traffic:
        return "compute", f"arithmetic is at {_percent(arithmetic)} of its peak, memory only at {_percent(traffic)}"
    over = (counters.dram_utilisation or 0.0) / bandwidth if bandwidth else 0.0
    missed = counters.l2_hit is not None and counters.l2_hit < LOW_L2_HIT
    if over > OVERFETCH and (traffic > BUSY or missed):
        return "cache", f"the DRAM moves {over:.2f} times the bytes that are needed"
    if bandwidth >= BANDWIDTH_SATURATED:
        return "memory bandwidth", said
    units = dict(counters.busy)
    compute = max(units.get("vector", 0.0), units.get("cube", 0.0))
    if units.get("scalar", 0.0) > max(SCALAR_BOUND, compute):
        return "latency", f"the scalar unit is busy {_percent(units['scalar'])} of the time, element after element"
    if compute > max(COMPUTE_SATURATED, units.get("mte2", 0.0), units.get("mte3", 0.0)):
        return "compute", f"the units that compute are busy {_percent(compute)} of the time, longer than the copies"
    idle = _idle(seen.facts)
    if idle:
        return "parallelism", idle
    if any(f.element_wise for f in seen.facts):
        return "latency", "some accesses are made element by element, each of which waits for the one before"
    if any(f.spill_bytes for f in seen.facts):
        return "latency", "registers spill to memory, so every value kept there costs a round trip"
    return "latency", f"memory is at {_percent(traffic)} and arithmetic at {_percent(arithmetic)}: programs wait"


def _of_products(seen: Seen, device: Peaks) -> tuple[str, str]:
    """The bottleneck of a kernel that multiplies more than it moves."""
    work, counters = seen.work, seen.counters or Counters("none")
    share = work.arithmetic_seconds(device) / kernel_seconds(seen.timing, work, device)
    at = f"products are at {_percent(share)} of their peak"
    share = _share(share, counters.matrix_utilisation, work)
    if work.at_most:
        at = f"products are at most at {_percent(share)} of their peak, for the data leaves some out"
        if counters.matrix_utilisation is not None:
            at = f"the matrix units are active {_percent(share)} of the time"
    busy = max(share, counters.matrix_utilisation or 0.0)
    if busy >= MATRIX_SATURATED:
        return "compute", at
    if any(f.spill_bytes for f in seen.facts):
        return "latency", f"{at}: accumulators spill to memory, smaller tiles or more warps keep them in registers"
    main = max(seen.facts, key=lambda f: _programs(f) * f.num_warps, default=None)
    if main is not None and isinstance(device, DeviceFacts):
        programs, sms = _programs(main), device.sms
        if programs < sms:
            return "parallelism", f"{at}: {programs} programs for {sms} SMs, smaller tiles or split sums make more"
        idle = 1 - programs / (-(-programs // sms) * sms)
        if idle > TAIL_WASTE:
            return "parallelism", f"{at}: {programs} programs leave {_percent(idle)} of {sms} SMs' last round empty"
    if _stored(work, device) > EPILOGUE:
        return "latency", f"{at}: sums of {work.products[0].summed} are short and do not hide storing the result"
    return "latency", f"{at}: the loop over K waits, larger tiles need fewer operands and more stages load them ahead"


def _idle(facts: tuple[StaticFacts, ...]) -> str:
    """Why some of the device idles; empty where it does not. One that joins what others found may be small."""
    threads = [_programs(f) * f.num_warps for f in facts]
    for f in (f for f, own in zip(facts, threads, strict=True) if own * SMALL >= max(threads)):
        if f.waves < FULL_WAVES:
            return f"{_programs(f)} programs fill {_percent(f.waves)} of the places the device has"
        waste = 1 - f.waves / -(-f.waves // 1)
        if f.waves < TAIL_WAVES and waste > TAIL_WASTE:
            return f"{f.waves:.2f} waves leave {_percent(waste)} of the places empty"
    return ""


def headroom(seen: Seen, device: Peaks) -> float:
    """Time over the least time possible; the launch counts in the latter, since no schedule removes it."""
    launch = max(1, len(seen.facts)) * device.launch_latency_s * 1e6
    least = (seen.timing.floor_us or 0.0) + launch
    return max(1.0, seen.timing.time_us / least)


def _of_roofline(timing: CaseTiming) -> str:
    return _percent(timing.floor_us / timing.time_us) if timing.floor_us else "unknown"


def geomean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _counted(name: str, counters: Counters | None, field: str) -> Figure:
    value = getattr(counters, field) if counters else None
    return (name, _percent(value), counters.source) if counters and value is not None else (name, "not read", "-")


def _programs(facts: StaticFacts) -> int:
    count = 1
    for size in facts.grid:
        count *= size
    return count


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
