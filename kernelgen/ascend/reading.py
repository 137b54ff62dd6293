"""What a worker said of launches, as lines."""

from __future__ import annotations

from typing import Any

SLOW = ("scalar fallback", "int64", "multibuffer")
"""Findings that make a kernel slow; the others make it wrong or unable to run."""


def refusal(launch: dict[str, Any]) -> str:
    """Why a launch can never run as it should; empty where it can."""
    if launch["refused"]:
        return f"{launch['kernel']}: {launch['refused']}"
    severe = [f for f in launch["lowered"]["findings"] if f["kind"] not in SLOW]
    return f"{launch['kernel']}, line {severe[0]['line']}: {severe[0]['kind']}: {severe[0]['text']}" if severe else ""
