"""Constraints: what may be written, where a mistake stands, and what the generated checks say."""

from __future__ import annotations

import dataclasses

import pytest

from kernelgen.spec.constraints import check, conjuncts, facts_of, failing, message
from kernelgen.spec.layout import Layout, broken
from kernelgen.spec.model import Constraint, OperatorSpec, Place, TensorFacts, TensorSpec

INPUTS = ("x", "bias")


@pytest.mark.parametrize(
    "text",
    [
        "x.ndim >= 1",
        "x.shape[-1] == bias.numel()",
        "x.shape == bias.shape",
        "x.shape[:-1] == bias.shape[1:]",
        "x.is_contiguous() and bias.is_contiguous()",
        "not x.is_contiguous() or x.dim() == 2",
        "(x.size(0) + x.size(1)) * 2 - 1 <= bias.numel() // 3 % 7",
        "1 <= len(x.shape) < 5",
        "x.dtype == bias.dtype",
        "x.stride(-1) == 1",
        "  x.ndim == -1  ",
    ],
)
def test_what_a_constraint_may_say(text: str) -> None:
    assert check(text, INPUTS) == []


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        ("§y.ndim >= 1", "'y' is no input; known: x, bias"),
        ("x.ndim >= §biass.ndim", "'biass' is no input; did you mean 'bias'?"),
        ("§x.dims >= 1", "'.dims' cannot be used in a constraint; did you mean 'dim'?"),
        ("x.ndim == 1 and §bias.data == 1", "'.data' cannot be used in a constraint"),
        ("§x.numel >= 1", "'numel' is a method: write x.numel()"),
        ("§x.size == 1", "'size' is a method: write x.size(i)"),
        ("§x.size() == 1", "write x.size(i), with 1 argument"),
        ("§x.numel(3) == 1", "write x.numel(), with 0 arguments"),
        ("x.shape[§x.ndim] == 1", "a dimension is a whole number, got 'x.ndim'"),
        ("x.shape[:§1.5] == bias.shape", "a dimension is a whole number, got '1.5'"),
        ("§x == bias.shape[0]", "'x' is a whole tensor"),
        ("x.ndim == §len(x)", "'len(x)' cannot be used here"),
        ("x.ndim == §1.0", "'1.0' cannot be used here"),
        ("x.ndim == §True", "'True' cannot be used here"),
        ("x.ndim == §'a'", "cannot be used here"),
        ("x.ndim == §2 ** 3", "'2 ** 3' cannot be used here"),
        ("§x.ndim in (1, 2)", "'x.ndim in (1, 2)' cannot be used here"),
        ("§[i for i in x.shape] == 1", "cannot be used here"),
        ("§(lambda: 1)() == x.ndim", "cannot be used here"),
        ("§__import__('os').system('x') == x.ndim", "cannot be used here"),
        ("§x.ndim.__class__ == 1", "cannot be used here"),
        ("§x.ndim", "'x.ndim' is a value, not a condition"),
        ("x.ndim == 1 and §x.numel() % 2", "'x.numel() % 2' is a value, not a condition"),
        ("not §x.ndim", "'x.ndim' is a value, not a condition"),
        ("§1 < 2", "names no input; the inputs are x, bias"),
        ("x.ndim §= 1", "compare with '=='"),
        ("x.ndim ==§", "not a Python expression"),
        ("§(x.ndim == 1", "not a Python expression: '(' was never closed"),
        ("x.ndim == 'ππ' and §y.ndim == 1".replace("'ππ'", "2"), "'y' is no input"),
    ],
)
def test_a_mistake_in_a_constraint_has_its_column(marked: str, said: str) -> None:
    found = check(marked.replace("§", ""), INPUTS)
    assert [offset for offset, _ in found] == [marked.index("§")], found
    assert said in found[0][1]


def test_columns_count_characters_not_bytes() -> None:
    assert [offset for offset, _ in check("ππ.ndim == 1 and y.ndim == 1", INPUTS)] == [0, 17]


def test_all_mistakes_of_one_constraint_are_found() -> None:
    assert [offset for offset, _ in check("a.ndim == b.ndim", INPUTS)] == [0, 10]


def test_a_size_used_by_name_is_explained() -> None:
    assert check("D % 8 == 0", INPUTS, {"D": "x.shape[-1]"}) == [(0, "'D' is a size, not an input; write x.shape[-1]")]


