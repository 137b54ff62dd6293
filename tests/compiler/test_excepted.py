"""References whose trace holds for all sizes but one: right there too, or refused."""

from __future__ import annotations

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen.errors import SpecError

LONG = ("x.shape[-1] >= 5",)
ROWS: tuple[dict[str, int], ...] = ({"N": 3, "D": 5}, {"N": 3, "D": 37}, {"N": 1, "D": 6})
IMAGE = {"x": "B C H W", "w": "8 C 3 3"}
NORM = "return F.group_norm(F.conv2d(x, w), 4)"
SAME = {
    "the last of a row": sample("return x[:, -5:] * 2", {"x": "N D"}, {"out": "N 5"}, *ROWS, constraints=LONG),
    "the first of a row": sample("return x[:, :5] + x[:, -5:]", {"x": "N D"}, {"out": "N 5"}, *ROWS, constraints=LONG),
    "a norm after a window": sample(
        NORM, IMAGE, {"out": "B 8 H-2 W-2"},
        {"B": 2, "C": 3, "H": 5, "W": 3}, {"B": 1, "C": 2, "H": 3, "W": 4}, {"B": 2, "C": 3, "H": 6, "W": 7},
        constraints=("x.shape[2] >= 3", "x.shape[3] >= 3"),
    ),
    "a norm after a window of three sizes": sample(
        "return F.group_norm(F.conv3d(x, w), 4)", {"x": "B C D H W", "w": "8 C 3 3 3"}, {"out": "B 8 D-2 H-2 W-2"},
        {"B": 2, "C": 3, "D": 4, "H": 3, "W": 3}, {"B": 1, "C": 2, "D": 4, "H": 5, "W": 4},
        constraints=tuple(f"x.shape[{d}] >= 3" for d in (2, 3, 4)),
    ),
}  # fmt: skip
OTHERWISE = {
    "another step": "five = x.shape[1] == 5\nreturn x * 2 if five else x * 3",
    "another operand": "five = x.shape[1] == 5\nreturn x + (x if five else y)",
    "another order": "five = x.shape[1] == 5\nreturn x.flip(1) if five else x * 1",
    "one of two sizes": "both = x.shape[1] == 5 and x.shape[0] == 9\nreturn x * 2 if both else x * 3",
}


@pytest.mark.parametrize("name", SAME)
def test_a_size_that_is_left_out_and_means_the_same(name: str) -> None:
    assert not failures(SAME[name], thorough=False, most=2)


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_size_that_is_left_out_and_means_another_thing(name: str) -> None:
    found: Sample = sample(OTHERWISE[name], {"x": "N D", "y": "N D"}, {"out": "N D"})
    with pytest.raises(SpecError, match=r"a branch on a size .*write two specs"):
        plan_of(found.spec())
