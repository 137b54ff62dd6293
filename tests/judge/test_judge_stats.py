"""Student's t against published tables, intervals, verdicts and the geometric mean."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgen.judge import stats

# two-sided 95 % and 99 % points, as printed in every table of Student's t
TABLE = [
    (0.975, 1, 12.7062),
    (0.975, 2, 4.30265),
    (0.975, 9, 2.26216),
    (0.975, 19, 2.09302),
    (0.975, 39, 2.02269),
    (0.975, 120, 1.97993),
    (0.995, 9, 3.24984),
    (0.95, 5, 2.01505),
]


@pytest.mark.parametrize(("p", "freedom", "wanted"), TABLE)
def test_t_quantile(p, freedom, wanted):
    assert stats.t_quantile(p, freedom) == pytest.approx(wanted, rel=2e-6)


def test_t_quantile_tends_to_the_normal_one():
    assert stats.t_quantile(0.975, 1e7) == pytest.approx(1.959964, rel=1e-6)


@given(st.floats(0.05, 50), st.floats(0.05, 50), st.floats(0.001, 0.999))
def test_incomplete_beta_is_symmetric_and_within_bounds(a, b, x):
    value = stats.incomplete_beta(a, b, x)
    assert -1e-12 <= value <= 1 + 1e-12
    assert value == pytest.approx(1 - stats.incomplete_beta(b, a, 1 - x), abs=1e-10)


@given(st.integers(1, 20), st.floats(0.01, 0.99))
def test_incomplete_beta_of_integers_is_a_binomial_sum(n, x):
    a = (n + 1) // 2
    b = n - a + 1
    binomial = math.fsum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
    assert stats.incomplete_beta(a, b, x) == pytest.approx(binomial, abs=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (1.011, 1.2, "faster"),
        (1.0, 1.2, "undecided"),
        (0.8, 0.989, "slower"),
        (0.8, 1.0, "undecided"),
        (0.995, 1.005, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_the_margin(low, high, wanted):
    assert stats.verdict(low, high) == wanted


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = random.Random(1)
    covered = 0
    for _ in range(2000):
        low, high = stats.over_blocks([rng.gauss(0.1, 0.02) for _ in range(10)]).interval
        covered += low <= math.exp(0.1) <= high
    assert 1870 <= covered <= 1930  # 95 % of 2000, three standard deviations either way


def test_the_geometric_mean_of_equal_estimates():
    one = stats.Estimate(math.log(2), 0.01, 9)
    mean = stats.geometric_mean([one] * 4)
    assert mean.ratio == pytest.approx(2)
    assert mean.std_error == pytest.approx(0.005)
    assert mean.freedom == pytest.approx(36)


def test_the_geometric_mean_of_exact_ratios_has_no_width():
    mean = stats.geometric_mean([stats.Estimate(math.log(2), 0, 9), stats.Estimate(math.log(8), 0, 9)])
    assert mean.interval == pytest.approx((4, 4))
