"""A sample of `tests/kill_runs.py`; `make nightly` has more."""

from __future__ import annotations

import kill_runs
import pytest

from kernelgen.llm.exchange import Exchange


def test_a_dozen_kills_lose_nothing_and_pay_nothing_twice() -> None:
    found = kill_runs.main(12, seed=7)
    assert found.faults == []
    assert found.kills == 12
    assert found.runs >= 2
    assert found.requests > 0


def test_a_model_that_is_asked_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not look into its journal before it asks."""
    monkeypatch.setattr(Exchange, "_known", lambda self, keys: {})
    assert kill_runs.main(40, seed=7).faults
