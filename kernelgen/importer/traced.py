"""A module or a function as `torch.export` sees it: one call after another, with parameters as inputs.

Nested modules, own methods, loops over layers, checks of shapes and everything else of Python's are gone there. Nothing
is computed: tensors have shapes but no memory.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from kernelgen.errors import SpecError
from kernelgen.importer.load import Loaded, raised_at, said

STATISTICS = "num_batches_tracked"
"""What a norm in training counts, and nothing of its result needs."""

FREE_WIDTHS = 64
"""Up to so many parameters and buffers of a module have free sizes; of hundreds of sizes torch follows none in time."""


@dataclass(frozen=True)
class State:
    """A parameter or buffer of the module."""

    path: str
    """`layers.0.weight`, as the state dict has it."""
    value: Any


@dataclass(frozen=True)
class Traced:
    """What torch.export made of a module or function."""

    nodes: tuple[Any, ...]
    """Its operations in order, in terms of one another."""
    data: tuple[Any, ...]
    """The placeholders of the arguments that are tensors, in order."""
    state: dict[Any, State]
    """The placeholders of parameters and buffers."""
    constants: dict[Any, Any]
    """The placeholders of tensors that forward makes from numbers of its own."""
    outputs: tuple[Any, ...]
    drawn: tuple[Any, ...] = ()
    """What forward draws at random and its results follow from: arguments of the reference."""
    followed: tuple[tuple[Any, int | str, str], ...] = ()
    """Arguments that follow from the dtype of what comes in: the operation, the argument's place or name, and `dtype`
    or what `torch.finfo` calls the number."""


def trace(loaded: Loaded) -> Traced:
    """Trace what was loaded. SpecError with the place in the file where it cannot be."""
    state = state_of(loaded)
    error: SpecError | None = None
    wide = (_all_free,) if len(state) <= FREE_WIDTHS else ()
    for free in (*wide, _data_free, _first_free, _none_free):
        try:
            return _of_any_dtype(loaded, state, free, _traced(loaded, state, free))
        except SpecError as refused:  # sizes that torch cannot follow are numbers in the next trace
            error = error or refused
    assert error is not None
    raise error


def _of_any_dtype(loaded: Loaded, state: Sequence[State], free: Any, found: Traced) -> Traced:
    """The trace with what follows from the dtype of what comes in: what is float16 where that stands for float32, as in
    `x.to(weight.dtype)` and `torch.finfo(x.dtype).min`. A cast to float32 of what has it already is no operation there,
    and what reads its operand cannot be told from what reads its result."""
    import torch

    single, half = (torch.finfo(dtype) for dtype in (torch.float32, torch.float16))
    names = {getattr(single, name): name for name in ("min", "max", "eps", "tiny")}
    asked = [
        (i, place, value)
        for i, node in enumerate(found.nodes) for place, value in (*enumerate(node.args), *node.kwargs.items())
        if value is torch.float32 or (type(value) is float and value in names)
    ]  # fmt: skip
    if not asked:
        return found
    try:
        other = _traced(loaded, state, free, torch.float16)
    except SpecError:  # it is of float32 alone
        return found
    if [node.target for node in other.nodes] != [node.target for node in found.nodes]:
        return found
    followed: list[tuple[Any, int | str, str]] = []
    for i, place, value in asked:
        node = other.nodes[i]
        changed = node.args[place] if isinstance(place, int) else node.kwargs[place]
        if changed is torch.float16:
            followed.append((node, place, "dtype"))
        elif value in names and changed == getattr(half, names[value]):
            followed.append((node, place, names[value]))
    return replace(other, followed=tuple(followed))


def state_of(loaded: Loaded) -> list[State]:
    """Parameters and buffers, and tensors that modules have beside them, each once."""
    import torch

    if loaded.module is None:
        return []
    named = [*loaded.module.named_parameters(), *loaded.module.named_buffers()]
    known = {id(value) for _, value in named}
    for prefix, module in loaded.module.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and id(value) not in known:
                known.add(id(value))
                named.append((f"{prefix}.{name}".lstrip("."), value))
    return [State(path, value) for path, value in named]


def _all_free(loaded: Loaded, path: str | None, value: Any) -> range:
    """All dimensions, but for the windows of convolutions and what those in groups have."""
    if path is None or loaded.module is None:
        return range(value.ndim)
    return free_dimensions(loaded.module.get_submodule(path.rpartition(".")[0]), value)


def free_dimensions(owner: Any, value: Any) -> range:
    """The dimensions of a layer's parameter that are sizes, and not a window or as many as there are groups."""
    import torch

    if isinstance(owner, torch.nn.modules.conv._ConvNd):
        return range(min(value.ndim, 2) if owner.groups == 1 else 0)
    return range(value.ndim)


