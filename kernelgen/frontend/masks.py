"""Random masks: which elements Triton's Philox keeps, recomputed from the seed wherever they are needed."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Call, Refused, Rule

OPERATION = "random_mask"


def threshold(probability: float) -> int:
    """Below what a word of 32 bits has to be; words are uniform."""
    return round(probability * 2**32)


def random_mask(b: Builder, c: Call) -> Ref:
    """`random_mask(seed, shape, probability)`: one word of random bits an element, by its place in the shape."""
    seed, probability = c.args[0], c.args[2]
    if b.node(seed).shape or b.node(seed).dtype != "int64":
        raise Refused("random_mask with a seed that is not a zero-dimensional int64 tensor")
    inside = isinstance(probability, int | float) and 0 < probability < 1
    if not inside or not 0 < threshold(probability) < 2**32:
        raise Refused(f"random_mask with a probability of {probability} (supported: numbers between 0 and 1)")
    count = tuple(atom for dim in c.shape for atom in dim)
    place = b.view("reshape", b.place((count,), ix.axis(-1)), c.shape)
    return b.map(OPERATION, seed, place, float(probability))


RULES: dict[str, Rule] = {f"kernelgen_reference.{OPERATION}.default": random_mask}
