"""Whatever is done to a spec, reading it gives a spec or a mistake with a place; and what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelgen.errors import SpecError
from kernelgen.spec import load_spec, parse_spec, shipped_specs
from kernelgen.spec.cases import Sizes
from kernelgen.spec.constraints import check
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.model import DTYPES, STRATEGIES, OperatorSpec

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in shipped_specs()}

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

# what breaks parsers: YAML's own signs, odd scalars, words of the spec, and pieces of Python
PIECES = st.sampled_from(
    [
        *(
            "",
            " ",
            "\t",
            "\n",
            "\r",
            ":",
            ": ",
            "- ",
            "-",
            "? ",
            "[",
            "]",
            "{",
            "}",
            ",",
            "#",
            "&a ",
            "*a",
            "!!str ",
            "!x ",
        ),
        *(
            "|",
            ">",
            "|2",
            "%",
            "@",
            "`",
            "'",
            '"',
            "<<: *a",
            "---\n",
            "...",
            "...\n",
            "\x00",
            "\x85",
            "\u2028",
            "\ufeff",
            "é",
        ),
        *(
            "~",
            "null",
            "yes",
            "no",
            "off",
            "1e-3",
            "0",
            "-1",
            "1.5",
            ".nan",
            ".inf",
            "0x10",
            "1_000",
            "9" * 400,
            "2001-01-01",
        ),
        *(
            "T",
            "D",
            "x",
            "bias",
            "name",
            "shape",
            "dtype",
            "inputs",
            "x.shape",
            "x.ndim >= 1",
            "x.shape[9] == 1",
            "float16",
        ),
        *(
            "def f():",
            "return",
            "lambda: 0",
            "import os",
            "x = (",
            "))",
            "\\",
            '"\\U00110000"',
            "class A: pass",
            "yield",
            "print",
        ),
    ]
)


def outcome(text: str) -> OperatorSpec | SpecError:
    """What reading gives; any other exception is a failure of the test."""
    try:
        return parse_spec(text, "fuzzed.yaml")
    except SpecError as error:
        return error


def read(text: str) -> OperatorSpec | None:
    """The spec, or None after a check that its mistakes stand somewhere in the file."""
    result = outcome(text)
    if isinstance(result, OperatorSpec):
        return result
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert result.mistakes
    for mistake in result.mistakes:
        assert 1 <= mistake.line <= len(lines) + 1, str(mistake)
        line = lines[mistake.line - 1] if mistake.line <= len(lines) else ""
        assert 1 <= mistake.column <= len(line) + 2, (str(mistake), line)
        assert 0 < len(mistake.message) <= 300
        assert "\n" not in mistake.message
    return None


@FUZZ
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_lines_moved_repeated_or_lost(name: str, data: st.DataObject) -> None:
    lines = TEXTS[name].split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in "ij")
        match data.draw(st.sampled_from(["delete", "repeat", "swap", "indent", "cut", "replace"])):
            case "delete":
                del lines[i : i + 1]
                lines = lines or [""]
            case "repeat":
                lines.insert(j, lines[i])
            case "swap":
                lines[i], lines[j] = lines[j], lines[i]
            case "indent":
                lines[i] = " " * data.draw(st.integers(0, 5)) + lines[i].lstrip()
            case "cut":
                lines[i] = lines[i][: data.draw(st.integers(0, len(lines[i])))]
            case "replace":
                lines[i] = data.draw(PIECES)
    read("\n".join(lines))


@FUZZ
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_characters_replaced(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 8))
        text = text[:start] + data.draw(PIECES | st.text(max_size=3)) + text[end:]
    read(text)


@FUZZ
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_words_replaced(name: str, data: st.DataObject) -> None:
    import re

    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        words = list(re.finditer(r"\w+|\.\.\.|[^\w\s]", text))
        word = words[data.draw(st.integers(0, len(words) - 1))]
        text = text[: word.start()] + data.draw(PIECES) + text[word.end() :]
    read(text)


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in parsed YAML where a value can be put, as a container and a key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [pair for key in keys for pair in [(value, key), *_nodes(value[key])]]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5) | PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | PIECES, inner, max_size=3),
    max_leaves=5,
)


@FUZZ
@given(st.sampled_from(sorted(TEXTS)), st.booleans(), st.data())
def test_values_of_another_kind(name: str, flow: bool, data: st.DataObject) -> None:
    tree = yaml.safe_load(TEXTS[name])
    for _ in range(data.draw(st.integers(1, 2))):
        nodes = _nodes(tree)
        container, key = nodes[data.draw(st.integers(0, len(nodes) - 1))]
        match data.draw(st.sampled_from(["replace", "delete", "add"])):
            case "replace":
                container[key] = data.draw(VALUES)
            case "delete":
                del container[key]
            case "add" if isinstance(container, dict):
                container[data.draw(st.text(max_size=4) | PIECES)] = data.draw(VALUES)
            case "add":
                container.insert(key, data.draw(VALUES))
    reference = tree.pop("reference", None)
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    if isinstance(reference, str) and not flow:
        text += "reference: |\n" + "".join(f"  {line}\n" for line in reference.split("\n"))
    read(text)


@FUZZ
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_bytes_replaced(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    raw = TEXTS[name].encode()
    start = data.draw(st.integers(0, len(raw)))
    raw = raw[:start] + data.draw(st.binary(max_size=4)) + raw[start + data.draw(st.integers(0, 4)) :]
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(raw)
    try:
        load_spec(path)
    except SpecError as error:
        mistakes = error.mistakes
    else:
        return
    assert mistakes


@FUZZ
@given(st.text() | st.lists(PIECES, max_size=12).map("".join))
def test_any_text(text: str) -> None:
    assert read(text) is None


EXPRESSIONS = st.lists(
    st.sampled_from(
        [
            "x",
            "bias",
            "y",
            ".shape",
            ".shape[-1]",
            ".shape[3]",
            ".ndim",
            ".numel()",
            ".dim()",
            ".size(0)",
            ".stride(1)",
            ".dtype",
            ".is_contiguous()",
            "len(",
            "(",
            ")",
            "[",
            "]",
            "==",
            "!=",
            "<",
            "<=",
            "=",
            "+",
            "-",
            "*",
            "//",
            "/",
            "%",
            "**",
            "and",
            "or",
            "not",
            "in",
            "is",
            "1",
            "0",
            "-1",
            "1.5",
            "'a'",
            "True",
            "lambda",
            "if",
            "else",
            ":",
            ",",
            ".",
            "for",
        ]
    ),
    max_size=10,
)


@settings(FUZZ, max_examples=200)
@given(EXPRESSIONS, st.sampled_from(["", " "]))
def test_any_constraint(pieces: list[str], between: str) -> None:
    text = between.join(pieces)
    found = check(text, ("x", "bias"))
    assert all(0 <= offset <= len(text) for offset, _ in found)
    if not found:  # then it can be evaluated, and says at worst why it does not hold
        broken(text.strip(), {"x": Layout((2, 3)), "bias": Layout((3,))})


NAMES = st.sampled_from(["a", "b2", "some_name", "Weight", "no", "on", "y", "n", "off", "yes", "true", "null", "e1"])


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A right spec, as the values its keys should have."""
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    sizes = draw(st.lists(st.sampled_from(["N", "D", "rows", "On", "n_4"]), max_size=3, unique=True))
    variables = draw(st.lists(st.sampled_from(["T", "U", "No"]), min_size=1, max_size=2, unique=True))
    leading = draw(st.booleans())
    symbols = (["..."] if leading else []) + sizes

    def tensor(name: str, dtype: str) -> dict[str, Any]:
        inner = draw(st.permutations([*sizes, *draw(st.lists(st.integers(1, 9), max_size=1))]))
        return {"name": name, "shape": (["..."] if leading else []) + list(inner), "dtype": dtype}

    inputs = [tensor(name, variables[i % len(variables)]) for i, name in enumerate([*names[1:], "x9"])]
    case = st.fixed_dictionaries(
        {s: st.lists(st.integers(0, 99), max_size=3) if s == "..." else st.integers(0, 2**40) for s in symbols}
    )
    cases = st.lists(case, min_size=1, max_size=3, unique_by=lambda sizes: json.dumps(sizes, sort_keys=True))
    return {
        "name": names[0],
        "summary": draw(st.text("abc: #'\"é-", min_size=1, max_size=9).filter(str.strip)),
        "inputs": inputs,
        "outputs": [tensor("out", variables[0])],
        "dtypes": {v: draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3, unique=True)) for v in variables},
        "constraints": ["x9.ndim >= 0"],
        "optimization_strategies": draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=6, unique=True)),
        "accuracy": {"shapes": draw(cases)},
        "performance": {"shapes": draw(cases)},
        "target": {"speedup": draw(st.floats(1e-9, 1e9)), "bandwidth": draw(st.floats(1e-9, 1))},
        "max_rounds": draw(st.integers(1, 20)),
        "folder": "/".join(names[:2]),
    }


