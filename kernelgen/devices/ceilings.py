"""What a device was measured to reach, kept in the cache: what its data sheet promises is in `facts.py`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernelgen.devices.device import cache_folder
from kernelgen.devices.facts import DeviceFacts
from kernelgen.errors import UsageError
from kernelgen.files import write_atomic

FORM = 1


@dataclass(frozen=True)
class Rate:
    """Something moved or computed, so much a second."""

    what: str
    """`copy`, `read`, `write`, `fill`; `matrix DTYPE`; `launch`, `host call`; `atomics`, `atomics on one address`."""
    size: int
    """Bytes of the largest tensor; of matrices rows, columns and depth."""
    per_s: float
    """Bytes, operations, launches or additions a second."""


@dataclass(frozen=True)
class Ceilings:
    """One device's."""

    device: str
    torch: str
    date: str
    l2_bytes: int
    """0: not known."""
    rates: tuple[Rate, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """What could not be measured, and why."""

    def best(self, what: str, least: int = 0, most: int | None = None) -> float | None:
        """The highest rate of a kind among sizes from and to these; None where none was measured."""
        found = [r.per_s for r in self.rates if r.what == what and least <= r.size and (most is None or r.size <= most)]
        return max(found, default=None)

    @property
    def dram(self) -> float | None:
        """Bytes a second of a plain copy of tensors that no cache holds."""
        return self.best("copy", least=4 * self.l2_bytes)

    @property
    def l2(self) -> float | None:
        """Bytes a second of reading what the L2 holds again and again."""
        return self.best("read", most=self.l2_bytes // 2) if self.l2_bytes else None


def path_of(device: str) -> Path:
    return cache_folder() / "ceilings" / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def save(found: Ceilings) -> Path:
    """Keep them for this device; earlier ones are replaced."""
    path = path_of(found.device)
    write_atomic(path, json.dumps({"form": FORM, **asdict(found)}, indent=1) + "\n")
    return path


def known(device: str) -> Ceilings | None:
    """What was measured of a device here. Raises UsageError for a file that is damaged or of a newer form."""
    path = path_of(device)
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["form"] > FORM:
            raise UsageError(f"{path}: written by a newer kernelgen (format {data['form']}; this version reads {FORM})")
        return _from_json(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path}: is damaged: `kernelgen hardware --measure` writes it again") from None


def _from_json(data: dict[str, Any]) -> Ceilings:
    names = [field.name for field in fields(Ceilings)]
    rates = tuple(Rate(str(r["what"]), int(r["size"]), float(r["per_s"])) for r in data["rates"])
    left_out = tuple((str(what), str(why)) for what, why in data["left_out"])
    return Ceilings(**{**{name: data[name] for name in names}, "rates": rates, "left_out": left_out})


def applied(facts: DeviceFacts) -> tuple[DeviceFacts, str]:
    """The facts with what was measured on this machine in place of estimates, and in words where that is from; the
    facts themselves and no words where nothing was. Peaks stay the data sheet's."""
    found = known(facts.name)
    if found is None:
        return facts, ""
    launches = found.best("launch")
    measured = replace(
        facts,
        achievable_fraction=min(found.dram / facts.dram_bytes_per_s, 1.0) if found.dram else facts.achievable_fraction,
        l2_bytes_per_s=found.l2 or facts.l2_bytes_per_s,
        launch_latency_s=1 / launches if launches else facts.launch_latency_s,
    )
    return measured, f"ceilings measured on {found.device}, {found.date}"
