"""Specs: what a right one says, and for a wrong one each mistake with its exact line and column."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from kernelgen import judge
from kernelgen.errors import Mistake, SpecError, UnsupportedError, UsageError
from kernelgen.spec import find_spec, json_schema, load_spec, parse_spec, shipped_specs
from kernelgen.spec.model import Case, Constraint, Place, Target, TensorSpec
from kernelgen.wrapper.checks import checks

SPEC = """\
name: scale
type: pointwise
summary: Scale the last dimension.
inputs:
  - {name: x, shape: [..., D], dtype: T}
  - {name: weight, shape: [D], dtype: T}
outputs:
  - {name: out, shape: [..., D], dtype: T}
dtypes: {T: [float16, float32]}
constraints:
  - x.ndim >= 1
  - x.shape[-1] == weight.numel()
reference: |
  def scale(x, weight):
      return x * weight
optimization_strategies: [grid_config, block_size]
accuracy: {shapes: [{...: [7, 3], D: 129}, {...: [], D: 1}]}
performance: {shapes: [{...: [512], D: 512}], dtypes: {T: [float16]}}
target: {speedup: 1.5, bandwidth: 0.6}
max_rounds: 3
"""


def edited(old: str, new: str) -> str:
    """SPEC with one passage replaced."""
    assert SPEC.count(old) == 1, old
    return SPEC.replace(old, new)


def mistakes(text: str) -> list[Mistake]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "scale.yaml")
    return list(caught.value.mistakes)


def expect(marked: str, *messages: str) -> None:
    """The mistakes of a text stand exactly at its § marks, in their order, and say `messages`."""
    wanted, text = [], ""
    for part in marked.split("§")[:-1]:
        text += part
        wanted.append((text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1))
    found = mistakes(marked.replace("§", ""))
    assert [(m.line, m.column) for m in found] == wanted, [str(m) for m in found]
    for mistake, message in zip(found, messages, strict=True):
        assert message in mistake.message, mistake.message


def test_a_spec_says_what_it_says() -> None:
    spec = parse_spec(SPEC, "scale.yaml")
    assert (spec.name, spec.type, spec.summary) == ("scale", "pointwise", "Scale the last dimension.")
    assert spec.inputs == (
        TensorSpec("x", ("...", "D"), "T", place=Place(5, 5)),
        TensorSpec("weight", ("D",), "T", place=Place(6, 5)),
    )
    assert spec.outputs == (TensorSpec("out", ("...", "D"), "T", place=Place(8, 5)),)
    assert spec.dtypes == (("T", ("float16", "float32")),)
    assert spec.constraints[1] == Constraint("x.shape[-1] == weight.numel()", Place(12, 5))
    assert spec.reference == "def scale(x, weight):\n    return x * weight\n"
    assert spec.reference_place == Place(14, 3)
    assert [case.label for case in spec.accuracy] == [
        "[7, 3] D=129 float16",
        "[7, 3] D=129 float32",
        "[] D=1 float16",
        "[] D=1 float32",
    ]
    assert spec.performance == (Case((("...", (512,)), ("D", 512)), (("T", "float16"),), "[512] D=512 float16"),)
    assert spec.optimization_strategies == ("grid_config", "block_size")
    assert spec.target == Target(1.5, 0.6, None)
    assert (spec.max_rounds, spec.folder, spec.path) == (3, "scale", "scale.yaml")
    assert len(spec.sha256) == 64


def test_what_is_not_written_has_a_sensible_default() -> None:
    text = """\
name: scale
inputs: [{name: x, shape: [N, C, 3], dtype: float32, role: data}]
outputs: [{name: out, shape: [N, C, 3], dtype: float32}]
reference: |
  def scale(x):
      return 2 * x