def _sizes(shape: dict[str, Any], order: Sizes) -> Sizes:
    return tuple((name, tuple(shape[name]) if isinstance(shape[name], list) else shape[name]) for name, _ in order)


@settings(FUZZ, max_examples=60)
@given(specs(), st.booleans())
def test_what_is_written_is_what_is_read(declared: dict[str, Any], block: bool) -> None:
    reference = f"def {declared['name']}({', '.join(t['name'] for t in declared['inputs'])}):\n    return x9\n"
    if block:
        text = yaml.safe_dump(declared, sort_keys=False, allow_unicode=True)
    else:
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in declared.items())
    text += "reference: |\n" + "".join(f"   {line}\n" for line in reference.splitlines())
    spec = parse_spec(text)
    assert (spec.name, spec.summary) == (declared["name"], " ".join(declared["summary"].split()))
    tensors = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in (*spec.inputs, *spec.outputs)]
    assert tensors == declared["inputs"] + declared["outputs"]
    assert {name: list(values) for name, values in spec.dtypes} == declared["dtypes"]
    assert spec.reference == reference
    for key in ("accuracy", "performance"):
        bound = [case.sizes for case in getattr(spec, key)]
        listed = [_sizes(shape, bound[0]) for shape in declared[key]["shapes"]]
        assert bound == [sizes for sizes in listed for _ in spec.dtype_bindings()]
    assert list(spec.optimization_strategies) == declared["optimization_strategies"]
    assert (spec.target.speedup, spec.target.bandwidth) == tuple(declared["target"].values())
    assert (spec.max_rounds, spec.folder) == (declared["max_rounds"], declared["folder"])


@pytest.mark.parametrize("path", shipped_specs(), ids=lambda path: path.stem)
def test_reading_is_deterministic(path: Path) -> None:
    assert load_spec(path) == load_spec(path)