def test_conjuncts_keep_their_text_and_place() -> None:
    whole = Constraint("x.ndim == 2 and (x.shape[0] == 1 or bias.ndim == 1) and x.is_contiguous()", Place(7, 5))
    assert conjuncts(whole) == (
        Constraint("x.ndim == 2", Place(7, 5)),
        Constraint("x.shape[0] == 1 or bias.ndim == 1", Place(7, 22)),
        Constraint("x.is_contiguous()", Place(7, 61)),
    )
    assert conjuncts(Constraint("x.ndim == 2 or x.ndim == 3")) == (Constraint("x.ndim == 2 or x.ndim == 3"),)


@pytest.mark.parametrize(
    ("text", "promised"),
    [
        ("x.is_contiguous()", True),
        ("x.ndim == 2 and x.is_contiguous()", True),
        ("max.is_contiguous()", False),  # of another input, whose name ends like x
        ("not x.is_contiguous()", False),
        ("x.is_contiguous() or x.ndim == 1", False),
    ],
)
def test_a_promise_that_an_input_is_contiguous_is_all_that_is_said(text: str, promised: bool) -> None:
    x = TensorSpec("x", (), "float32")
    spec = OperatorSpec("f", "", (x,), (), (), (Constraint(text),), "", Place(1, 1), (), ())
    assert facts_of(spec) == TensorFacts(frozenset(["x"] if promised else []))
    made = dataclasses.replace(spec, facts=TensorFacts(frozenset(["left"])))
    assert facts_of(made).contiguous == {"left", *(["x"] if promised else [])}


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("x.ndim >= 1", "x.ndim < 1"),
        ("x.shape[-1] == bias.numel()", "x.shape[-1] != bias.numel()"),
        ("(x.ndim + 1) * 2 != 4", "(x.ndim + 1) * 2 == 4"),
        ("x.is_contiguous()", "not x.is_contiguous()"),
        ("not x.is_contiguous()", "x.is_contiguous()"),
        ("not (x.ndim == 1 or bias.ndim == 1)", "x.ndim == 1 or bias.ndim == 1"),
        ("1 <= x.ndim < 5", "not (1 <= x.ndim < 5)"),
        ("(x.ndim == 1) == (bias.ndim == 1)", "(x.ndim == 1) != (bias.ndim == 1)"),
        ("x.ndim == 1 or x.ndim == 2", "not (x.ndim == 1 or x.ndim == 2)"),
    ],
)
def test_the_negation_is_what_one_would_write_and_means_the_opposite(text: str, negated: str) -> None:
    constraint = Constraint(text)
    assert failing(constraint) == negated
    for rank in range(1, 6):
        tensors = {"x": Layout((1,) * rank), "bias": Layout((3,))}
        assert (broken(text, tensors) is None) == (broken(negated, tensors) is not None)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (
            "x.shape[-1] == bias.numel()",
            "f: needs x.shape[-1] == bias.numel(), got x {tuple(x.shape)}, bias {tuple(bias.shape)}",
        ),
        ("x.dtype == bias.dtype", "f: needs x.dtype == bias.dtype, got x {x.dtype}, bias {bias.dtype}"),
        ("x.is_contiguous()", "f: needs x.is_contiguous(), got x {tuple(x.shape)} with strides {x.stride()}"),
        (
            "x.ndim >= 1 and x.stride(0) == 1",
            "f: needs x.ndim >= 1 and x.stride(0) == 1, got x {tuple(x.shape)} with strides {x.stride()}",
        ),
        ("len(x.shape) == x.dim()", "f: needs len(x.shape) == x.dim(), got x {tuple(x.shape)}"),
    ],
)
def test_the_message_shows_what_was_asked_for(text: str, body: str) -> None:
    assert message("f", Constraint(text)) == body


def test_the_message_is_the_body_of_an_f_string() -> None:
    import torch

    body = message("scale", Constraint("x.shape[-1] == bias.numel()"))
    said = eval(f'f"{body}"', {"x": torch.ones(2, 3), "bias": torch.ones(4)})
    assert said == "scale: needs x.shape[-1] == bias.numel(), got x (2, 3), bias (4,)"


def test_a_layout_answers_as_a_contiguous_tensor_does() -> None:
    import torch

    for shape in ((), (3,), (2, 3, 4), (5, 1)):
        tensor, layout = torch.empty(shape), Layout(shape)
        assert (layout.ndim, layout.dim(), layout.numel()) == (tensor.ndim, tensor.dim(), tensor.numel())
        assert [layout.stride(i) for i in range(-len(shape), len(shape))] == [
            tensor.stride(i) for i in range(-len(shape), len(shape))
        ]
        assert layout.is_contiguous()
    with pytest.raises(IndexError):
        Layout((2,)).stride(1)
