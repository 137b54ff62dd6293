"""Branches on sizes, of which a kernel follows one side: what is said of those that are settled, and of others."""

from __future__ import annotations

from kernelgen.frontend.mistakes import unsupported
from kernelgen.spec.branches import branches
from kernelgen.spec.constraints import failing
from kernelgen.spec.model import Constraint, OperatorSpec


def check_branches(spec: OperatorSpec) -> None:
    """Refuse a reference with a branch on sizes of which the spec's shapes take both sides, or that cannot be read."""
    known = {(side.line, side.column) for side in spec.sides}
    for branch in branches(spec):
        if (branch.line, branch.column) in known:
            continue
        why = "one kernel serves all sizes; only tests of the inputs' .shape, .ndim and numbers can be settled"
        if branch.text is not None:
            opposite = failing(Constraint(branch.text))
            why = (
                f"the shapes of the spec take both branches: write two specs, one with the constraint {branch.text} "
                f"and one with {opposite}, or list only shapes of one branch"
            )
        raise unsupported(spec, branch.line, f"a branch on a size ({why})")


def side_notes(spec: OperatorSpec) -> tuple[str, ...]:
    """What a reviewer should know of the sides that became constraints."""
    return tuple(
        f"the reference takes another branch unless {side.constraint}, which all shapes of the spec meet: other inputs "
        "are refused"
        for side in spec.sides
        if side.constraint
    )
