"""The compiler's functions as the strategies see them."""

from __future__ import annotations

from kernelgen import custom
from kernelgen.plan import Parameter, Plan, Schedule
from kernelgen.spec.model import Case
from kernelgen.strategies import Compiler


def families_compiler() -> Compiler:
    """The real ones; a kernel that no family wrote has no parameters and serves all sizes."""
    from kernelgen import families
    from kernelgen.render import triton_source

    def space(plan: Plan, row: int, cases: tuple[Case, ...]) -> tuple[Parameter, ...]:
        proposed = plan.table[row].schedule.variant == custom.PROPOSED
        return () if proposed else families.space(plan, row, cases)

    def legal(plan: Plan, schedule: Schedule, case: Case) -> str | None:
        if custom.is_proposed(plan) and len(plan.table) > 1:
            return "a proposed kernel serves all sizes or none"
        return None if schedule.variant == custom.PROPOSED else families.legal(plan, schedule, case)

    return Compiler(space, families.variants, legal, families.key_bytes, families.row_of, triton_source)