"""
    spec = parse_spec(text)
    assert spec.summary == "The scale operator, as its PyTorch reference defines it."
    assert spec.constraints == ()
    assert spec.target == Target()
    assert spec.max_rounds == 5
    assert len(spec.optimization_strategies) == 6
    assert [case.label for case in spec.accuracy] == ["N=17 C=18", "N=1 C=1", "N=64 C=64", "N=141 C=142"]
    assert [case.label for case in spec.performance] == ["N=4096 C=4096"]


def test_derived_shapes_keep_to_the_constraints() -> None:
    text = (
        edited("  - x.ndim >= 1\n", "  - x.shape[-1] % 16 == 0\n").replace("accuracy:", "#").replace("performance", "#")
    )
    spec = parse_spec(text)
    assert {case.shape(spec.inputs[0].shape)[-1] % 16 for case in spec.accuracy} == {0}
    assert all(case.derived and judge.Case.from_json(case.to_json()).derived for case in spec.accuracy)
    assert not any(case.derived for case in parse_spec(SPEC).accuracy)
    text = text.replace("% 16 == 0", "== 5")
    assert [m.message for m in mistakes(text)] == [
        "no derived shape meets the constraints; list some under 'accuracy: shapes:'",
        "no derived shape meets the constraints; list some under 'performance: shapes:'",
    ]


def test_numbers_and_words_are_what_they_look_like() -> None:
    spec = parse_spec(edited("speedup: 1.5, bandwidth: 0.6", "speedup: 2, bandwidth: 1e-3, l2_hit: .5"))
    assert spec.target == Target(2.0, 0.001, 0.5)
    # YAML 1.1 reads these as booleans
    text = edited("name: x, shape: [..., D]", "name: no, shape: [..., off]").replace("[D]", "[off]")
    text = text.replace("x.ndim", "no.ndim").replace("x.shape", "no.shape").replace("D: ", "off: ")
    text = (
        text.replace("(x, weight)", "(no, weight)")
        .replace("x * ", "no * ")
        .replace("out, shape: [..., D]", "y, shape: [..., off]")
    )
    spec = parse_spec(text)
    assert (spec.inputs[0].name, spec.inputs[0].shape, spec.outputs[0].name) == ("no", ("...", "off"), "y")


def test_block_style_and_windows_line_ends_read_the_same() -> None:
    block = edited(
        "accuracy: {shapes: [{...: [7, 3], D: 129}, {...: [], D: 1}]}",
        "accuracy:\n  shapes:\n    - ...: [7, 3]\n      D: 129\n    - {...: [], D: 1}",
    )
    plain = parse_spec(SPEC)
    assert parse_spec(block).accuracy == plain.accuracy
    windows = parse_spec("\ufeff" + SPEC.replace("\n", "\r\n"))
    assert (windows.reference, windows.reference_place) == (plain.reference, plain.reference_place)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "dtypes: {T: [float16, float32]}",
            "§dtyps: {T: [float16, float32]}\ndtypes: {T: [float16, float32]}",
            "unknown key 'dtyps'",
        ),
        ("outputs:", "§output:", "unknown key 'output'; did you mean 'outputs'?"),
        ("max_rounds: 3", "§max_round: 3", "unknown key 'max_round'; did you mean 'max_rounds'?"),
        ("{speedup: 1.5", "{§speed: 1.5", "unknown key 'speed'; did you mean 'speedup'?"),
        ("{name: weight, shape: [D]", "{name: weight, §shap: [D], shape: [D]", "unknown key 'shap'"),
        (
            "{speedup: 1.5",
            "{§max_rounds: 3, speedup: 1.5",
            "unknown key 'max_rounds'; 'max_rounds' is a key of the spec itself",
        ),
        ("max_rounds: 3", "max_rounds: 3\n§max_rounds: 4", "duplicate key 'max_rounds'; first on line 20"),
        ("{T: [float16, float32]}", "{T: [float16], §T: [float32]}", "duplicate key 'T'; first on line 9"),
        ("{...: [512], D: 512}", "{...: [512], D: 512, §D: 3}", "duplicate key 'D'"),
        ("name: scale\n", "name: §3d\n", "'3d' is not a name"),
        ("name: scale\n", "name: §lambda\n", "'lambda' is a word of Python"),
        ("name: scale\n", "name: §triton\n", "'triton' has a meaning of its own"),
        ("name: scale\n", "name:§ \n", "'name' needs a name, got nothing"),
        ("name: scale\n", 'name: §"a\\nb"\n', "'a b' is not a name"),
        ("max_rounds: 3", '§"max\\nrounds": 3', "unknown key 'max rounds'; did you mean 'max_rounds'?"),
        ("max_rounds: 3", "folder: §" + "x" * 200 + "!", "'" + "x" * 59 + "…' is not a folder"),
        ("name: scale\n", "name: §[scale]\n", "'name' needs a name, got a list"),
        ("type: pointwise", "type: §pointwize", "unknown type 'pointwize'; did you mean 'pointwise'?"),
        ("summary: Scale the last dimension.", "summary: §{a: b}", "'summary' needs a text, got a mapping"),
        (
            "{name: x, shape: [..., D], dtype: T}",
            "{name: x, shape: [..., D], dtype: T, role: §liek}",
            "did you mean 'like'?",
        ),
        ("x, shape: [..., D]", "x, shape: §D", "'inputs[0].shape' needs a list, got 'D'"),
        ("x, shape: [..., D]", "x, shape: [..., D, §0]", "must be at least 1, got '0'"),
        ("x, shape: [..., D]", "x, shape: [..., D, §...]", "'...' may stand only once"),
        ("x, shape: [..., D]", "x, shape: [..., D, §1.5]", "'1.5' is not a name"),
        ("out, shape: [..., D]", "out, shape: [..., §E]", "size 'E' is bound by no input"),
        ("name: out", "name: §x", "'x' is already an input"),
        ("name: out", "name: §scale", "'scale' is already the operator's name"),
        (
            "out, shape: [..., D], dtype: T",
            "out, shape: [..., D], dtype: §flot16",
            "unknown dtype 'flot16'; did you mean 'float16'?",
        ),
        ("out, shape: [..., D], dtype: T", "out, shape: [..., D], dtype: §half", "did you mean 'float16'?"),
        (
            "out, shape: [..., D], dtype: T",
            "out, shape: [..., D], dtype: §complex64",
            "no complex numbers: use float32",
        ),
        ("{T: [float16, float32]}", "{T: [float16, §float64]}", "kernels have no float64"),
        ("out, shape: [..., D], dtype: T", "out, shape: [..., D], dtype: §Q", "declare it under 'dtypes'"),
        ("{T: [float16, float32]}", "{T: [float16, §float23]}", "unknown dtype 'float23'; did you mean 'float32'?"),
        ("{T: [float16, float32]}", "{T: [float16, §float16]}", "dtype 'float16' is listed twice"),
        ("{T: [float16, float32]}", "{T: [float16, float32], §U: [int8]}", "no tensor has the dtype 'U'"),
        ("{T: [float16, float32]}", "{T: §[]}", "'dtypes.T' needs at least one entry"),
        ("  - x.ndim >= 1", "  - §a.ndim >= 1", "'a' is no input; known: x, weight"),
        ("  - x.ndim >= 1", "  - 'x.ndim >= §wieght.ndim'", "'wieght' is no input; did you mean 'weight'?"),
        ("  - x.ndim >= 1", "  - §x.ndim >=\n    wieght.ndim", "'wieght' is no input"),
        ("  - x.ndim >= 1", "  - §'x.ndim == ''a'' '", "''a'' cannot be used here"),
        ("  - x.ndim >= 1", "  - §|\n    x.ndim >= 1\n    + 1", "a constraint is one line"),
        ("  - x.ndim >= 1", "  - x.ndim §= 1", "compare with '=='"),
        ("  - x.ndim >= 1", "  - 1 == §D", "'D' is a size, not an input; write x.shape[-1]"),
        ("  - x.ndim >= 1", "  - §1 == 1", "names no input; the inputs are x, weight"),
        ("  - x.ndim >= 1", "  -§ ", "'constraints[0]' needs a text, got nothing"),
        (
            "[grid_config, block_size]",
            "[grid_config, §block_sise]",
            "unknown strategy 'block_sise'; did you mean 'block_size'?",
        ),
        ("[grid_config, block_size]", "[grid_config, §grid_config]", "strategy 'grid_config' is listed twice"),
        ("[grid_config, block_size]", "§[]", "needs at least one entry"),
        ("D: 129", "§d: 129, D: 129", "size 'd' occurs in no input"),
        ("{...: [7, 3], D: 129}", "§{...: [7, 3]}", "size 'D' has no value here"),
        ("[7, 3], D: 129", "[7, §x], D: 129", "needs a whole number, got 'x'"),
        ("[7, 3], D: 129", "[7, 3], D: §-1", "'accuracy.shapes[0].D' must be at least 0, got '-1'"),
        ("[7, 3], D: 129", "[7, 3], D: §99999999999999", "must be at most"),
        ("[7, 3], D: 129", "[7, 3], D: §[1]", "'D' is one size: give one number"),
        ("[7, 3], D: 129", "§7, D: 129", "'...' stands for any number of dimensions"),
        ("{...: [], D: 1}", "{...: [], D: 1}, §{D: 1, ...: []}", "the same sizes as on line 17"),
        ("{...: [], D: 1}]", "{...: [], D: 1}, §3]", "'accuracy.shapes[2]' needs keys and values, got '3'"),
        ("{T: [float16]}", "{T: [§int8]}", "'T' does not range over int8"),
        ("{T: [float16]}", "{§S: [float16]}", "'S' is no dtype variable"),
        ("speedup: 1.5", "speedup: §yes", "'target.speedup' needs a number, got 'yes'"),
        ("speedup: 1.5", "speedup: §0", "'target.speedup' must be above 0"),
        ("bandwidth: 0.6", "bandwidth: §60", "'target.bandwidth' must be at most 1, got '60'"),
        ("bandwidth: 0.6", "bandwidth: §.nan", "needs a number, got '.nan'"),
        ("max_rounds: 3", "max_rounds: §0", "'max_rounds' must be at least 1, got '0'"),
        ("max_rounds: 3", "max_rounds: §3.0", "'max_rounds' needs a whole number"),
        ("max_rounds: 3", "deterministic: §no", "unknown word 'no'; known: true, false"),
        ("max_rounds: 3", "precision: §tf64", "unknown precision 'tf64'; known: ieee, tf32x3, tf32"),
        ("max_rounds: 3", "folder: §../scale", "'../scale' is not a folder below operators/"),
        ("max_rounds: 3", "folder: §/tmp", "'/tmp' is not a folder below operators/"),
    ],
)
def test_one_mistake_has_one_place(old: str, new: str, message: str) -> None:
    expect(edited(old, new), message)


@pytest.mark.parametrize("key", ["name", "inputs", "outputs", "reference"])
def test_a_missing_key_is_named(key: str) -> None:
    start = SPEC.index(f"\n{key}:") + 1 if key != "name" else 0
    rest = SPEC[start:].split("\n")
    end = next(i for i, line in enumerate(rest) if i > 0 and not line.startswith(" "))
    messages = [m.message for m in mistakes(SPEC[:start] + "\n".join(rest[end:]))]
    assert f"a spec needs the key '{key}'" in messages


def test_mistakes_cross_processes_whole() -> None:
    error = UnsupportedError([Mistake("a.yaml", 2, 1, "second"), Mistake("a.yaml", 1, 1, "first")])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.mistakes, str(again)) == (UnsupportedError, error.mistakes, str(error))


def test_all_mistakes_come_together() -> None:
    expect(
        """\
