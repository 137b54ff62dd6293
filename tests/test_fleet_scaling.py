"""The simulation of docs/scaling.md: what must hold of it whatever its figures are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "benchmarks"))

import scaling

KNOWN = scaling.Measured("here", 0.001, 0.001, 0.001, 0.001, (4.0,), 6000)


def simulated(gpus: int, known: scaling.Measured = KNOWN) -> scaling.Result:
    return scaling.simulate(gpus, scaling.Assumed(), known, 5.0, 320)


def test_twice_the_gpus_take_half_the_time_as_long_as_nothing_limits() -> None:
    assert simulated(8).hours / simulated(16).hours == pytest.approx(2, rel=0.05)
    assert simulated(8).busy > 0.99


def test_a_slow_disk_limits_and_is_seen_to() -> None:
    slow = replace(KNOWN, shipment_s=0.5, candidate_s=0.05)
    few, many = simulated(32, slow), simulated(64, slow)
    assert few.driver > 0.95
    assert many.hours == pytest.approx(few.hours, rel=0.1)
    assert many.late_s > few.late_s
    assert scaling.limit(scaling.Assumed(), slow, 5.0) < 64 < scaling.limit(scaling.Assumed(), KNOWN, 5.0)


def test_the_page_says_what_the_command_does() -> None:
    page = scaling.PAGE.read_text("utf-8")
    assert "comes from a discrete-event simulation" in page
    assert page.count(scaling.BEGIN) == page.count(scaling.END) == 1
    assert page.count("| 512 |") == 2
