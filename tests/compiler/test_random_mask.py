"""random_mask draws what Triton's Philox draws, and what Random123 publishes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from references import plan_of, sample

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.random_mask import random_mask

SEEDS = (0, 1, 2**31 + 7, 2**40 + 3, -1, -(2**63), 2**63 - 1)
KNOWN = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""Of the counter 0 and the key 0, from Random123's kat_vectors for philox4x32 with 10 rounds."""


@triton.jit
def draw_kernel(seed_ptr, out_ptr):
    seed = tl.load(seed_ptr)
    counter = tl.arange(0, 32)
    a, b, c, d = tl.randint4x(seed, counter)
    tl.store(out_ptr + counter * 4, a.to(tl.int64))
    tl.store(out_ptr + counter * 4 + 1, b.to(tl.int64))
    tl.store(out_ptr + counter * 4 + 2, c.to(tl.int64))
    tl.store(out_ptr + counter * 4 + 3, d.to(tl.int64))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_words_are_tritons(seed: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    key = torch.tensor(seed, device=device)
    words = torch.empty(128, dtype=torch.int64, device=device)
    draw_kernel[(1,)](key, words)
    for probability in (0.1, 0.5, 0.9):
        drawn = random_mask(key, (4, 32), probability)
        assert torch.equal(drawn.flatten(), words < round(probability * 2**32))


def test_the_words_are_those_that_random123_publishes() -> None:
    zero = torch.tensor(0)
    for i, word in enumerate(KNOWN):
        assert not random_mask(zero, (4,), word / 2**32)[i]
        assert random_mask(zero, (4,), (word + 1) / 2**32)[i]


def test_a_mask_does_not_depend_on_what_follows_and_has_its_probability() -> None:
    seed = torch.tensor(1234)
    long = random_mask(seed, (1001, 997), 0.9)
    assert torch.equal(random_mask(seed, (999,), 0.9), long.flatten()[:999])
    assert abs(long.double().mean() - 0.9) < 1.5e-3  # five standard deviations
    assert random_mask(seed, (), 0.9).shape == ()
    assert random_mask(seed, (0, 3), 0.9).shape == (0, 3)


@pytest.mark.parametrize(
    ("seed", "probability", "message"),
    [
        (": int32", "0.5", "a seed that is not a zero-dimensional int64 tensor"),
        ("1: int64", "0.5", "a seed that is not a zero-dimensional int64 tensor"),
        (": int64", "1.0", "a probability of 1.0"),
        (": int64", "0", "a probability of 0"),
        (": int64", "float('nan')", "a probability of nan"),
    ],
)
def test_what_is_no_mask_is_refused(seed: str, probability: str, message: str) -> None:
    lines = f"return torch.where(random_mask(seed, x.shape, {probability}), x, 0.0)"
    found = sample(lines, {"x": "...", "seed": seed}, {"out": "..."}, {"...": (3,)})
    with pytest.raises(UnsupportedError, match=message):
        plan_of(found.spec())
