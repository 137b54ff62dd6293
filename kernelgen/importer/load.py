"""Runs the user's file, in the process of an import: its module or function, and what its inputs look like."""

from __future__ import annotations

import ast
import contextlib
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from kernelgen.errors import Mistake
from kernelgen.importer import source as sources
from kernelgen.importer.draws import draws
from kernelgen.importer.source import EXAMPLES, INIT_INPUTS, INPUTS, Source

MODULE_NAME = "imported"
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Loaded:
    """A file that was run."""

    source: Source
    scope: dict[str, Any]
    """The globals of the file."""
    function: ast.FunctionDef
    """forward, or the plain function."""
    module: Any
    """The constructed nn.Module, None for a plain function."""
    owner: ast.ClassDef | None
    """The module's class."""
    examples: tuple[Any, ...]
    """What the function is called with; tensors have shapes but perhaps no memory."""
    made_with: tuple[Any, ...] = ()
    """What the module was made with."""

    def call(self, *arguments: Any) -> Any:
        """What the file itself computes."""
        return (self.module if self.module is not None else self.scope[self.function.name])(*arguments)


def load(source: Source, wanted: str | None) -> Loaded:
    """Run the file and make its module and its inputs. SpecError with the line in the file where something raises."""
    import torch

    owner = sources.module_class(source) if wanted is None else None
    if owner is not None:
        forward = sources.forward_of(owner)
        assert forward is not None
        function = forward
        for name in (INPUTS, INIT_INPUTS):
            if name not in source.functions():
                raise source.mistake(owner, f"the file has class {owner.name} but no function '{name}'")
    else:
        function = sources.chosen_function(source, wanted)
        if INPUTS not in source.functions() and source.assigned(EXAMPLES) is None:
            raise source.mistake(function, f"'{function.name}' needs '{INPUTS}()' or '{EXAMPLES} = (...)' beside it")
    made = types.ModuleType(MODULE_NAME)
    made.__file__ = source.path
    sys.modules[MODULE_NAME] = made  # dataclasses and nn.Module look themselves up there
    code = _attempt(source, lambda: compile(source.text, source.path, "exec", dont_inherit=True), "the file fails")
    torch.manual_seed(0)
    _attempt(source, lambda: exec(code, made.__dict__), "the file fails")
    scope = made.__dict__
    module, made_with = None, []
    if owner is not None:
        made_with = _attempt(source, lambda: list(scope[INIT_INPUTS]()), f"{INIT_INPUTS} fails")
        with _without_draws():
            module = _attempt(source, lambda: scope[owner.name](*made_with), f"{owner.name} cannot be made")
        if not isinstance(module, torch.nn.Module):
            raise source.mistake(owner, f"{owner.name} is no torch.nn.Module")
    return Loaded(source, scope, function, module, owner, _examples(source, scope), tuple(made_with))


_INITIALISERS = ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
                 "kaiming_normal_", "orthogonal_", "sparse_")  # fmt: skip


def _without_draws() -> contextlib.AbstractContextManager[Any]:
    """Layers leave their weights as memory had them: nobody asks for the values, and drawing them takes seconds."""
    import torch

    def untouched(tensor: Any, *arguments: Any, **options: Any) -> Any:
        return tensor

    stack = contextlib.ExitStack()
    for name in _INITIALISERS:
        stack.enter_context(mock.patch.object(torch.nn.init, name, untouched))
    return stack


def _examples(source: Source, scope: dict[str, Any]) -> tuple[Any, ...]:
    """The inputs, without memory where that works: a problem may take more than this machine has."""
    import torch

    if INPUTS in source.functions():
        try:
            with torch.device("meta"), draws():
                found = scope[INPUTS]()
        except Exception:  # it looks at values: then it has to run
            with draws():
                found = _attempt(source, scope[INPUTS], f"{INPUTS} fails")
        place: ast.AST | None = source.functions()[INPUTS]
    else:
        found, place = scope[EXAMPLES], source.assigned(EXAMPLES)
    if isinstance(found, torch.Tensor):
        found = (found,)
    if not isinstance(found, list | tuple):
        raise source.mistake(place, f"the inputs are a {type(found).__name__}, not a list or a tuple")
    return tuple(found)


def _attempt(source: Source, action: Callable[[], Any], what: str) -> Any:
    """Run some of the user's code; whatever it raises becomes a mistake at its line."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        raise source.mistake_at(raised_at(error, source.path), 1, f"{what}: {said(error)}") from None


def fault(error: Exception, path: str) -> Mistake:
    """An error that nobody foresaw as one line: where in the file it came up, or else where in kernelgen."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if PACKAGE in Path(frame.filename).parents]
    where = f" (kernelgen/{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno})" if frames else ""
    return Mistake(path, raised_at(error, path), 1, f"cannot be imported: {said(error)}{where}")


def raised_at(error: BaseException, path: str) -> int:
    """The last line of the file that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return (lines[-1] or 1) if lines else 1


def said(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
