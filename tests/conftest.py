"""No test is about time: a busy machine that draws or runs an example slowly has found no fault."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("kernelgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelgen")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU are skipped where there is none, however pytest was called."""
    on_a_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_a_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_a_gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: torch.cuda.is_available() is false"))
