"""Products of triangles: sums end where a mask does, tiles that nobody keeps are not summed, and results are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import Sample
from test_matmul import INTERPRETED, LAYOUTS, check, inputs_of, kinds, of, of_sizes, one_kernel, tables

from kernelgen.families.kernel import body_of
from kernelgen.families.masks import Line, seeing, seen, total
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.judge.interpreter import as_on_a_gpu

SQUARE = {"a": "N N", "b": "N N"}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def square(lines: str, **more: Any) -> Sample:
    return of_sizes(lines, SQUARE, "N N", N=40, **more)


def wide(lines: str, m: int, k: int, n: int) -> Sample:
    return of_sizes(lines, {"a": "M K", "b": "K N"}, "M N", M=m, K=k, N=n)


FORMS = {
    "lower by lower": square("return torch.tril(a) @ torch.tril(b)"),
    "upper by upper": square("return torch.triu(a) @ torch.triu(b)"),
    "lower by upper": square("return torch.tril(a) @ torch.triu(b)"),
    "upper by lower": square("return torch.triu(a) @ torch.tril(b)"),
    "lower by lower, of which the lower triangle is kept": square("return torch.tril(torch.tril(a) @ torch.tril(b))"),
    "a factor with a name": square("left = torch.tril(a)\nreturn left @ b"),
    "only the second": wide("return a @ torch.tril(b, 3)", 35, 40, 41),
    "above a diagonal": wide("return torch.tril(a, 20) @ b", 35, 40, 24),
    "below a diagonal": wide("return torch.tril(a, -20) @ torch.tril(b, -3)", 50, 40, 48),
    "far below a diagonal": wide("return torch.tril(a, -50) @ b + 1", 35, 40, 32),
    "an upper triangle that ends early": wide("return torch.triu(a, -5) @ torch.triu(b, 7)", 40, 24, 48),
    "a band": square("return torch.triu(torch.tril(a, 9), -9) @ b"),
    "computed in a triangle": square("return torch.tril(a * 2 + 1) @ b"),
    "the lower triangle of a product": wide("return torch.tril(a @ b)", 50, 24, 48),
    "an upper triangle of what follows a product": wide("return torch.triu(torch.relu(a @ b) + 1, 20)", 50, 24, 48),
    "a band of a product": wide("return torch.triu(torch.tril(a @ b, 9), -9)", 50, 24, 48),
    "elsewhere what is no zero": wide(
        "i = torch.arange(a.shape[0], device=a.device)[:, None]\nj = torch.arange(b.shape[1], device=a.device)\n"
        "return torch.where(i < j, 2.0, a @ b).to(a.dtype)", 50, 24, 48,
    ),
    "in every batch": of_sizes(
        "return torch.tril(a) @ torch.tril(b)", {"a": "B N N", "b": "B N N"}, "B N N", B=2, N=35
    ),
    "a triangle of a batch": of_sizes(
        "return torch.tril(torch.bmm(a, b))", {"a": "B M K", "b": "B K N"}, "B M N", B=2, M=40, K=24, N=35
    ),
    "a transposed triangle": square("return torch.tril(a).t() @ b"),
    "of linear": square("return F.linear(a, torch.tril(b))"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_variant_is_right(name: str) -> None:
    found = FORMS[name]
    for at, (schedule, op) in enumerate(tables(one_kernel(found))):
        dtype, how = kinds(found)[at % 2], LAYOUTS[0 if schedule.variant == "boxes" else at % len(LAYOUTS)]
        check(found, op, inputs_of(found, found.sizes[0], dtype, how), (schedule, dtype, how))


SHARES = {
    "lower by lower": 1 / 6, "lower by upper": 1 / 3, "a factor with a name": 1 / 2,
    "the lower triangle of a product": 1 / 2,
}  # fmt: skip


@INTERPRETED
@pytest.mark.parametrize("name", SHARES)
def test_what_masks_leave_out_is_not_multiplied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    found, counted = FORMS[name], 0
    dot = InterpreterBuilder.create_dot

    def noted(*args: Any) -> Any:
        nonlocal counted
        counted += 1
        return dot(*args)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", noted)
    plan, size = one_kernel(found), 96
    tensors = inputs_of(found, dict.fromkeys("MKN", size), "float32")
    (result,) = [of("tiles", plan)(*tensors)]
    blocks = size // 16
    assert counted / blocks**3 < SHARES[name] + 1.1 / blocks
    assert torch.isfinite(result).all()
    body = body_of(plan)
    assert isinstance(body, ProductBody)
    assert body.triangles is not None
    exact = body.triangles.left(size, size, size, lambda _: size) / size**3
    assert SHARES[name] <= exact < SHARES[name] + 1 / size


def test_a_condition_that_is_no_place_bounds_nothing() -> None:
    found = of_sizes("return torch.where(a > 0, a, 0.0) @ b", {"a": "M K", "b": "K N"}, "M N", M=17, K=40, N=35)
    body = body_of(one_kernel(found))
    assert isinstance(body, ProductBody)
    assert body.triangles is None


_LINES = st.lists(st.tuples(st.booleans(), st.sampled_from((-1, 0, 1)), st.integers(-60, 60)), max_size=3)
_COUNT = st.integers(0, 80)


@given(_LINES, _LINES, _COUNT, _COUNT, _COUNT)
def test_what_is_left_is_counted_without_looking_at_every_row(
    ours: list[Line], others: list[Line], rows: int, keys: int, columns: int
) -> None:
    def of_row(row: int) -> int:
        return seen(ours, row, keys) * seen(others, row, columns)

    def of_key(key: int) -> int:
        return seeing(ours, key, rows) * seeing(others, key, columns)

    lines = (*ours, *others)
    assert total(of_row, rows, lines, (0, keys, columns)) == sum(map(of_row, range(rows)))
    levels = 0, rows, columns, rows - 1, columns - 1
    assert total(of_key, keys, lines, levels, across=True) == sum(map(of_key, range(keys)))
