"""A Hypothesis strategy that draws references which read a tensor through chains of views."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import strategies as st
from random_moves import SMALL, _made
from references import Sample

Dim = tuple[int | str, ...]
"""A size as its factors."""

GIVEN: list[tuple[Dim, ...]] = [
    (("A",), (6,), (4,)), (("A",), (16,), (6,)), (("A",), (4, "B"), (6,)), (("A",), (8,), (3,), (4,)), ((12,), (4, "B")),
    (("A",), (2, "B"), (2, "C"), (3,)),
]  # fmt: skip
POINTWISE = ["torch.tanh({})", "{} * 0.7", "-{}", "torch.where({0} > 0, {0}, 0.25)"]
ROWS = [
    "{}.softmax({})",
    "{0} - {0}.mean({1}, keepdim=True)",
    "{0} / (1 + {0}.abs().amax({1}, keepdim=True))",
    "{}.sum({})",
]


@st.composite
def views(draw: st.DrawFn) -> Sample:
    """Dimensions that are parted, joined and permuted, whole or not, between pointwise steps and reductions."""
    given = shape = draw(st.sampled_from(GIVEN))
    sizes = {dim[-1]: (i, dim[:-1]) for i, dim in enumerate(given) if isinstance(dim[-1], str)}
    lines = [f"{name} = x.shape[{i}]{''.join(f' // {n}' for n in over)}" for name, (i, over) in sizes.items()]
    reduced = 0
    for _ in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["reshape", "reshape", "permute", "pointwise", "rows"]))
        if kind == "reshape":
            shape = draw(_reshaped(shape))
            lines.append(f"x = x.reshape({', '.join(map(_text, shape))})")
        elif kind == "permute" and len(shape) > 1:
            order = draw(st.permutations(range(len(shape))))
            shape = tuple(shape[d] for d in order)
            lines.append(f"x = x.permute({', '.join(map(str, order))})")
        elif kind == "rows" and reduced < 2 and len(shape) > 1:
            form, dim = draw(st.sampled_from(ROWS)), draw(st.integers(0, len(shape) - 1))
            shape = shape if "sum" not in form else shape[:dim] + shape[dim + 1 :]
            lines.append(f"x = {form.format('x', dim)}")
            reduced += 1
        elif kind == "pointwise":
            lines.append(f"x = {draw(st.sampled_from(POINTWISE)).format('x')}")
    shapes = [" ".join(_text(dim).replace(" ", "") for dim in own) for own in (given, shape)]
    return _made(draw, [*lines, "return x"], {"x": shapes[0]}, {"made": shapes[1]}, known=SMALL)


@st.composite
def _reshaped(draw: st.DrawFn, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """A shape, some adjacent dimensions of which are others with as many elements. Sizes with names keep their order,
    and so do the products of numbers between them: of another torch asks whether it is whole."""
    first, end = sorted(draw(st.tuples(*[st.integers(0, len(shape))] * 2).filter(lambda ends: ends[0] != ends[1])))
    atoms: Dim = ()
    for is_name, run in groupby((a for dim in shape[first:end] for a in dim), lambda atom: isinstance(atom, str)):
        factors = tuple(run)
        atoms += factors if is_name else tuple(draw(st.permutations([p for n in factors for p in _primes(int(n))])))
    cuts = sorted(draw(st.lists(st.integers(0, len(atoms)), max_size=2)))
    made = [atoms[a:b] for a, b in pairwise([0, *cuts, len(atoms)])]
    return (*shape[:first], *made, *shape[end:])


def _primes(n: int) -> list[int]:
    return next(([p, *_primes(n // p)] for p in range(2, n + 1) if n % p == 0), [])


def _text(dim: Dim) -> str:
    numbers = 1
    for atom in dim:
        numbers *= atom if isinstance(atom, int) else 1
    names = [atom for atom in dim if isinstance(atom, str)]
    return " * ".join([*([str(numbers)] if numbers > 1 or not names else []), *names])
