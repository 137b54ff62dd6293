"""What the source calls the results of a trace: torch.export notes the lines that every operation was made in."""

from __future__ import annotations

import ast
import re
from typing import Any


class Lines:
    """The names that the source gives to what a line computes."""

    def __init__(self, tree: ast.Module) -> None:
        self.at: dict[int, ast.stmt] = {}
        self.sizes: dict[tuple[str, int], list[str]] = {}
        """What the source calls the size of an argument's dimension: `b, n = x.shape`."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self.at[line] = node
            if isinstance(node, ast.Assign):
                self._note_sizes(node)

    def _note_sizes(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(
                [target], ast.Attribute(ast.Name(x), "shape") | ast.Call(ast.Attribute(ast.Name(x), "size"), [])
            ):
                names = target.elts if isinstance(target, ast.Tuple) else []
            case ast.Assign(
                [ast.Name() as target],
                ast.Subscript(ast.Attribute(ast.Name(x), "shape"), ast.Constant(int(axis)))
                | ast.Call(ast.Attribute(ast.Name(x), "size"), [ast.Constant(int(axis))]),
            ):
                self.sizes.setdefault((x, axis), [target.id])
                return
            case _:
                return
        for axis, name in enumerate(names):
            if isinstance(name, ast.Name):
                self.sizes.setdefault((x, axis), [name.id])

    def _targets(self, line: int) -> list[str]:
        statement = self.at.get(line)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Tuple):
                return [t.id if isinstance(t, ast.Name) else "_" for t in target.elts]
            return [target.id] if isinstance(target, ast.Name) else []
        if isinstance(statement, ast.AugAssign | ast.AnnAssign) and isinstance(statement.target, ast.Name):
            return [statement.target.id]
        return []

    def of(self, node: Any, path: str) -> list[str]:
        """What a node could be called: the variable of its statement, or of the statement that called that."""
        for line in reversed(frames_of(node, path)):
            targets = self._targets(line)
            if len(targets) == 1 and targets[0] != "_":
                return targets
        return []

    def several(self, node: Any, path: str) -> list[str]:
        for line in reversed(frames_of(node, path)):
            targets = self._targets(line)
            if len(targets) > 1:
                return targets
        return []

    def ends(self, node: Any, following: Any, path: str) -> bool:
        """Whether a node is the last of its statement, which gives it a name."""
        frames = frames_of(node, path)
        if not frames or not self._targets(frames[-1]):
            return False
        return following is None or frames_of(following, path)[: len(frames)] != frames


def frames_of(node: Any, path: str) -> list[int]:
    """The lines of the file that a node was made in, the outermost first."""
    trace = node.meta.get("stack_trace") or ""
    return [int(line) for file, line in re.findall(r'File "([^"]+)", line (\d+)', trace) if file == path]
