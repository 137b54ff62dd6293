"""The Ascend compiler without an NPU: kernels lowered, planned, and run on the CPU from the lowered form.

The compiler's packages and Triton overwrite each other, so they live in a virtual environment of their own (`venv`),
where `room` runs; what it says is kept on disk (`lowering`). Nothing here says anything of speed.
"""

from kernelgen.ascend.lowering import Finding, Lowered, Request, lower
from kernelgen.ascend.venv import PACKAGES, NotInstalled, create, environment, folder, folders, ready, require

__all__ = [
    "PACKAGES",
    "Finding",
    "Lowered",
    "NotInstalled",
    "Request",
    "create",
    "environment",
    "folder",
    "folders",
    "lower",
    "ready",
    "require",
]