name: scale
§typ: pointwise
inputs:
  - {name: x, shape: [..., D], §dtyp: T, dtype: T}
  - {name: weight, shape: [D], dtype: §float61}
outputs:
  - {name: out, shape: [..., §E], dtype: T}
dtypes: {T: [§half]}
constraints:
  - x.§ndims >= 1
§dtypes: {T: [float16]}
reference: |
  def scale(x, §w):
      §import os
      return §y
max_rounds: §x
""".replace("x.§ndims", "§x.ndims"),
        "unknown key 'typ'; did you mean 'type'?",
        "unknown key 'dtyp'",
        "unknown dtype 'float61'; did you mean 'float16'?",
        "size 'E' is bound by no input",
        "unknown dtype 'half'; did you mean 'float16'?",
        "'.ndims' cannot be used in a constraint; did you mean 'ndim'?",
        "duplicate key 'dtypes'; first on line 8",
        "parameter 'w' stands where the input 'weight' is declared",
        "the reference has an import",
        "the reference uses 'y', which is not defined",
        "'max_rounds' needs a whole number, got 'x'",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def scale(x, weight):\n    return x * §* weight", "not Python: invalid syntax"),
        ("def scale(x, weight)§\n    return x * weight", "not Python: expected ':'"),
        ("def scale(x, weight):\n§return x * weight", "not Python: expected an indented block"),
        ("def scale(x, weight):\n    return x * weight\n§return 3", "not Python: 'return' outside function"),
        (
            "def §scales(x, weight):\n    return x * weight",
            "no function 'scale'; 'scales' should have the operator's name",
        ),
        ("§def a(x):\n    return x\n\ndef b(x):\n    return x", "no function 'scale'; known: a, b"),
        (
            "def scale(x, weight):\n    return x\n\n§def scale(x, weight):\n    return x",
            "a second function named 'scale'",
        ),
        ("§def scale(x):\n    return x", "no parameter for 'weight'"),
        ("def scale(§weight, §x):\n    return x", "parameter 'weight' stands where the input 'x'"),
        ("def scale(x, weight, §eps):\n    return x", "parameter 'eps' is no input and needs a default"),
        ("def scale(x, weight, *, §eps):\n    return x", "parameter 'eps' is no input and needs a default"),
        ("def scale(x, weight, *§rest):\n    return x", "'*rest' in the reference"),
        ("def scale(x, weight):\n    return §np.multiply(x, weight)", "uses 'np', which is not defined"),
        ("def scale(x, weight):\n    y = §troch.exp(x)\n    return y", "did you mean 'torch'?"),
        ("def scale(x, weight):\n    wide = x.float()\n    return §wid * weight", "did you mean 'wide'?"),
        ("def scale(x, weight):\n    §print(x)\n    return x", "'print' is not available"),
        ("def scale(x, weight):\n    return §open('f')", "'open' is not available"),
        ("def scale(x, weight):\n    §import math\n    return x", "an import; torch, F"),
        ("§from torch import exp\ndef scale(x, weight):\n    return exp(x)", "an import"),
        ("def scale(x, weight):\n    §global y\n    y = x\n    return y", "a global statement"),
        ("§class A: pass\ndef scale(x, weight):\n    return x", "a class"),
        ("§EPS = 1e-6\ndef scale(x, weight):\n    return x + 1", "a statement outside a function"),
        ("@§torch.no_grad()\ndef scale(x, weight):\n    return x", "a decorator"),
        ("def scale(x, weight):\n    §assert x.ndim\n    return x", "an assert statement"),
        ("def scale(x, weight):\n    return §x.__class__", "reads '__class__'"),
        ("§def scale(x, weight):\n    x * weight", "'scale' returns nothing"),
        ("def scale(x, weight):\n    return §x, weight", "2 values returned where 'outputs' declares 1"),
        ("def scale(x, weight):\n    if x.ndim == 1:\n        §return\n    return x", "a return without a value"),
        ("def scale(x, weight):\n    π = math.pi  # ππ\n    return π * §ψ", "uses 'ψ', which is not defined"),
        ("§async def scale(x, weight):\n    return x", "an async function"),
    ],
)
def test_mistakes_in_the_reference(body: str, message: str) -> None:
    block = "".join(f"  {line}\n" if line else "\n" for line in body.split("\n"))
    block = block.replace("  §return 3", "  §return 3")
    marked = edited("  def scale(x, weight):\n      return x * weight\n", block)
    found = marked.count("§")
    expect(marked, message, *[""] * (found - 1))


def test_a_reference_may_use_helpers_defaults_and_comprehensions() -> None:
    body = """\
  # a comment and a blank line first

  def halves(x, *, parts=2):
      return [piece for piece in x.chunk(parts, dim=-1)]

  def scale(x, weight, eps=1e-6, *, factor=2.0):
      '''Scale.'''
      widths = tuple(len(p.shape) for p in halves(x))
      twice = lambda value: factor * value
      return twice(torch.mul(x, weight)) + eps + F.relu(x) * math.sqrt(2) * max(widths)
