"""The file with a forward that calls the operator, and that says so where the module is another than was imported.

A reference is written for the values that the constructor left: an eps, a stride, whether there is a bias. A module
that was made with other arguments, or changed later, is refused by name and not computed with those.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence

from kernelgen.importer.load import Loaded
from kernelgen.importer.naming import unique
from kernelgen.importer.rewrite import Rewritten
from kernelgen.importer.trees import body_of, body_span

CHECK = "check_fixed"


def module_text(loaded: Loaded, written: Rewritten, declared: Sequence[Sequence[int | str]], name: str) -> str:
    """The text of the file, with one method more where the reference counts on what the constructor left.

    `declared`: the shapes of the inputs as the spec has them.
    """
    source, function, owner = loaded.source, loaded.function, loaded.owner
    assert owner is not None
    own = next(a.arg for a in function.args.args)
    methods = [n for n in owner.body if isinstance(n, ast.FunctionDef)]
    check = f"_{unique(CHECK, {n.name.lstrip('_') for n in methods})}"
    fixed = [*written.fixed, *(() if written.made_with else _lengths(written, declared))]
    lines = [f"{own}.{check}()"] if fixed else []
    for scalar in written.scalars:
        test = f"{scalar.name} is not None" if scalar.text == "None" else f"{scalar.name} != {scalar.text}"
        message = f"{name} is compiled for {scalar.name} = {scalar.text}"
        lines += [f"if {test}:", f"    raise ValueError({json.dumps(message)})"]
    lines.append(f"return {name}({', '.join(t.expression for t in written.inputs)})")
    edits = [_in_place_of_body(loaded, function, lines)]
    if fixed:
        begin, end, text = edits[0]
        method = "\n".join(
            " " * function.col_offset + line if line else "" for line in _method(own, check, name, fixed)
        )
        edits[0] = (begin, end, f"{text}\n\n{method}")
        made = next((m for m in methods if m.name == "__init__" and m.args.args), None)
        if made is not None and written.made_with:
            edits.append(_before_body(loaded, made, _arguments_checked(name, written.made_with)))
        if made is not None:
            edits.append(_behind_body(loaded, made, f"{made.args.args[0].arg}.{check}()"))
    text = source.text
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin].rstrip(" ") + new + text[end:]
    return text.strip("\n")


def _lengths(written: Rewritten, declared: Sequence[Sequence[int | str]]) -> Iterator[tuple[str, str]]:
    """The dimensions of parameters that the spec has as numbers, each with its length."""
    for tensor, sizes in zip(written.inputs, declared, strict=True):
        if tensor.role == "parameter":
            for axis, size in enumerate(sizes):
                if isinstance(size, int):
                    yield f"{tensor.expression}.shape[{axis}]", str(size)


def _method(own: str, check: str, name: str, fixed: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of the method that holds the module against what it was."""
    return [
        f"def {check}({own}):",
        f'    """Raises ValueError where the module is not as {name} was compiled for."""',
        "",
        "    def check(what, value, wanted):",
        "        if value != wanted:",
        f'            raise ValueError(f"{name} is compiled for {{what}} = {{wanted!r}}, not {{value!r}}")',
        "",
        *(f"    check({json.dumps(what)}, {what}, {value})" for what, value in fixed),
    ]


def _arguments_checked(name: str, made_with: Sequence[tuple[str, str]]) -> list[str]:
    """The lines that hold the constructor's arguments against those that the reference was traced with."""
    pairs = ", ".join(f'("{what}", {what}, {value})' for what, value in made_with)
    comma = "," if len(made_with) == 1 else ""
    return [
        f"for what, value, wanted in ({pairs}{comma}):",
        "    if value != wanted:",
        f'        raise ValueError(f"{name} is compiled for {{what}} = {{wanted!r}}, not {{value!r}}")',
    ]


def _before_body(loaded: Loaded, function: ast.FunctionDef, lines: list[str]) -> tuple[int, int, str]:
    """Lines in front of the statements of a function."""
    begin, _ = _span(loaded, function)
    if _is_behind_colon(loaded, begin):
        return begin, begin, "\n" + _indented(lines, function.col_offset + 4) + "\n" + " " * (function.col_offset + 4)
    return begin, begin, _indented(lines, body_of(function)[0].col_offset) + "\n"


def _in_place_of_body(loaded: Loaded, function: ast.FunctionDef, lines: list[str]) -> tuple[int, int, str]:
    """Where the statements of a function stand, and other lines for them."""
    begin, end = _span(loaded, function)
    statement = body_of(function)[0]
    if _is_behind_colon(loaded, begin):
        return begin, end, "\n" + _indented(lines, function.col_offset + 4)
    return begin, end, _indented(lines, statement.col_offset)


def _behind_body(loaded: Loaded, function: ast.FunctionDef, line: str) -> tuple[int, int, str]:
    """Where the statements of a function stand, and the same with one more."""
    begin, end = _span(loaded, function)
    body = loaded.source.text[begin:end]
    if _is_behind_colon(loaded, begin):
        return begin, end, "\n" + _indented([body, line], function.col_offset + 4)
    return begin, end, body + "\n" + _indented([line], body_of(function)[0].col_offset)


def _span(loaded: Loaded, function: ast.FunctionDef) -> tuple[int, int]:
    source, statements = loaded.source, body_of(function)
    return body_span(source.text, source.span(statements[0])[0], source.span(statements[-1])[1])


def _is_behind_colon(loaded: Loaded, begin: int) -> bool:
    """Whether a body stands on the line of its `def`."""
    text = loaded.source.text
    return bool(text[text.rfind("\n", 0, begin) + 1 : begin].strip())


def _indented(lines: list[str], columns: int) -> str:
    return "\n".join(" " * columns + line for line in lines)
