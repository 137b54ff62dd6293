"""Which tests are slow, for conftest.py and the test that looks at what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

SLOW = {
    line.split(maxsplit=1)[1]
    for line in (Path(__file__).parent / "slow.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
}
"""Tests that are marked `slow` because of what they took."""
COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""Every test that was collected, those that -m leaves out too."""