"""
    spec = parse_spec(edited("  def scale(x, weight):\n      return x * weight\n", "\n" + body))
    assert spec.reference.startswith("# a comment")
    assert spec.reference_place == Place(15, 3)


@pytest.mark.parametrize(
    "text",
    ["reference: §>\n  def scale(x, weight):\n      return x\n", 'reference: §"def scale(x, weight): return x"\n'],
)
def test_only_a_literal_block_keeps_the_lines_of_a_reference(text: str) -> None:
    old = "reference: |\n  def scale(x, weight):\n      return x * weight\n"
    expect(edited(old, text), "write the reference as a block")


def test_indentation_indicators_and_comments_keep_the_place() -> None:
    text = edited("reference: |\n  def scale(x, weight):\n", "reference: |2-  # why\n\n  def scale(x, §w):\n")
    expect(text.replace("x * weight", "x * w"), "parameter 'w'")


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("§", "the file is empty"),
        ("# nothing\n§".replace("§", ""), "the file is empty"),
        ("§- name: scale\n", "a spec is a mapping that starts with 'name:', got a list"),
        ("§scale\n", "a spec is a mapping that starts with 'name:', got 'scale'"),
        ("name: scale\n§\ttype: pointwise\n", "a tab; YAML is indented with spaces"),
        ("name: [scale\ntype§: pointwise\n", "not YAML: expected ',' or ']'"),
        ("name: 'scale\n§", "not YAML: found unexpected end of stream"),
        ("name: scale§: x\n", "not YAML: mapping values are not allowed here"),
        ("name: §\x07\n", "character U+0007 is not allowed in YAML"),
        ("name: a§\u2028b\n", "line separator U+2028"),
        ("name: §@scale\n", "not YAML: found character '@'"),
        ("%YAML 3.0§\n---\nname: x\n".replace("§", ""), "not YAML"),
        ('name: "\\§U00110000"\n'.replace("§", ""), "not YAML"),
    ],
)
def test_what_is_not_a_yaml_mapping_is_one_mistake(marked: str, message: str) -> None:
    if "§" in marked:
        expect(marked, message)
    else:
        assert [m for m in mistakes(marked) if message in m.message]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape: [D], dtype: T", "shape: §&s [D], dtype: T", "anchor '&s'"),
        ("max_rounds: 3", "max_rounds: §*rounds", "alias '*rounds'"),
        ("max_rounds: 3", "max_rounds: 3\n§<<: {folder: x}", "merge key '<<'"),
        ("max_rounds: 3", 'max_rounds: 3\n§"\\0": 1', "a key is a name, got one that begins with a null character"),
        ("max_rounds: 3", "max_rounds: §!!int 3", "tag 'tag:yaml.org,2002:int'"),
        ("max_rounds: 3", "max_rounds: 3\n§[a]: 3", "a key is a name, got a list"),
        ("max_rounds: 3\n", "max_rounds: 3\n§---\nname: x\n", "a second document"),
    ],
)
def test_yaml_that_a_spec_does_not_use_is_refused(old: str, new: str, message: str) -> None:
    found = mistakes(edited(old, new).replace("§", ""))
    text = edited(old, new)
    before = text[: text.index("§")]
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    assert [(m.line, m.column) for m in found if message in m.message] == [place], [str(m) for m in found]


def test_deep_nesting_and_huge_files_are_mistakes() -> None:
    assert "nested more than 16 deep" in mistakes("name: " + "[" * 100_000)[0].message
    assert "nested more than 16 deep" in mistakes("{a: " * 5_000)[0].message
    assert "at most 1,048,576 are read" in mistakes("#" * (1 << 20) + "\nname: x")[0].message


def test_deep_expressions_are_mistakes() -> None:
    deep = "x.ndim >= 1" + " + 1" * 20_000
    assert mistakes(edited("x.ndim >= 1", deep))
    assert mistakes(edited("x * weight", "-" * 50_000 + "x"))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("x.shape[-1] % 16 == 0", "the constraint 'x.shape[-1] % 16 == 0' does not hold for these sizes"),
        ("x.shape[1] == 3", "asks for a dimension that is not there"),
        ("x.numel() // x.ndim % (x.ndim - 1) >= 0", "divides by zero"),
        ("x.shape > 3", "compares things that have no order"),
        ("x.dtype < weight.dtype", "compares things that have no order"),
    ],
)
def test_listed_shapes_keep_to_the_constraints(constraint: str, message: str) -> None:
    found = mistakes(edited("x.ndim >= 1", constraint))
    assert any(message in m.message for m in found), [str(m) for m in found]
    assert {m.line for m in found} <= {17, 18}


def test_dtypes_that_a_constraint_excludes_are_left_out() -> None:
    text = edited("shape: [D], dtype: T", "shape: [D], dtype: U").replace("32]}", "32], U: [float16, float32]}", 1)
    assert len(parse_spec(text).accuracy) == 8
    spec = parse_spec(text.replace("x.ndim >= 1", "x.dtype == weight.dtype"))
    assert [case.label for case in spec.accuracy[:2]] == [
        "[7, 3] D=129 T=float16 U=float16",
        "[7, 3] D=129 T=float32 U=float32",
    ]


def test_bytes_that_are_not_utf8_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: scale\nsummary: Größe\n".encode("latin-1"))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value) == f"{path}:2:12: byte 0xF6 is not UTF-8"


def test_files_that_cannot_be_read_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_spec(tmp_path)


def test_a_file_in_the_working_folder_wins_over_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, shipped = find_spec("broadcast.yaml")
    assert (path.name, shipped) == ("broadcast.yaml", True)
    assert find_spec("broadcast") == (path, True)
    (tmp_path / "broadcast").mkdir()
    assert find_spec("broadcast") == (path, True)
    (tmp_path / "broadcast.yaml").write_text(SPEC)
    assert find_spec("broadcast") == (Path("broadcast.yaml"), False)
    assert find_spec(str(tmp_path / "broadcast.yaml")) == (tmp_path / "broadcast.yaml", False)


@pytest.mark.parametrize("name", ["brodcast", "brodcast.yaml"])
def test_a_misspelt_spec_names_the_nearest(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: no such file.*did you mean 'broadcast'"):
        find_spec(name)


@pytest.mark.parametrize("name", ["", "\0", "x" * 5000, "specs/", "nothing/like/it.yaml"])
def test_hopeless_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError):
        find_spec(name)


def test_the_shipped_specs_are_those_of_the_docs() -> None:
    specs = {path.stem: load_spec(path) for path in shipped_specs()}
    assert {
        *("broadcast", "broadcast_channel", "broadcast_mask", "bias_add", "scale_shift", "gelu_tanh", "gelu_erf"),
        *("silu_mul", "softmax", "log_softmax", "rms_norm", "add_rms_norm", "layer_norm"),
    } <= set(specs)
    for name, spec in specs.items():
        assert spec.name == name
        if any(tensor.dtype == "T" for tensor in (*spec.inputs, *spec.outputs)):
            assert dict(spec.dtypes)["T"][:2] == ("float16", "bfloat16")
        labels = [case.label for case in spec.accuracy]
        assert len(set(labels)) == len(labels)
    assert specs["broadcast_channel"].folder == "broadcast/channel"


@pytest.mark.parametrize("path", shipped_specs(), ids=lambda path: path.stem)
def test_shipped_references_return_what_is_declared(path: Path) -> None:
    import math

    import torch

    from kernelgen.frontend.random_mask import random_mask

    spec = load_spec(path)
    scope = {"torch": torch, "F": torch.nn.functional, "math": math, "random_mask": random_mask}
    exec(spec.reference, scope)
    small = [case for case in spec.accuracy if all(math.prod(case.shape(t.shape)) < 100_000 for t in spec.inputs)]
    assert len(small) >= 3
    for case in small:
        arguments = [torch.zeros(case.shape(t.shape), dtype=getattr(torch, case.dtype(t.dtype))) for t in spec.inputs]
        for t, argument in zip(spec.inputs, arguments, strict=True):
            if t.offsets is not None:  # one part that has everything
                (argument[-1],) = case.shape((t.offsets,))
        found = scope[spec.name](*arguments)  # type: ignore[operator]
        for out, declared in zip(found if isinstance(found, tuple) else (found,), spec.outputs, strict=True):
            assert tuple(out.shape) == case.shape(declared.shape)
            assert out.dtype == getattr(torch, case.dtype(declared.dtype))


def test_the_json_schema_knows_every_key_and_describes_it() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["required"] == ["name", "inputs", "outputs", "reference"]
    assert schema["additionalProperties"] is False
    assert all("description" in entry for entry in schema["properties"].values())
    assert "null" not in json.dumps(schema)
    assert "bfloat16" in json.dumps(schema["properties"]["dtypes"])
    assert schema["$defs"]["InputEntry"]["properties"]["role"]["enum"] == [
        "data",
        "like",
        "parameter",
        "constant",
        "scale",
    ]


def test_the_document_shows_real_mistakes() -> None:
    document = (Path(__file__).parent.parent / "docs" / "spec.md").read_text("utf-8")
    spec = document.split("<!-- a spec with mistakes -->\n```yaml\n")[1].split("```")[0]
    shown = document.split("<!-- its mistakes -->\n```text\n")[1].split("\n```")[0]
    with pytest.raises(SpecError) as caught:
        parse_spec(spec, "scale_rows.yaml")
    assert str(caught.value) == shown


def test_the_document_names_every_key() -> None:
    document = (Path(__file__).parent.parent / "docs" / "spec.md").read_text("utf-8")
    schema = json_schema()
    keys = [*schema["properties"], *(key for part in schema["$defs"].values() for key in part["properties"])]
    assert [key for key in keys if f"`{key}`" not in document and f"{key}:" not in document] == []


MODULE = """\
module: |
  class Model:
      def forward(self, x):
          return NAME(x)
  def get_inputs():
      return []
  def get_init_inputs():
      return []
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("module: |", "module: >", "write the module as a block, 'module: |', with its text indented below it"),
        ("return NAME(x)", "return x", "the module has no class whose forward calls '{name}'"),
        ("get_init_inputs", "get_init_input", "the module has no function 'get_init_inputs'"),
        ("return []\n  def", "return [\n  def", "the module is not Python: '[' was never closed"),
    ],
)
def test_a_module_is_checked(old: str, new: str, expected: str) -> None:
    spec = parse_spec(SPEC)
    text = MODULE.replace("NAME", spec.name)
    assert parse_spec(SPEC + text).module == "\n".join(line[2:] for line in text.splitlines()[1:]) + "\n"
    with pytest.raises(SpecError) as raised:
        parse_spec(SPEC + MODULE.replace(old, new, 1).replace("NAME", spec.name))
    assert [m.message for m in raised.value.mistakes] == [expected.format(name=spec.name)]
    assert raised.value.mistakes[0].line > SPEC.count("\n")


