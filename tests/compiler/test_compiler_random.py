"""Random small references: every kernel that the compiler makes of one agrees with torch, by the judge's own rules."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis.strategies import SearchStrategy
from random_corners import beside_gathers, names, parts, single_elements, slices, truths
from random_moves import gathers, losses, moves, quantisation, windows
from random_products import products
from random_references import over_dimensions, pointwise, reductions, scans, scatters, selections
from random_views import views
from references import Sample, failures

from kernelgen.errors import UnsupportedError

TIMES = int(os.environ.get("KERNELGEN_RANDOM_TIMES", "1"))
"""How many times as many references as in a whole run: `make nightly` draws more, and others every night."""
RANDOM = settings(
    deadline=None, derandomize=TIMES == 1, print_blob=True, database=None, suppress_health_check=list(HealthCheck)
)

FAMILIES: dict[str, tuple[Callable[[], SearchStrategy[Sample]], int]] = {
    "pointwise trees": (pointwise, 55), "reduction chains": (reductions, 24), "scans": (scans, 12),
    "reductions over any dimensions": (over_dimensions, 16), "selections": (selections, 5), "scatters": (scatters, 10),
    "moves": (moves, 34), "gathers": (gathers, 14), "windows": (windows, 10), "quantisation": (quantisation, 10),
    "losses": (losses, 18), "truth values": (truths, 12), "slices": (slices, 8), "single elements": (single_elements, 8),
    "gathers beside broadcasts": (beside_gathers, 8), "names": (names, 10), "products": (products, 10), "writes to parts": (parts, 8),
    "views": (views, 24),
}  # fmt: skip
"""What is drawn, and how many of each in a whole run: 272."""
PART = 20
"""Of so many one is drawn in a quick run."""
MAY_REFUSE = {
    *("moves", "gathers", "windows", "losses", "truth values", "single elements", "gathers beside broadcasts", "names"),
    "products",
}
"""Of these some are refused, such as a reduction of what two places of a row read; the others never are."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_random_references_agree_with_torch(family: str) -> None:
    agree(family, math.ceil(FAMILIES[family][1] / PART))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_random_references_agree_with_torch(family: str) -> None:
    agree(family, FAMILIES[family][1] * TIMES)


def agree(family: str, count: int) -> None:
    strategy, _ = FAMILIES[family]

    @settings(RANDOM, max_examples=count)
    @given(strategy())
    def agrees(sample: Sample) -> None:
        try:
            found = failures(sample, thorough=False, most=4)
        except UnsupportedError:
            if family in MAY_REFUSE:
                reject()
            raise
        assert not found, "\n\n".join([sample.source(), *found])

    agrees()
