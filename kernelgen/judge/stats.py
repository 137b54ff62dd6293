"""Student's t without SciPy, the interval over blocks, and the geometric mean of several comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .model import Verdict

CONFIDENCE = 0.95
MARGIN = 0.01
"""A verdict needs the whole interval to be further from 1.00 than this."""


@dataclass(frozen=True)
class Estimate:
    """A mean of log ratios with its standard error and degrees of freedom."""

    log_mean: float
    std_error: float
    freedom: float

    @property
    def ratio(self) -> float:
        return math.exp(self.log_mean)

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the log ratio: to first order, relative to the ratio."""
        return t_quantile(0.5 + CONFIDENCE / 2, self.freedom) * self.std_error if self.std_error else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return math.exp(self.log_mean - self.half_width), math.exp(self.log_mean + self.half_width)


def over_blocks(values: Sequence[float]) -> Estimate:
    """The estimate from independent block values (at least two)."""
    n = len(values)
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(n), n - 1)


def verdict(low: float, high: float) -> Verdict:
    """faster or slower only where the whole interval clears the margin."""
    if low > 1 + MARGIN:
        return "faster"
    return "slower" if high < 1 - MARGIN else "undecided"


def geometric_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The geometric mean of independent ratios; degrees of freedom after Welch and Satterthwaite."""
    n = len(estimates)
    variances = [(e.std_error / n) ** 2 for e in estimates]
    total = math.fsum(variances)
    parts = math.fsum(v * v / e.freedom for v, e in zip(variances, estimates, strict=True))
    return Estimate(
        math.fsum(e.log_mean for e in estimates) / n, math.sqrt(total), total * total / parts if parts else 1.0
    )


@cache
def t_quantile(p: float, freedom: float) -> float:
    """The p-quantile of Student's t, p in [0.5, 1): bisection on the distribution function to 1e-12.

    The distribution function is 1 - I_x(v/2, 1/2) / 2 with x = v / (v + t^2) (DLMF 8.17; Abramowitz and Stegun 26.7.1).
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < p:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if _t_cdf(middle, freedom) < p:
            low = middle
        else:
            high = middle
    return high


def _t_cdf(t: float, freedom: float) -> float:
    return 1 - incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), from the continued fraction DLMF 8.17.22."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    return front / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), evaluated with the modified Lentz method (Thompson and Barnett 1986)."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for m in range(1, 1000):
        half = m // 2
        if m % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