def test_a_tensor_may_be_bool_and_a_parameter() -> None:
    text = SPEC.replace("inputs:\n", "inputs:\n  - {name: mask, shape: [D], dtype: bool, role: parameter}\n", 1)
    text = text.replace("def scale(", "def scale(mask, ")
    first = parse_spec(text).inputs[0]
    assert (first.dtype, first.role) == ("bool", "parameter")


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ("dtype: T, into: §weigth", "'weigth' is no input; did you mean 'weight'?"),
        ("dtype: T, into: §weight", "weight is [D], and out is [..., D]"),
        ("dtype: float32, into: §x", "x is T, and out is float32"),
    ],
)
def test_what_an_output_is_written_into_can_hold_it(into: str, message: str) -> None:
    expect(edited("  - {name: out, shape: [..., D], dtype: T}", f"  - {{name: out, shape: [..., D], {into}}}"), message)


def test_two_outputs_are_not_written_into_one_input_and_have_no_gradients() -> None:
    out = "  - {name: out, shape: [..., D], dtype: T, into: x}\n  - {name: two, shape: [..., D], dtype: T, into: §x}"
    text = edited("  - {name: out, shape: [..., D], dtype: T}", out).replace("x * weight\n", "x * weight, x\n")
    expect(text, "'out' is written into x already")
    text = edited("shape: [..., D], dtype: T}\ndtypes", "shape: [..., D], dtype: T, into: §x}\nbackward: true\ndtypes")
    expect(text, "what is written into an input has no gradient; leave out 'into' or 'backward'")


