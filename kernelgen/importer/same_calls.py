"""Whether a reference calls what the file calls: both are run on tensors without memory, and what every result was
made of is compared. No size is too large for that, and no number can hide a weight that was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelgen.importer.load import Loaded, said
from kernelgen.importer.rewrite import Input
from kernelgen.importer.traced import as_traced, state_of, with_state

_SAME = ("alias", "detach", "lift_fresh", "lift_fresh_copy")
_BY_SHAPE = ("view", "_unsafe_view", "_reshape_alias", "expand")
"""Operations of which the shape of the result says all."""
_PLACES = ("device", "layout", "pin_memory")
_DRAWN = ("randn", "rand")


def differs(loaded: Loaded, function: Any, inputs: Sequence[Input]) -> str | None:
    """What differs between the calls of the file and those of the reference; None where nothing does."""
    import torch

    made = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs]
    log = _Calls()
    paths = [t.path or _path(loaded, t.value) or t.name for t in inputs]
    for value, path in zip(made, paths, strict=True):
        log.name(value, path)
    data = iter(m for m, t in zip(made, inputs, strict=True) if t.role == "data")
    arguments = [next(data) if isinstance(e, torch.Tensor) else e for e in loaded.examples]
    state = {path: m for m, t, path in zip(made, inputs, paths, strict=True) if t.role == "parameter"}
    with with_state(loaded.module, whole_state(loaded, state)), as_traced():
        wanted = log.results(lambda: loaded.call(*arguments))
    try:
        with as_traced():
            got = log.results(lambda: function(*made))
    except Exception as error:
        return f"the reference fails: {said(error)}"
    if len(wanted) != len(got):
        return "the reference returns another number of results"
    return None if wanted == got else log.first_difference()


def _path(loaded: Loaded, value: Any) -> str:
    """What the state dict calls a tensor; "" for one that is not in it."""
    module = loaded.module
    named = [] if module is None else [*module.named_parameters(), *module.named_buffers()]
    return next((path for path, other in named if other is value), "")


def whole_state(loaded: Loaded, state: dict[str, Any]) -> dict[str, Any]:
    """All that a module keeps without memory, those among it that the reference reads."""
    import torch

    rest = {
        kept.path: torch.empty(kept.value.shape, dtype=kept.value.dtype, device="meta")
        for kept in state_of(loaded) if kept.path not in state
    }  # fmt: skip
    return {**rest, **state}


class _Calls:
    """What tensors were made of: equal numbers are equal operations of equal operands."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.values: dict[int, tuple[Any, int]] = {}
        """The number of a tensor by its identity; the tensor is kept, so that nothing else gets that."""
        self.runs: list[list[tuple[int, str]]] = []

    def number(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def name(self, value: Any, name: str) -> None:
        self.values[id(value)] = value, self.number(name)

    def results(self, action: Any) -> tuple[int, ...]:
        """The numbers of what an action returns."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        before = dict(self.values)
        run: list[tuple[int, str]] = []
        self.runs.append(run)
        drawn = iter(range(1 << 30))

        class Logged(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(mode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = func(*args, **(kwargs or {}))
                self.note(func, args, kwargs or {}, found, run, drawn)
                return found

        with torch.no_grad(), Logged():  # type: ignore[no-untyped-call]
            found = action()
        results = found if isinstance(found, tuple | list) else (found,)
        numbers = tuple(self.key(value) for value in results)
        self.values = before
        return numbers

    def note(self, func: Any, args: Any, kwargs: Any, found: Any, run: list[tuple[int, str]], drawn: Any) -> None:
        """What a call made, or overwrote."""
        schema = func._schema
        name = schema.name.split("::")[1].rstrip("_")
        given = [
            args[i] if i < len(args) else kwargs.get(p.name, p.default_value if p.has_default_value() else None)
            for i, p in enumerate(schema.arguments)
            if p.name not in _PLACES
        ]
        several = isinstance(found, tuple | list)
        shape = () if several or not hasattr(found, "shape") else tuple(found.shape)
        first: Any = given[0] if given else None
        if name in _SAME or (name in (*_BY_SHAPE, "slice") and shape == tuple(first.shape)):
            self.values[id(found)] = found, self.key(first)
            return
        if name == "copy" and first._base is None and (given[1].shape, given[1].dtype) == (first.shape, first.dtype):
            self.values[id(first)] = first, self.key(given[1])
            return
        if name in _BY_SHAPE:
            key: Any = "view" if "expand" not in name else "expand", self.key(first), shape
        elif name in _DRAWN:
            key = f"drawn {next(drawn)}"
        else:
            if name.endswith("batch_norm") and given[5]:  # running statistics in training
                given = [*given[:3], *given[5:6], *given[7:]]
            rest = [self.key(value) for value in given]
            key = (name, *rest)
        number = self.number(key)
        run.append((number, name))
        for i, value in enumerate(found if several else (found,)):
            if hasattr(value, "shape"):
                self.values[id(value)] = value, self.number((number, i)) if several else number
        if schema.is_mutable and first is not None and getattr(first, "_base", None) is not None:
            base = first._base
            self.values[id(base)] = base, self.number(("written", self.key(base), number))

    def key(self, value: Any) -> Any:
        """What stands for an argument."""
        import torch

        if isinstance(value, torch.Tensor):
            known = self.values.get(id(value))
            if known is not None:
                return known[1]
            content = "" if value.device.type == "meta" or value.numel() > 64 else str(value.tolist())
            return ("made", tuple(value.shape), str(value.dtype), content)
        if isinstance(value, tuple | list):
            return tuple(self.key(v) for v in value)
        return repr(value)

    def first_difference(self) -> str:
        """The first call of the reference that the file does not have."""
        theirs = {number for number, _ in self.runs[0]}
        mine = next((name for number, name in self.runs[1] if number not in theirs), None)
        return f"the reference has another {mine}" if mine else "the reference returns something else"