def _data_free(loaded: Loaded, path: str | None, value: Any) -> range:
    return range(value.ndim if path is None else 0)


def _first_free(loaded: Loaded, path: str | None, value: Any) -> range:
    return range(min(value.ndim, 1) if path is None else 0)


def _none_free(loaded: Loaded, path: str | None, value: Any) -> range:
    return range(0)


def _traced(loaded: Loaded, state: Sequence[State], free: Any, single: Any = None) -> Traced:
    """`single`: the dtype that stands for float32."""
    import torch

    from kernelgen.frontend.exporting import exported_program

    tensors = [i for i, example in enumerate(loaded.examples) if isinstance(example, torch.Tensor)]
    given = [_without_memory(loaded.examples[i], single) for i in tensors]
    made = [_without_memory(s.value, single) for s in state]
    paths = [s.path for s in state]

    class Imported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if loaded.module is not None:
                self.imported = loaded.module

        def forward(self, data: list[Any], weights: list[Any]) -> Any:
            arguments = list(loaded.examples)
            for i, value in zip(tensors, data, strict=True):
                arguments[i] = value
            with with_state(loaded.module, dict(zip(paths, weights, strict=True))), as_traced():
                return _flat(loaded, loaded.call(*arguments))

    auto = torch.export.Dim.AUTO
    dynamic = (
        [dict.fromkeys(free(loaded, None, x), auto) for x in given],
        [dict.fromkeys(free(loaded, s.path, x), auto) for s, x in zip(state, made, strict=True)],
    )
    try:
        with _as_forward(loaded), contextlib.redirect_stderr(io.StringIO()):
            found = exported_program(Imported(), (given, made), dynamic)
    except SpecError:
        raise
    except Exception as error:
        line = raised_at(error, loaded.source.path)
        raise loaded.source.mistake_on(line if line > 1 else loaded.function.lineno, _reason(error)) from error
    return _of(found, len(given), state)


def _of(exported: Any, count: int, state: Sequence[State]) -> Traced:
    graph = exported.graph
    users = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    inputs = [n for n in placeholders if users[n.name].kind.name == "USER_INPUT"]
    constants = {
        n: exported.constants[users[n.name].target]
        for n in placeholders if users[n.name].kind.name == "CONSTANT_TENSOR"
    }  # fmt: skip
    last = next(n for n in graph.nodes if n.op == "output")
    return Traced(
        tuple(n for n in graph.nodes if n.op == "call_function"),
        tuple(inputs[:count]),
        dict(zip(inputs[count:], state, strict=True)),
        constants,
        tuple(last.args[0]),
    )


def _without_memory(value: Any, single: Any = None) -> Any:
    import torch

    dtype = single if single is not None and value.dtype == torch.float32 else value.dtype
    return torch.empty(value.shape, dtype=dtype, device="meta")


@contextlib.contextmanager
def with_state(module: Any, state: dict[str, Any]) -> Iterator[None]:
    """The module with other tensors for its parameters and buffers."""
    import torch
    from torch.nn.utils.stateless import _reparametrize_module

    if module is None:
        yield
        return
    registered = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    plain = {path: state[path] for path in state.keys() - registered}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_reparametrize_module(module, {p: state[p] for p in registered & state.keys()}))
        for path, value in plain.items():
            owner, _, name = path.rpartition(".")
            stack.enter_context(mock.patch.dict(vars(module.get_submodule(owner)), {name: value}))
        for layer in module.modules():
            if isinstance(layer, torch.nn.RNNBase):  # it keeps a list of its weights beside them
                weights = [getattr(layer, name) for name in layer._flat_weights_names]
                stack.enter_context(mock.patch.dict(vars(layer), {"_flat_weights": weights}))
        yield