def test_what_is_written_into_is_contiguous() -> None:
    spec = parse_spec(edited("shape: [..., D], dtype: T}\ndtypes", "shape: [..., D], dtype: T, into: x}\ndtypes"))
    assert spec.written == {"x": "out"}
    assert spec.constraints[-1].text == "x.is_contiguous()"


NUMBER = "  - {name: weight, shape: [D], dtype: T}\n"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: eps, scalar: bool, default: §1}", "unknown word '1'"),
        ("{name: eps, scalar: §bool}", "an option needs a default, as in 'scalar: bool, default: false'"),
        ("{name: eps, scalar: bool, default: §true, values: [false]}", "the default True is none of the 'values'"),
        ("{name: eps, scalar: int, default: §1.5}", "'inputs[2].default' needs a whole number, got '1.5'"),
        (
            "{name: eps, scalar: int, default: 2, values: [2, §two]}",
            "'inputs[2].values' needs a whole number, got 'two'",
        ),
        ("{name: eps, scalar: int, default: §1, values: [2, 4]}", "the default 1 is none of the 'values'"),
        ("{name: eps, scalar: int, default: 2, values: [2, §2]}", "the value 2 is listed twice"),
        ("{name: eps, scalar: §str, default: mean}", "a str is one of the 'values' that it may be"),
        (
            "{name: eps, scalar: str, default: mean, values: [mean, §'a b']}",
            "'inputs[2].values' needs a word, got 'a b'",
        ),
        ("{name: eps, scalar: §flaot, default: 1}", "unknown kind of number 'flaot'; did you mean 'float'?"),
        ("{name: eps, scalar: §float}", "a number needs a default, as in 'scalar: float, default: 1e-6'"),
        ("{name: eps, scalar: float, default: §small}", "'inputs[2].default' needs a number, got 'small'"),
        ("{name: eps, scalar: float, default: 1, §shape: []}", "a number has no 'shape'"),
        ("{name: eps, shape: [], dtype: T, §default: 1}", "a tensor has no 'default'; it is that of a number"),
        ("§{name: eps, shape: []}", "'inputs[2]' needs the key 'dtype'"),
    ],
)
def test_a_number_has_a_default_and_is_no_tensor(entry: str, message: str) -> None:
    expect(edited(NUMBER, f"{NUMBER}  - {entry}\n").replace("x, weight)", "x, weight, eps)"), message)


