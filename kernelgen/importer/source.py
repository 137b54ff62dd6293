"""A Python file as text: what it defines, and mistakes with their place in it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelgen.errors import Mistake, SpecError, UsageError

INPUTS, INIT_INPUTS, EXAMPLES = "get_inputs", "get_init_inputs", "example_inputs"


@dataclass(frozen=True)
class Source:
    """A file and its tree."""

    path: str
    """As the user named it."""
    text: str
    tree: ast.Module
    starts: tuple[int, ...]
    """The offset of every line in `text`."""

    def mistake(self, node: ast.AST | None, message: str) -> SpecError:
        """The one line that says what was not understood, and where."""
        line, column = 1, 1
        if node is not None and hasattr(node, "lineno"):
            line = node.lineno
            column = self.offset(line, getattr(node, "col_offset", 0)) - self.starts[line - 1] + 1
        return self.mistake_at(line, column, message)

    def mistake_at(self, line: int, column: int, message: str) -> SpecError:
        return SpecError([Mistake(self.path, line, column, " ".join(message.split()))])

    def mistake_on(self, line: int, message: str) -> SpecError:
        """A mistake at the first column of a line that has something."""
        text = self.text.split("\n")[line - 1]
        return self.mistake_at(line, len(text) - len(text.lstrip()) + 1, message)

    def offset(self, line: int, column: int) -> int:
        """The offset in `text` of a line and a column of the tree, which counts bytes."""
        start = self.starts[line - 1]
        rest = self.text[start : start + column]  # no more characters than bytes
        return start + len(rest.encode()[:column].decode(errors="ignore"))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First and last offset of a node's text."""
        begin = self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return begin, self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def assigned(self, name: str) -> ast.stmt | None:
        """The statement of the file that gives a name its value."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return node
        return None

    def aliases(self) -> dict[str, str]:
        """What the file's imports call what: `{"nn": "torch.nn", "sqrt": "math.sqrt"}`."""
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    found[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found


def read(path: Path) -> Source:
    """Read and parse a file. UsageError where it cannot be read, SpecError with its place where it is not Python."""
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    starts = (0, *(match.end() for match in re.finditer("\n", text)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        place = (str(path), error.lineno or 1, max(error.offset or 1, 1))
        raise SpecError([Mistake(*place, f"not Python: {error.msg}")]) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError([Mistake(str(path), 1, 1, f"not Python: {error}")]) from None
    return Source(str(path), text, tree, starts)


def module_class(source: Source) -> ast.ClassDef | None:
    """The class to import: `Model`, or the only one with a forward that none of the others uses. None: the file holds
    functions."""
    classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef)]
    with_forward = [node for node in classes if forward_of(node) is not None]
    named = [node for node in with_forward if node.name == "Model"]
    used = {name for node in with_forward for name in _names(node) if name != node.name}
    chosen = named[-1:] or [node for node in with_forward if node.name not in used]
    if len(chosen) == 1:
        return chosen[0]
    if with_forward:
        names = ", ".join(node.name for node in with_forward)
        raise source.mistake(with_forward[1], f"several classes have a forward ({names}); call the one to import Model")
    return None


def forward_of(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)


def chosen_function(source: Source, wanted: str | None) -> ast.FunctionDef:
    """The function to import: the one that was named, or the only public one that no other function calls."""
    functions = source.functions()
    if wanted is not None:
        if wanted in functions:
            return functions[wanted]
        raise source.mistake(None, f"the file has no function '{wanted}'")
    own = {name: node for name, node in functions.items() if name not in (INPUTS, INIT_INPUTS) and name[0] != "_"}
    called = {name for caller, node in own.items() for name in _names(node) if name != caller}
    public = [node for name, node in own.items() if name not in called]
    if not public:
        raise source.mistake(None, "the file has neither a class with a forward nor a function to import")
    if len(public) > 1:
        names = ", ".join(node.name for node in public)
        raise source.mistake(public[1], f"several functions could be meant ({names}); say which with --function")
    return public[0]


def _names(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
