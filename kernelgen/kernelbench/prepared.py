"""What every problem needs, imported once: each is a fork of the process that imports this module.

Nothing here may ask for a GPU, which a fork could not use then, or start a thread, which a fork would not have.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import tempfile
from pathlib import Path

from kernelgen.kernelbench.asked import VARIABLES

_MODULES = (
    "torch.export",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "triton",
    "kernelgen.importer.process",
    "kernelgen.judge.performance",
    "kernelgen.kernelbench.problem",
    "kernelgen.kernelbench.tolerance",
    "kernelgen.worker.ahead",
)
_PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=-1)


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return [8]
"""


def prepare() -> None:
    """Import what a problem needs. One small problem is imported, and its kernel generated, for the modules that are
    loaded only when they are used."""
    os.environ.update(VARIABLES)  # torch reads them when it is imported
    for name in _MODULES:
        importlib.import_module(name)
    from kernelgen import generation
    from kernelgen.importer.process import imported
    from kernelgen.spec import load_spec

    with tempfile.TemporaryDirectory() as folder:
        file, spec = Path(folder) / "1_First.py", Path(folder) / "first.yaml"
        file.write_text(_PROBLEM, "utf-8")
        spec.write_text(imported(file, "first", None).text, "utf-8")
        generation.new(load_spec(spec), Path(folder) / "operators", force=True)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy what it looks at


try:
    prepare()
except Exception as error:  # a problem imports what is missing, or says what is wrong
    print(f"kernelbench: every problem imports for itself: {type(error).__name__}: {error}", file=sys.stderr)
