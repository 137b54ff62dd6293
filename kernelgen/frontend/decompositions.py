"""Operations without a rule, by torch's own decompositions.

The decomposition runs on the tensors without memory of the trace, and every operation that it calls is looked up in the
table, or decomposed in turn. What a statement of the reference calls is then several nodes of that statement.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelgen.frontend.build import Builder
from kernelgen.frontend.export import silence
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Refused, Result

Lower = Callable[[str, tuple[Any, ...], dict[str, Any], Any], Result]
"""The value of one operation by its rule: its name, its arguments with values for tensors, what it returns in the
trace. Raises Refused, and KeyError where the table has none."""
_DEEPEST = 12
"""Decompositions within decompositions."""
_READ_BY_NOBODY = ("_assert_", "sym_", "_is_any_true")


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    import torch._decomp
    import torch._refs.special  # registers its own

    return torch._decomp.decomposition_table


def decomposed(
    b: Builder, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Mapping[int, Any], lower: Lower
) -> Result:
    """What an operation without a rule comes to. `args`: as traced; `known`: the values of its tensors by their ids.

    Raises Refused for one that torch does not decompose, or into something that has no rule either.
    """
    if not _parts(target):
        raise Refused("")
    tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    before = b.state()
    hearing = _Hearing(b, known, lower)
    try:
        with silence(), _mode_of(tensors), hearing:
            result = hearing.called(target, args, kwargs)
        return _valued(hearing, result)
    except Refused:
        b.back_to(before)
        raise
    except Exception as error:  # torch's own functions, on tensors without memory
        b.back_to(before)
        raise Refused(f"what fails: {type(error).__name__}") from error


def _valued(hearing: _Hearing, result: Any) -> Result:
    if isinstance(result, torch.Tensor):
        return hearing.value(result)
    if isinstance(result, list | tuple) and all(isinstance(r, torch.Tensor) for r in result):
        return tuple(hearing.value(r) for r in result)
    raise Refused("a result that is not a tensor")


def _mode_of(tensors: list[torch.Tensor]) -> Any:
    modes = [x.fake_mode for x in tensors if isinstance(x, torch._subclasses.FakeTensor)]
    return modes[0] if modes else contextlib.nullcontext()


def _parts(target: Any) -> Callable[..., Any] | None:
    """The function that computes an operation by others."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    found = _decompositions().get(target)
    if found is not None:
        return found
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(target._name, implicit):
        return target.decompose
    return None


class _Hearing(TorchDispatchMode):
    """Looks up what is called meanwhile."""

    def __init__(self, b: Builder, known: Mapping[int, Any], lower: Lower) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.b, self.lower = b, lower
        self.values = dict(known)
        self.kept: list[Any] = []
        """What the ids belong to."""
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if any(part in name for part in _READ_BY_NOBODY):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        result = func(*args, **kwargs)
        leaves = torch.utils._pytree.tree_leaves(result)
        if not any(isinstance(x, torch.Tensor) for x in leaves):
            return result
        try:
            value = self.lower(name, self._argument(args), self._argument(kwargs), result)
        except (KeyError, Refused) as refusal:
            if _parts(func) is None or self.depth >= _DEEPEST:
                raise refusal if isinstance(refusal, Refused) else Refused(name.removeprefix("aten.")) from None
            with self:
                try:
                    return self.called(func, args, kwargs)
                except Refused as deeper:
                    raise refusal if isinstance(refusal, Refused) else deeper from None
        self._keep(result, value)
        return result

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives by its decomposition, whose operations are heard."""
        parts = _parts(func)
        assert parts is not None
        self.depth += 1
        try:
            return parts(*args, **kwargs)
        finally:
            self.depth -= 1

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that writes to a tensor which was made meanwhile and of which there is no view."""
        target, name = args[0], str(func)
        op, _, overload = name.removeprefix("aten.").partition(".")
        written = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        same = [x for x in self.kept if x.untyped_storage()._cdata == target.untyped_storage()._cdata]
        if len(written) != 1 or not op.endswith("_") or len(same) != 1 or same[0] is not target:
            raise Refused(f"{name.removeprefix('aten.')} within a decomposition")
        func(*args, **kwargs)  # before: what writes to a tensor's shape (squeeze_) has the new one for a result
        try:
            value = self.lower(f"aten.{op[:-1]}.{overload}", self._argument(args), self._argument(kwargs), target)
        except KeyError:
            raise Refused(name.removeprefix("aten.")) from None
        self.values[id(target)] = value
        return target

    def _keep(self, result: Any, value: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.kept.append(result)
            self.values[id(result)] = value
            return
        for one, own in zip(result, value, strict=True):
            self._keep(one, own)

    def value(self, tensor: torch.Tensor) -> Ref:
        if id(tensor) not in self.values:
            raise Refused("a tensor created in a decomposition")
        found = self.values[id(tensor)]
        assert isinstance(found, Ref)
        return found

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.value(value)
        if isinstance(value, list | tuple):
            return type(value)(self._argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self._argument(v) for k, v in value.items()}
        return value
