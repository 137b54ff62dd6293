"""Loading a candidate's file and a quartet's modules inside a worker."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelgen.worker.operations import CompileError


@cache
def candidate(path: str, function: str) -> Callable[..., Any]:
    """The wrapper of a candidate's file. The same path gives the same module, so its kernels stay compiled.

    Raises CompileError where the file does not load or has no such function.
    """
    name = f"kernelgen_candidate_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks its kernels' globals up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CompileError(f"the module does not load: {type(error).__name__}: {error}") from error
    wrapper = getattr(module, function, None)
    if not callable(wrapper):
        raise CompileError(f"the module has no function {function}")
    return wrapper  # type: ignore[no-any-return]


@cache
def quartet(folder: str, name: str, part: str) -> ModuleType:
    """A module of the quartet: `part` is "accuracy", "performance", "baseline" or "triton"."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"{name}_{part}")
