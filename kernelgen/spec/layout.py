"""Constraints tried out on declared shapes, without a tensor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class _Dtype:
    """Compares equal to itself and has no order."""

    name: str


@dataclass(frozen=True)
class Layout:
    """A contiguous tensor of which only shape and dtype are known; answers what a constraint may ask."""

    shape: tuple[int, ...]
    dtype_name: str = "float32"
    is_npu: bool = True
    is_cuda: bool = True
    """Where a tensor is cannot be told from its shape: any place will do."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> _Dtype:
        return _Dtype(self.dtype_name)

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        total = 1
        for length in self.shape:
            total *= length
        return total

    def size(self, index: int) -> int:
        return self.shape[index]

    def stride(self, index: int) -> int:
        self.shape[index]  # raises IndexError as a tensor does
        return Layout(self.shape[index % len(self.shape) + 1 :]).numel()

    def is_contiguous(self) -> bool:
        return True


def broken(text: str, tensors: Mapping[str, object]) -> str | None:
    """Why a constraint that `constraints.check` accepts does not hold for these inputs; None where it holds, or where
    it is about a tensor that is left out."""
    # `constraints.check` has let nothing through but arithmetic and the questions that Layout answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(text.strip(), "<constraint>", "eval")
    try:
        holds = eval(code, {"__builtins__": {}, "len": len}, dict(tensors))
    except AttributeError:  # of None, which stands for a tensor that is left out
        return None
    except IndexError:
        return "asks for a dimension that is not there"
    except ZeroDivisionError:
        return "divides by zero"
    except TypeError:
        return "compares things that have no order or are not numbers"
    return None if holds else "does not hold"
