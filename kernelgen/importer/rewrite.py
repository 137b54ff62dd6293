"""forward as a plain function: what it reads of `self` becomes parameters and constants, layers become calls.

The text is the file's own, comments included; only what cannot stand in a reference is replaced. What is not
understood is refused with its place: a reference that guesses would define another operator.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import math
import re
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.importer.layers import functional, literal
from kernelgen.importer.load import Loaded
from kernelgen.importer.naming import unique
from kernelgen.importer.traced import Traced, free_dimensions
from kernelgen.importer.trees import body_of, body_span, bound, operands, placed
from kernelgen.spec.leaves import SCALARS, WORD
from kernelgen.spec.reference import BUILTINS, REFUSED

_UNRESOLVED = object()
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Input:
    """A tensor that the reference takes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    expression: str
    """How forward calls it: `x`, or `self.ln.weight`."""
    value: Any
    """The parameter or buffer itself; for an argument of forward its example, perhaps without memory."""
    path: str = ""
    """The parameter or buffer in the state dict, where the reference was written from a trace."""
    fixed: frozenset[int] = frozenset()
    """Dimensions that are no sizes but numbers."""
    optional: bool = False
    """Whether a call may leave it out."""


@dataclass(frozen=True)
class Scalar:
    """An argument that is no tensor."""

    name: str
    text: str
    kind: str = ""
    """What the spec has it as, a name of `spec.leaves.SCALARS`; empty where it became a constant of the reference."""
    fixed: bool = False
    """Whether it may have no other value."""


@dataclass(frozen=True)
class Rewritten:
    """The reference, and what it takes."""

    text: str
    inputs: tuple[Input, ...]
    scalars: tuple[Scalar, ...]
    fixed: tuple[tuple[str, str], ...]
    """What the module was found to be and the reference counts on: an expression such as `self.norm.eps`, its value."""
    made_with: tuple[tuple[str, str], ...] = ()
    """The arguments of the constructor that the reference was traced with, where it was: the name, the value."""
    traced: Traced | None = None
    """The trace that it was written from, where it was."""
    changed: tuple[str, ...] = ()
    """What forward gives a new value before it reads it, which the reference does not."""
    into: tuple[str, ...] = ()
    """For every result the input that it is written into, "" for none; empty where no input is written into."""


def rewrite(loaded: Loaded, operator: str) -> Rewritten:
    """The reference of what was loaded, under the operator's name. SpecError at the place of what is not understood."""
    return _Rewriter(loaded, operator).reference()


def check_examples(loaded: Loaded) -> None:
    """SpecError for examples that no operator can be made for, however its reference is written."""
    import torch

    source, function = loaded.source, loaded.function
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters = parameters[1:] if loaded.module is not None else parameters
    if len(loaded.examples) > len(parameters) and arguments.vararg is None:
        counts = f"takes {len(parameters)} inputs, and {len(loaded.examples)} are given"
        raise source.mistake(function, f"'{function.name}' {counts}")
    for parameter, example in zip(parameters, loaded.examples, strict=False):
        if not isinstance(example, (torch.Tensor, *_CONSTANTS)):
            kind = type(example).__name__
            raise source.mistake(parameter, f"'{parameter.arg}' is a {kind}; an input is a tensor or a number")
    has_state = loaded.module is not None and any(True for _ in loaded.module.parameters())
    if not has_state and not any(isinstance(example, torch.Tensor) for example in loaded.examples):
        raise source.mistake(function, f"'{function.name}' takes no tensor")


