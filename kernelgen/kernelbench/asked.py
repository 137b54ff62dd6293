"""What is asked of every problem of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DTYPE = "float32"
"""KernelBench's own precision, in which problems are judged at their own shapes and timed."""
DTYPES = (DTYPE, "float16", "bfloat16")
"""In which small shapes can be judged: those of the spec that `import` writes."""

VARIABLES = {
    "OMP_NUM_THREADS": "1",  # there are many processes, and torch's threads would fight over the cores
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asks NVML: once CUDA is initialised, no fork can use it
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool for every problem would import torch to compile a kernel or two
}
"""Environment variables of every problem's process, whatever the user has."""


@dataclass(frozen=True)
class Asked:
    """The options of a run that a problem's outcome depends on."""

    rounds: int = 0
    """Of optimisation, after which a problem is judged and timed once more."""
    precision: str | None = None
    """What specs say of products of float32 matrices."""
    dtypes: tuple[str, ...] = (DTYPE,)
    """In which small shapes are judged; () for all that the spec lists."""

    def entry(self) -> dict[str, Any]:
        """As a problem's record has it."""
        return asdict(self) | {"dtypes": list(self.dtypes)}