@contextlib.contextmanager
def as_traced() -> Iterator[None]:
    """What forward calls, in the form in which a trace can hold it.

    Layer norms go over the shape of their weight: the number that the module keeps would fix it. Numbers made a tensor
    and lists of places keep their values; what is made without a device is where the inputs are. A recurrent layer is
    one operation. What switches gradients off switches nothing: torch.export would put it into a graph of its own.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    from kernelgen.frontend.recurrent import Whole

    functional = torch.nn.functional
    layer_norm, rms_norm, tensor = functional.layer_norm, functional.rms_norm, torch.tensor

    def over_weight(norm: Any) -> Any:
        def called(x: Any, shape: Any, weight: Any = None, *rest: Any, **options: Any) -> Any:
            return norm(x, shape if weight is None else weight.shape, weight, *rest, **options)

        return called

    def filled(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
        if type(data) in (int, float, bool):
            return torch.full((), data, dtype=dtype, device=device)
        if isinstance(data, list | tuple) and (device is None or torch.device(device).type == "meta"):
            return tensor(data, dtype=dtype, device="cpu", **options).to("meta")
        return tensor(data, dtype=dtype, device=device, **options)

    class Placed(TorchFunctionMode):
        """With lists of places made tensors as above."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__getitem__:
                several = args[1] if isinstance(args[1], tuple) else (args[1],)
                several = tuple(filled(i) if _places(i) else i for i in several)
                return func(args[0], several if isinstance(args[1], tuple) else several[0])
            return func(*args, **(kwargs or {}))

    def nothing(*arguments: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(functional, "layer_norm", over_weight(layer_norm)))
        stack.enter_context(mock.patch.object(functional, "rms_norm", over_weight(rms_norm)))
        stack.enter_context(mock.patch.object(torch, "tensor", filled))
        stack.enter_context(Whole())
        stack.enter_context(Placed())
        stack.enter_context(torch.device("meta"))
        for switch in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            stack.enter_context(mock.patch.multiple(switch, __enter__=nothing, __exit__=nothing))
        yield


def _places(index: Any) -> bool:
    return isinstance(index, list) and bool(index) and all(type(i) is int for i in index)


@contextlib.contextmanager
def _as_forward(loaded: Loaded) -> Iterator[None]:
    """torch.export keeps the lines of functions of this name alone."""
    if loaded.module is not None:
        yield
        return
    function = loaded.scope[loaded.function.name]
    code = function.__code__
    function.__code__ = code.replace(co_name="forward", co_qualname="forward")
    try:
        yield
    finally:
        function.__code__ = code


def _flat(loaded: Loaded, result: Any) -> Any:
    """A result that is a tensor or several."""
    import torch

    results = result if isinstance(result, tuple | list) else (result,)
    wrong = next((value for value in results if not isinstance(value, torch.Tensor)), None)
    if not results or wrong is not None:
        kind = type(wrong if results else result).__name__
        within = f"{type(result).__name__} with a " if result is not wrong and results else ""
        message = f"it returns a {within}{kind}, not a tensor or several; return tensors alone"
        raise loaded.source.mistake(loaded.function, message)
    return tuple(results)


_FROM_VALUES = ("DataDependent", "GuardOnDataDependent", "data-dependent", "Could not guard", "local_scalar_dense")


def _reason(error: Exception) -> str:
    """Why torch.export gives up, in a line."""
    text = f"{type(error).__name__}: {error}"
    if any(word in text for word in _FROM_VALUES) or re.search(r"item\(\).*meta|meta.*item\(\)", text):
        return (
            "what it does next follows from a tensor's values, and a kernel does one thing: "
            "use torch.where or a mask, or make it an argument that is a number"
        )
    return f"it cannot be traced: {said(error)}"
