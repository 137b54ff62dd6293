"""The same operators for a vector processor that fills and empties a buffer of its own: an Ascend NPU.

IR, layout and arithmetic are those of the other families; variants, schedules and what is legal are made here. A launch
has one program a core, each walks every num_programs-th tile, and a tile is sized for the buffer with everything in it
twice, so that loading, computing and storing overlap.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families.access import layout
from kernelgen.families.kernel import body_of, has_products, make_body
from kernelgen.families.npu import pointwise, reduction, scan
from kernelgen.plan import Chip, KernelPlan, TableRow
from kernelgen.spec.model import OperatorSpec, TensorFacts

FAMILIES = {made.name: made for made in (pointwise.FAMILY, reduction.FAMILY, scan.FAMILY)}
ALONE = "everything is reduced by one core"
LACKING = ("float8_e4m3fn",)
"""dtypes that a spec may have and triton-ascend 3.2.0 refuses."""
COPIED = "an input that is not contiguous is copied first"


def retarget(plan: KernelPlan, chip: Chip) -> KernelPlan:
    """The plan with the variants and first schedules of this family, its inputs packed.

    Raises UnsupportedError for an operator of a family that has none, or with tensors of a dtype the compiler lacks.
    """
    place = plan.spec.reference_place
    tensors = (*plan.spec.inputs, *plan.spec.outputs)
    lacking = [(t, d) for t in tensors for d in dict(plan.spec.dtypes).get(t.dtype, (t.dtype,)) if d in LACKING]
    if lacking:
        tensor, dtype = lacking[0]
        place, why = tensor.place, f"{tensor.name} is {dtype}, which its compiler does not have"
    elif plan.family == "scan" and has_products(body_of(plan)):
        why = "cumulative products of floats, which are scanned as pairs"
    elif f"npu_{plan.family}" not in FAMILIES:
        why = f"the family {plan.family}, which has no kernels for it"
    else:
        made = _retargeted(plan, chip)
        return replace(made, then=_of_rows(plan.then, chip)) if plan.then is not None else made
    raise UnsupportedError([Mistake(plan.spec.path, place.line, place.column, f"unsupported on this chip: {why}")])


def _retargeted(plan: KernelPlan, chip: Chip) -> KernelPlan:
    body = body_of(plan)
    lowered = body.lowered.whole or body.lowered  # the hardware copies intervals: it stores no every other element
    packed = make_body(plan.spec, lowered, body.statements, layout(_packed(plan.spec), lowered))
    packed = replace(packed, of_rows=body.of_rows)
    family = f"npu_{plan.family}"
    kept = [note for note in plan.notes if "copied first" not in note]
    if packed.lowered.space.inner_axes() and not packed.layout.rows:
        kept.append(ALONE)
    plan = replace(plan, family=family, body=packed, notes=(*kept, COPIED), chip=chip)
    return plan.with_table(FAMILIES[family].first_table(packed, (), chip))


def _of_rows(then: KernelPlan, chip: Chip) -> KernelPlan:
    """One program reduces what the rows left, in blocks: there may be any number. Half of what the buffer is planned to
    hold leaves room for an accumulator beside every load."""
    plan = _retargeted(then, chip)
    walk = plan.table[-1].schedule
    return plan.with_table((TableRow((), walk.replace(BLOCK_SIZE_N=walk.int("BLOCK_SIZE_N") // 2)),))


def _packed(spec: OperatorSpec) -> OperatorSpec:
    """The spec as the kernels see it: the wrapper has made every input contiguous."""
    return replace(spec, facts=TensorFacts(frozenset(t.name for t in spec.inputs)))