def test_numbers_stand_behind_tensors_and_have_no_gradients() -> None:
    text = edited("inputs:\n", "inputs:\n  - §{name: eps, scalar: float, default: 1}\n").replace("(x,", "(eps, x,")
    expect(text, "numbers and options stand behind the tensors: a call may leave them out")
    text = edited(NUMBER, f"{NUMBER}  - {{name: eps, scalar: float, default: -1e-3}}\n")
    spec = parse_spec(text.replace("x, weight)", "x, weight, eps)"))
    assert (spec.inputs[2].role, spec.inputs[2].default) == ("scalar", -1e-3)
    text = text.replace("x, weight)", "x, weight, eps)").replace("max_rounds", "backward: §true\nmax_rounds")
    expect(text, "there are no gradients beside numbers yet; give the parameter a default without an input")


def test_a_spec_is_found_by_its_name_without_listing_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` asks for every spec in turn: to glob and sort all of them each time took half of it."""
    (tmp_path / "specs" / "mine").mkdir(parents=True)
    (tmp_path / "specs" / "mine" / "own.yaml").write_text("name: own\n")
    monkeypatch.chdir(tmp_path)
    shipped_specs()
    monkeypatch.setattr(Path, "rglob", lambda *a: pytest.fail("listed"))
    monkeypatch.setattr(Path, "glob", lambda *a: pytest.fail("listed"))
    assert find_spec("own") == (Path("specs/mine/own.yaml"), False)
    assert find_spec("relu") == (next(path for path in shipped_specs() if path.stem == "relu"), True)


FOLLOWING = """\
name: op
inputs:
  - {name: y, shape: [N, T - 1], dtype: float32}
  - {name: x, shape: [N, T], dtype: float32}
outputs:
  - {name: out, shape: [N, T - 1], dtype: float32}
reference: |
  def op(y, x):
      return x[:, 1:] - y
accuracy:
  shapes:
    - {N: 2, T: 5}
performance:
  shapes:
    - {N: 2, T: 9}
"""


def test_a_size_of_an_input_may_follow_from_those_of_others() -> None:
    spec = parse_spec(FOLLOWING)
    assert spec.accuracy[0].shape(spec.inputs[0].shape) == (2, 4)
    assert [c.condition for c in checks(spec)][-1] == "y.shape[1] != x.shape[1] - 1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "x, shape: [N, T]",
            "x, shape: [N, T + 1]",
            "3:26: no size follows from 'T - 1': give an input a dimension 'T'",
        ),
        ("T: 5", "T: 0", "12:7: the size 'T - 1' of y is -1 for these sizes"),
        (
            "y, shape: [N, T - 1]",
            "y, shape: [N, T // 0]",
            "12:7: the size 'T // 0' of y divides by zero for these sizes",
        ),
    ],
)
def test_a_size_that_follows_from_nothing_or_is_below_zero_is_a_mistake(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_spec(FOLLOWING.replace(old, new))
