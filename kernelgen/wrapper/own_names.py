"""What a wrapper calls its own variables: shorter names, unless an input or output of the operator has one of these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kernelgen.spec.model import OperatorSpec

_OTHERWISE = {
    "M": "num_rows", "N": "num_cols", "n_elements": "num_elements", "num_parts": "parts_per_row",
    "num_tiles": "tile_count", "tiles": "tiles_per_row", "kernel": "chosen_kernel", "options": "launch",
    "grid": "programs",
}  # fmt: skip
"""What each is called where a tensor has its name."""


def own_names(
    spec: OperatorSpec, tensors: Iterable[str] = (), more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """What a wrapper calls each of its variables. `tensors`: those it has beside the spec's inputs and outputs; `more`:
    variables that few wrappers have, with their other names."""
    used = {*tensors, *(t.name for t in (*spec.inputs, *spec.outputs))}
    found = {}
    for name, other in {**_OTHERWISE, **more}.items():
        chosen = name if name not in used else other
        while chosen in used:
            chosen = f"launch_{chosen}"
        found[name] = chosen
        used.add(chosen)
    return found


def with_own(text: str, own: Mapping[str, str]) -> str:
    """An expression of the wrapper over its own variables, these called as `own` says. A tensor is read by an
    attribute, which no variable of the wrapper has, or whole where its own dimensions are asked for (`x if x.ndim`),
    and a keyword of a launch is the kernel's own."""
    changed = {name: other for name, other in own.items() if name != other}
    if not changed:
        return text
    return re.sub(rf"(?<![\w.])({'|'.join(changed)})\b(?!\.|=[^=]| if \1\.)", lambda found: changed[found[1]], text)
