"""The reference function, as far as it can be judged without running it. Tracing it is the frontend's job."""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections.abc import Iterator, Sequence

from kernelgen.spec.model import Place
from kernelgen.spec.nearest import hint
from kernelgen.spec.tree import Finding, Text, shorten

SCOPE = ("torch", "F", "math", "random_mask")
"""What a reference may use besides Python: torch, torch.nn.functional, math, and kernelgen's own `random_mask`."""

BUILTINS = frozenset(
    [
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "isinstance", "len", "list"),
        *("max", "min", "pow", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip"),
    ]
)
"""The functions of Python that a reference may call."""

REFUSED: dict[type[ast.AST], str] = {
    ast.Import: "an import; torch, F (torch.nn.functional) and math are in scope",
    ast.ImportFrom: "an import; torch, F (torch.nn.functional) and math are in scope",
    ast.Global: "a global statement; a reference depends on its arguments alone",
    ast.Nonlocal: "a nonlocal statement; a reference depends on its arguments alone",
    ast.ClassDef: "a class; a reference is made of functions",
    ast.AsyncFunctionDef: "an async function; write a plain one",
    ast.Await: "an await; write plain statements",
    ast.Yield: "a yield; a reference returns its outputs",
    ast.YieldFrom: "a yield; a reference returns its outputs",
    ast.Try: "a try statement; a reference handles no errors",
    ast.TryStar: "a try statement; a reference handles no errors",
    ast.With: "a with statement; a reference is plain tensor code",
    ast.Raise: "a raise statement; conditions on inputs stand under 'constraints'",
    ast.Assert: "an assert statement; conditions on inputs stand under 'constraints'",
    ast.Delete: "a del statement; it changes nothing of the result",
}
"""Statements that no reference may have, each with why."""


def block_place(value: Text, lines: Sequence[str]) -> Place | None:
    """Where the text of a literal block begins in the file, None where it is no such block.

    Only in a literal block (`|`) does each line of the text stand on a line of the file.
    """
    if value.style != "|":
        return None
    line = value.place.line  # the indicator's line, from 1: the index of the next line
    first = next((i for i, content in enumerate(value.split("\n")) if content.strip()), 0)
    content = value.split("\n")[first]
    # the text may have lost trailing blanks to nothing but the indentation in front
    column = len(lines[line + first]) - len(content) if line + first < len(lines) else 0
    return Place(line + first + 1, max(column, 0) + 1)


def trimmed(block: str) -> str:
    """The reference without blank lines around it; begins where `block_place` says."""
    return block.strip("\n").rstrip() + "\n" if block.strip() else ""


def check(
    source: str, place: Place, name: str | None, inputs: Sequence[str] | None, outputs: int | None
) -> list[Finding]:
    """Every mistake in a reference, at its place in the file.

    `place` is where `source` begins; what of the operator is not known (None) is not compared.
    """
    checker = _Checker(source, place)
    tree = checker.parse()
    if tree is None:
        return checker.findings
    for statement in tree.body:
        checker.top_level(statement)
    for node in ast.walk(tree):
        checker.refuse(node)
    checker.scope(tree)
    functions = [statement for statement in tree.body if isinstance(statement, ast.FunctionDef)]
    if name is not None:
        own = [function for function in functions if function.name == name]
        if not own and not any(isinstance(node, ast.AsyncFunctionDef) for node in tree.body):
            checker.no_function(name, functions)
        for again in own[1:]:
            checker.add(again, f"a second function named '{name}'; the first is on line {checker.place(own[0]).line}")
        # a lone function under a wrong name is still meant to be the operator's
        for function in own[:1] or (functions if len(functions) == 1 else []):
            checker.parameters(function, inputs)
            checker.returns(function, outputs)
    return sorted(set(checker.findings), key=lambda finding: (finding[0].line, finding[0].column, finding[1]))


