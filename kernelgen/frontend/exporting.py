"""`torch.export` without what nobody here reads of it, which is a third of its time.

What is left out decides nothing about operations, shapes or conditions on sizes that a reference depends on.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock


def exported_program(module: Any, inputs: tuple[Any, ...], dynamic: Sequence[Any], *, cached: bool = False) -> Any:
    """What `torch.export.export` makes of a module, on tensors without memory: the training IR, not strict.

    `dynamic`: the dimensions of every input that are sizes, all of them `Dim.AUTO`. `cached`: with torch's cache of
    what operations make of such tensors, which also asks fewer conditions on sizes. With symbolic sizes hardly an
    operation is met again, and keeping them takes a quarter of a trace. Raises whatever torch raises.
    """
    import torch
    import torch._dynamo.config

    with _floor_division(), _bare(), torch._dynamo.config.patch(fake_tensor_cache_enabled=cached):
        return torch.export.export(module, inputs, strict=False, dynamic_shapes=tuple(dynamic))


@contextlib.contextmanager
def _bare() -> Iterator[None]:
    """Without strides and memory formats beside the tensors of the trace, of which torch asks layouts by sizes;
    without Python text of graphs that are read as graphs; without solving the conditions on sizes for what a caller
    could write for `dynamic_shapes`, which no size that is AUTO needs; and without torch's own frames, fifty of them,
    and the text of lines in where an operation comes from.
    """
    from torch.fx import proxy
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental import proxy_tensor
    from torch.fx.experimental.symbolic_shapes import DimConstraints

    with (
        _use_lazy_graph_module(True),
        mock.patch.object(proxy_tensor, "_extract_tensor_metadata", _asked_of_elements),
        mock.patch.object(DimConstraints, "solve", _unsolved),
        mock.patch.object(proxy, "CapturedTraceback", _Frames),
    ):
        yield


def _asked_of_elements(tensor: Any) -> None:
    """In place of strides and memory formats, what torch asks first for them: a trace of an empty tensor, or of a
    single element, must say that it is one. It keeps no tensor, as a mock would."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    guard_or_false(tensor.numel() < 2)


def _unsolved(constraints: Any) -> None:
    """In place of a solution for `dynamic_shapes`."""


class _Frames:
    """As much of torch's `CapturedTraceback` as a node of a trace asks for: the frames that are not torch's."""

    @staticmethod
    def extract() -> _Frames:
        return _Frames()

    def summary(self) -> traceback.StackSummary:
        import torch

        own = str(Path(torch.__file__).parent)
        found = []
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(own):
                place = code.co_filename, frame.f_lineno, code.co_name
                found.append(traceback.FrameSummary(*place, lookup_line=False, line=""))
            frame = frame.f_back
        return traceback.StackSummary.from_list(reversed(found))


def _floor_division() -> Any:
    """Pooling's shapes by `//` alone: torch 2.11, unlike 2.13, also asks whether a remainder is zero, which ties the
    trace to the parity of its sizes although Python's `//` is right for both answers."""
    import torch._meta_registrations as shapes

    return mock.patch.object(shapes, "div_rtn", operator.floordiv)
