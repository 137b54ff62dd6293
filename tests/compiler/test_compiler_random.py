"""Random small references: every kernel that the compiler makes of one agrees with torch, by the judge's own rules."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from random_references import over_dimensions, pointwise, reductions, scans, scatters, selections
from references import Sample, failures

RANDOM = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
TIMES = int(os.environ.get("KERNELGEN_RANDOM_TIMES", "1"))
"""How many times as many references as in a quick run: `make nightly` draws more."""


@settings(RANDOM, max_examples=40 * TIMES)
@given(pointwise())
def test_pointwise_trees_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])


@settings(RANDOM, max_examples=12 * TIMES)
@given(reductions())
def test_reduction_chains_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])


@settings(RANDOM, max_examples=8 * TIMES)
@given(over_dimensions())
def test_reductions_over_any_dimensions_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])


@settings(RANDOM, max_examples=6 * TIMES)
@given(scans())
def test_scans_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])


@settings(RANDOM, max_examples=3 * TIMES)
@given(selections())
def test_selections_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])


@settings(RANDOM, max_examples=5 * TIMES)
@given(scatters())
def test_scatters_agree_with_torch(sample: Sample) -> None:
    assert not (found := failures(sample, thorough=False)), "\n\n".join([sample.source(), *found])