class _Checker:
    """Collects findings and knows how positions in the text map to the file."""

    def __init__(self, source: str, start: Place) -> None:
        self.source, self.start, self.lines = source, start, source.split("\n")
        self.findings: list[Finding] = []

    def place(self, node: ast.AST) -> Place:
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        # ast counts UTF-8 bytes; columns count characters
        return self._at(line, len(text.encode()[:offset].decode(errors="ignore")))

    def _at(self, line: int, offset: int) -> Place:
        return Place(self.start.line + line - 1, self.start.column + offset)

    def add(self, node: ast.AST, message: str) -> None:
        self.findings.append((self.place(node), message))

    def parse(self) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.source)
                # finds what parsing alone does not: a return outside a function, a parameter named twice
                compile(self.source, "<reference>", "exec", dont_inherit=True)
        except SyntaxError as error:
            line, offset = min(error.lineno or 1, len(self.lines)), max((error.offset or 1) - 1, 0)
            self.findings.append((self._at(line, offset), f"the reference is not Python: {error.msg}"))
        except (ValueError, RecursionError, MemoryError) as error:
            self.findings.append((self.start, f"the reference is not Python: {shorten(str(error))}"))
        else:
            return tree
        return None

    def top_level(self, node: ast.stmt) -> None:
        """Only functions, and a docstring, stand beside one another."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return
        if not isinstance(node, ast.FunctionDef) and type(node) not in REFUSED:
            self.add(node, "a statement outside a function; give a constant as a parameter with a default")

    def refuse(self, node: ast.AST) -> None:
        reason = REFUSED.get(type(node))
        if reason:
            self.add(node, f"the reference has {reason}")
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            self.add(node.decorator_list[0], "the reference has a decorator; write a plain function")
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            self.add(node, f"the reference reads '{node.attr}', a part of Python itself")

    def scope(self, tree: ast.Module) -> None:
        """Names that are neither arguments, nor set in the function, nor in SCOPE."""
        table = symtable.symtable(self.source, "<reference>", "exec")
        helpers = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        known = {*SCOPE, *helpers, *_refused_names(tree)}
        reported = set()
        unknown = {name for name in _globals(table) if name not in known and name not in BUILTINS}
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
            if node.id in unknown and node.id not in reported:
                reported.add(node.id)
                self.add(node, self._unknown(node.id, table, known))

    def _unknown(self, name: str, table: symtable.SymbolTable, known: set[str]) -> str:
        if name in vars(builtins):
            return f"'{name}' is not available in a reference; torch, F and math are in scope"
        symbols = [symbol for child in table.get_children() for symbol in child.get_symbols()]
        near = hint(name, sorted({*known, *(symbol.get_name() for symbol in symbols if symbol.is_local())}))
        near = near if "did you mean" in near else "; torch, F (torch.nn.functional) and math are in scope"
        return f"the reference uses '{name}', which is not defined{near}"

    def no_function(self, name: str, functions: list[ast.FunctionDef]) -> None:
        message = f"the reference defines no function '{name}'"
        if len(functions) == 1:
            column = self.place(functions[0]).column + len("def ")
            at = Place(self.place(functions[0]).line, column)
            self.findings.append((at, f"{message}; '{functions[0].name}' should have the operator's name"))
        else:
            near = hint(name, [node.name for node in functions])
            self.findings.append((self.start, message + near))

    def parameters(self, function: ast.FunctionDef, inputs: Sequence[str] | None) -> None:
        """The first parameters are the inputs, in their order; what follows has defaults."""
        arguments = function.args
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                self.add(star, f"'*{star.arg}' in the reference; name every parameter")
        for keyword, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is None:
                self.add(keyword, f"parameter '{keyword.arg}' is no input and needs a default")
        if inputs is None:
            return
        positional = [*arguments.posonlyargs, *arguments.args]
        for parameter, wanted in zip(positional, inputs, strict=False):
            if parameter.arg != wanted:
                self.add(parameter, f"parameter '{parameter.arg}' stands where the input '{wanted}' is declared")
        if len(positional) < len(inputs):
            missing = ", ".join(f"'{name}'" for name in inputs[len(positional) :])
            self.add(function, f"the reference has no parameter for {missing}")
        required = len(positional) - len(arguments.defaults)
        for parameter in positional[len(inputs) : max(required, len(inputs))]:
            self.add(parameter, f"parameter '{parameter.arg}' is no input and needs a default")

    def returns(self, function: ast.FunctionDef, outputs: int | None) -> None:
        """At least one return, each with as many values as outputs where that can be seen."""
        found = list(_own_returns(function))
        if not found:
            self.add(function, f"'{function.name}' returns nothing")
        for node in found:
            if node.value is None:
                self.add(node, "a return without a value")
            elif isinstance(node.value, ast.Tuple) and outputs is not None and len(node.value.elts) != outputs:
                count = len(node.value.elts)
                self.add(node.value, f"{count} value{'s' * (count != 1)} returned where 'outputs' declares {outputs}")


def _refused_names(tree: ast.Module) -> Iterator[str]:
    """Names that a refused import or global statement would have bound: one mistake is enough for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.ClassDef):
            yield node.name


def _own_returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """The return statements of a function, without those of functions inside it."""
    # a list of open nodes, not recursion: an expression may be nested deeper than Python's stack
    open_nodes: list[ast.AST] = list(reversed(function.body))
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef):
            open_nodes += reversed(list(ast.iter_child_nodes(node)))


def _globals(module: symtable.SymbolTable) -> Iterator[str]:
    """The names that a module's functions, and their insides, look up outside themselves."""
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
                yield symbol.get_name()