class _Rewriter:
    def __init__(self, loaded: Loaded, operator: str) -> None:
        self.loaded, self.source, self.operator = loaded, loaded.source, operator
        self.aliases = self.source.aliases()
        names = {n.id for n in ast.walk(loaded.function) if isinstance(n, ast.Name)}
        self.taken = {operator, *names, *bound(loaded.function), *self.aliases, *self.source.functions()}
        self.operands = set(operands(self.source.tree))
        self.tensors: dict[str, Input] = {}
        """What forward reads of self, by path."""
        self.defaults: dict[str, tuple[str, str]] = {}
        """Constants of self that get a name, by path: the name and the value."""
        self.helpers: dict[str, str] = {}
        self.fixed: dict[str, str] = {}
        self.locals: set[str] = set()
        self.owner: str | None = None
        """What the function being rewritten calls `self`."""

    def reference(self) -> Rewritten:
        function = self.loaded.function
        parameters = self._parameters(function)
        inputs, scalars = self._arguments(function, parameters)
        if self.loaded.module is not None:
            self.owner = function.args.args[0].arg if function.args.args else None
        body = self._body(function)
        keywords = [f"{s.name}={s.text}" for s in scalars] + [f"{name}={text}" for name, text in self.defaults.values()]
        tensors = [t.name + "=None" * t.optional for t in (*inputs, *self.tensors.values())]
        head = ", ".join([*tensors, *keywords])
        text = f"def {self.operator}({head}):\n{body}"
        if not (inputs or self.tensors):
            raise self.source.mistake(function, f"'{function.name}' takes no tensor")
        whole = "\n\n".join([*self.helpers.values(), text])
        return Rewritten(whole, (*inputs, *self.tensors.values()), scalars, tuple(self.fixed.items()))

    def _parameters(self, function: ast.FunctionDef) -> list[ast.arg]:
        """The parameters that examples are given for."""
        arguments = function.args
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                raise self.source.mistake(star, f"'*{star.arg}': a reference names every parameter")
        if function.decorator_list:
            raise self.source.mistake(function.decorator_list[0], f"a decorator of '{function.name}'")
        found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return found[1:] if self.loaded.module is not None else found

    def _arguments(
        self, function: ast.FunctionDef, parameters: list[ast.arg]
    ) -> tuple[tuple[Input, ...], tuple[Scalar, ...]]:
        """Parameters with a tensor as example are inputs; others are constants of the reference. A function keeps its
        numbers and flags, and tensors that it need not be given: a module's forward is called by the module."""
        import torch

        examples = self.loaded.examples
        inputs, scalars = [], []
        given = self._defaults(function)
        known = {} if self.loaded.module is not None else self._default_values(function)
        for i, parameter in enumerate(parameters):
            name = parameter.arg
            if i >= len(examples):
                if name not in given:
                    raise self.source.mistake(parameter, f"no input is given for '{name}'")
                scalars.append(Scalar(name, given[name], *_kind_of(known.get(name))))
            elif isinstance(examples[i], torch.Tensor):
                optional = name in known and known[name] is None
                inputs.append(replace(_input(name, examples[i], "data", name), optional=optional))
            else:
                kind = () if self.loaded.module is not None else _kind_of(examples[i])
                scalars.append(Scalar(name, literal(examples[i]), *kind))
        return tuple(sorted(inputs, key=lambda t: t.optional)), tuple(sorted(scalars, key=lambda s: not s.kind))

    def _default_values(self, function: ast.FunctionDef) -> dict[str, Any]:
        parameters = inspect.signature(self.loaded.scope[function.name]).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def _defaults(self, function: ast.FunctionDef) -> dict[str, str]:
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        pairs += [(k, d) for k, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        return {parameter.arg: self._text(default) for parameter, default in pairs}

    def _body(self, function: ast.FunctionDef) -> str:
        """The statements of a function, four spaces in."""
        outer = self.locals
        self.locals = bound(function)
        for node in ast.walk(function):
            reason = REFUSED.get(type(node))
            if reason:
                raise self.source.mistake(node, f"'{function.name}' has {reason}")
            if isinstance(node, ast.JoinedStr):
                raise self.source.mistake(node, f"'{function.name}' has a formatted string")
        statements = body_of(function)
        if not statements:
            raise self.source.mistake(function, f"'{function.name}' does nothing")
        begin, end = body_span(
            self.source.text, self.source.span(statements[0])[0], self.source.span(statements[-1])[1]
        )
        text = textwrap.dedent(self._splice(begin, end, statements))
        self.locals = outer
        return textwrap.indent(text.strip("\n"), "    ")

    def _splice(self, begin: int, end: int, nodes: list[Any]) -> str:
        """The file's text with each of the nodes in it as `_text` has it."""
        pieces, at = [], begin
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            first, last = self.source.span(node)
            pieces += [self.source.text[at:first], self._text(node)]
            at = last
        return "".join([*pieces, self.source.text[at:end]])

    def _text(self, node: ast.AST) -> str:
        """A node as it stands in the reference."""
        if isinstance(node, ast.Attribute):
            text = self._attribute(node)
        elif isinstance(node, ast.Name):
            text = self._name(node)
        elif isinstance(node, ast.Call):
            text = self._call(node)
        else:
            text = None
        return self._splice(*self.source.span(node), list(placed(node))) if text is None else text

    def _attribute(self, node: ast.Attribute) -> str | None:
        value = self._resolve(node)
        if value is not _UNRESOLVED:
            return self._own(node, value)
        dotted = self._dotted(node)
        return None if dotted is None else self._imported(node, dotted)

    def _resolve(self, node: ast.AST) -> Any:
        """What an attribute of self is; _UNRESOLVED for anything else."""
        import torch

        if isinstance(node, ast.Name) and self.owner is not None and node.id == self.owner:
            return self.loaded.module
        if not isinstance(node, ast.Attribute):
            return _UNRESOLVED
        base = self._resolve(node.value)
        if not isinstance(base, torch.nn.Module):
            return _UNRESOLVED
        if not isinstance(node.ctx, ast.Load):
            raise self.source.mistake(node, f"forward changes {ast.unparse(node)}; a reference changes nothing")
        if not hasattr(base, node.attr):
            raise self.source.mistake(node, f"{ast.unparse(node)} is not set by the constructor")
        return getattr(base, node.attr)

    def _own(self, node: ast.Attribute, value: Any) -> str:
        """The text for something that self has."""
        import torch

        path = ast.unparse(node)
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        self._fix(path, value)
        if isinstance(value, float) and value == value:
            name = self.defaults.get(path, (None,))[0] or unique(node.attr, self._used())
            self.defaults[path] = (name, literal(value))
            return name
        text = _constant(value)
        if isinstance(value, torch.nn.Module):
            raise self.source.mistake(
                node,
                f"{path} is a {type(value).__name__}; forward calls layers that have names of their own, "
                "such as self.first(x), or a whole nn.Sequential",
            )
        if text is None:
            raise self.source.mistake(node, f"{path} is a {type(value).__name__}, which is no constant")
        return self._operand(node, text)

    def _fix(self, path: str, value: Any) -> None:
        """The reference counts on a value that the constructor left: a constant, or that there is a tensor at all."""
        import torch

        text = _constant(value)
        if isinstance(value, torch.Tensor):
            self.fixed[f"{path} is None"] = "False"
        elif value is None:
            self.fixed[f"{path} is None"] = "True"
        elif isinstance(value, str):
            self.fixed[path] = json.dumps(value)
        elif text is not None:
            self.fixed[path] = re.sub(r"\bmath\.inf\b", 'float("inf")', text)

    def _operand(self, node: ast.AST, text: str) -> str:
        """A number in brackets where an operator binds tighter than its sign."""
        return f"({text})" if node in self.operands and re.match(r"-|\d", text) else text

    def _tensor(self, path: str, value: Any) -> str:
        if path not in self.tensors:
            parts = path.split(".")[1:]
            short = unique(parts[-1], ())
            name = short if short not in self._used() else unique("_".join(parts), self._used())
            self.tensors[path] = replace(_input(name, value, "parameter", path), fixed=self._fixed_dimensions(value))
        return self.tensors[path].name

    def _fixed_dimensions(self, value: Any) -> frozenset[int]:
        """What are no sizes of a parameter, which the layer that has it says."""
        owners = (m for m in self.loaded.module.modules() if any(p is value for p in m.parameters(recurse=False)))
        owner = next(owners, None)
        return frozenset(range(value.ndim)) - frozenset(free_dimensions(owner, value))

    def _used(self) -> set[str]:
        return self.taken | {t.name for t in self.tensors.values()} | {name for name, _ in self.defaults.values()}

    def _dotted(self, node: ast.AST) -> str | None:
        """The full name of something imported, `torch.nn.functional.relu`; None for what is not."""
        if isinstance(node, ast.Name):
            return None if node.id in self.locals else self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None

    def _imported(self, node: ast.AST, dotted: str) -> str:
        dotted = re.sub(r"^torch\.nn\.functional\b", "F", dotted)
        if re.match(r"torch\.nn\.", dotted):
            raise self.source.mistake(
                node, f"{dotted} in '{self.loaded.function.name}'; make layers in the constructor"
            )
        if dotted.split(".")[0] not in ("torch", "F", "math"):
            raise self.source.mistake(node, f"{dotted}: a reference uses torch, torch.nn.functional and math")
        return dotted

    def _name(self, node: ast.Name) -> str | None:
        name, scope = node.id, self.loaded.scope
        if name == self.owner:
            raise self.source.mistake(node, f"'{name}' itself is used; a reference has no object")
        if name in self.locals or not isinstance(node.ctx, ast.Load):
            return None
        if name in self.aliases:
            return self._imported(node, self.aliases[name])
        if name in self.source.functions():
            return self._helper(name)
        if name in scope and name not in vars(builtins):
            text = _constant(scope[name])
            if text is None:
                raise self.source.mistake(node, f"'{name}' is a {type(scope[name]).__name__}, which is no constant")
            return self._operand(node, text)
        if name not in BUILTINS:
            known = name in vars(builtins)
            raise self.source.mistake(node, f"'{name}' is not {'available in a reference' if known else 'defined'}")
        return None

    def _helper(self, name: str) -> str:
        """Another function of the file, which then stands above the reference."""
        node = self.source.functions()[name]
        if node is self.loaded.function:
            raise self.source.mistake(node, f"'{name}' calls itself")
        if name not in self.helpers:
            self.helpers[name] = ""  # it may call itself
            owner, self.owner = self.owner, None
            arguments = self._splice(*self._arguments_span(node), list(placed(node.args)))
            text = f"def {name}({arguments}):\n{self._body(node)}"
            self.owner = owner
            del self.helpers[name]  # after the helpers that it calls
            self.helpers[name] = text
        return name

    def _arguments_span(self, node: ast.FunctionDef) -> tuple[int, int]:
        spans = [self.source.span(part) for part in placed(node.args)]
        return (min(b for b, _ in spans), max(e for _, e in spans)) if spans else (0, 0)

    def _call(self, node: ast.Call) -> str | None:
        import torch

        value = self._resolve(node.func)
        if value is _UNRESOLVED:
            self._refuse_in_place(node)
            return None
        if value is self.loaded.module:
            raise self.source.mistake(node, f"{ast.unparse(node.func)}() calls forward in forward itself")
        if isinstance(value, torch.nn.Module):
            if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
                raise self.source.mistake(node, "a layer called with arguments by name or with '*'")
            return self._layer(node, value, ast.unparse(node.func), [self._text(a) for a in node.args])
        for prefix, room in (("F", torch.nn.functional), ("torch", torch)):
            name = getattr(value, "__name__", "")
            if name and getattr(room, name, None) is value:
                first, last = self.source.span(node.func)[1], self.source.span(node)[1]
                return f"{prefix}.{name}" + self._splice(first, last, [*node.args, *node.keywords])
        if isinstance(value, torch.Tensor):
            raise self.source.mistake(node, f"{ast.unparse(node.func)} is a tensor and cannot be called")
        raise self.source.mistake(node, f"{ast.unparse(node.func)}() is a method; write what it does in forward")

    def _refuse_in_place(self, node: ast.Call) -> None:
        """A method such as add_ on something that self has changes more than the result."""
        func = node.func
        if isinstance(func, ast.Attribute) and re.fullmatch(r"[a-z]\w*[a-z0-9]_", func.attr):
            value = self._resolve(func.value)
            if value is not _UNRESOLVED:
                raise self.source.mistake(
                    node, f"forward changes {ast.unparse(func.value)}; a reference changes nothing"
                )

    def _layer(self, node: ast.Call, layer: Any, path: str, arguments: list[str]) -> str:
        """A layer's call as a function's; a Sequential is one call in the next."""
        import torch

        if type(layer) is torch.nn.Sequential:
            self.fixed[f"len({_indexed(path)})"] = str(len(layer))
            for i, inner in layer.named_children():
                arguments = [self._layer(node, inner, f"{path}.{i}", arguments)]
            return arguments[0]

        def tensors(attribute: str) -> str:
            value = getattr(layer, attribute, None)
            noted(attribute, value)
            return "None" if value is None else self._tensor(_indexed(f"{path}.{attribute}"), value)

        def noted(attribute: str, value: Any) -> None:
            self._fix(_indexed(f"{path}.{attribute}"), value)

        self.fixed[f"type({_indexed(path)}).__name__"] = f'"{type(layer).__name__}"'
        text = functional(layer, arguments, tensors, noted)
        if text is None:
            raise self.source.mistake(node, f"{path} is a {type(layer).__name__}, whose forward cannot be written out")
        return text


def _kind_of(value: Any) -> tuple[str, bool]:
    """What a spec has a value of a parameter as, and whether it may have no other."""
    kind = type(value).__name__
    plain = kind in SCALARS and not (kind == "float" and not math.isfinite(value))
    plain = plain and not (kind == "str" and not re.fullmatch(WORD, value))
    return (kind, kind in ("int", "str")) if plain else ("", False)


def _input(name: str, tensor: Any, role: str, expression: str) -> Input:
    return Input(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), role, expression, tensor)


def _constant(value: Any) -> str | None:
    """A constant as Python, None for what is none; NaN has no literal."""
    import torch

    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, tuple | list):
        return literal(tuple(value)) if all(_constant(v) is not None for v in value) else None
    return literal(value) if isinstance(value, _CONSTANTS) and value == value else None


def is_literal(value: Any) -> bool:
    """Whether a constant can be written down."""
    return _constant(value) is not None


def literal_of(value: Any) -> str:
    """A constant as Python that compares equal to it: a list stays one."""
    return f"[{', '.join(map(literal_of, value))}]" if isinstance(value, list) else _constant(value) or repr(value)


def _indexed(path: str) -> str:
    """`self.net.0.weight` as Python reads it: `self.net[0].weight`."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)
