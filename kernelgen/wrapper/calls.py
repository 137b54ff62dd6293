"""The host side of a file in which operations stay calls of torch's: a function for every kernel, and what calls them
in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernelgen.families.calls import joined
from kernelgen.families.helpers import with_called
from kernelgen.plan import Alternative, ChoicesPlan, KernelPlan, Operand, Step, StepsPlan, TorchCall, View
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, Size
from kernelgen.spec.sizes import is_expression, renamed
from kernelgen.wrapper.checks import Check
from kernelgen.wrapper.file import file_text
from kernelgen.wrapper.launch import FileText, copied_back, filled, guard, size_places
from kernelgen.wrapper.launch import results as returned

_DENSE = tuple(f"torch.{name}" for name in ("mm", "bmm", "addmm", "baddbmm", "nn.functional.linear"))
"""Functions whose result is contiguous whatever the strides of what they read."""


@dataclass(frozen=True)
class Group:
    """The function of one kernel."""

    function: str
    spec: OperatorSpec
    file: FileText
    table: str
    """What its schedule table is called."""


@dataclass(frozen=True)
class Line:
    """A statement of the wrapper, below the statement of the reference that it is part of."""

    text: str
    comment: str
    when: str = ""
    """The condition under which it is run, if any."""


@dataclass(frozen=True)
class Body:
    """A function that calls those of kernels."""

    function: str
    spec: OperatorSpec
    lines: tuple[Line, ...]
    filled: tuple[Check, ...]
    """What is refused of inputs without elements."""


@dataclass(frozen=True)
class Sequence:
    """What the template of such a file prints."""

    groups: tuple[Group, ...]
    bodies: tuple[Body, ...]
    """Functions that call those of the groups; the last is the operator's."""
    helpers: tuple[str, ...]
    functions: tuple[str, ...]
    imports: tuple[str, ...]
    guard: str
    """The context manager around the statements of the operator's function."""


def sequence(plan: StepsPlan | ChoicesPlan) -> Sequence:
    """The functions of a plan's kernels, and those that call them."""
    if isinstance(plan, StepsPlan):
        specs = (plan.spec, *(k.spec for k in plan.kernels))
        taken = {plan.spec.name, *(t.name for spec in specs for t in (*spec.inputs, *spec.outputs))}
        groups, body = _steps(plan, taken, "")
        return _sequence(plan, groups, (body,))
    groups, bodies = (), []
    for one in plan.alternatives:
        suffix = f"{one.choice.suffix.upper()}_" if one.choice.suffix else ""
        if isinstance(one.plan, StepsPlan):
            taken = {f"compute_{joined([o.name for o in k.spec.outputs])}" for k in one.plan.kernels}
            more, body = _steps(one.plan, taken, suffix)
            filled = _in_name_of(plan.spec, one.plan.spec, body.filled)
            bodies.append(replace(body, function=_function(one), filled=filled))
        else:
            more = (_group(one.plan, _function(one), f"{suffix}SCHEDULES"),)
        groups += tuple(replace(g, file=_refusing_as(plan.spec, g)) for g in more)
    return _sequence(plan, groups, (*bodies, _dispatch(plan)))


def _sequence(plan: StepsPlan | ChoicesPlan, groups: tuple[Group, ...], bodies: tuple[Body, ...]) -> Sequence:
    used = {name for group in groups for name in group.file.helpers}
    functions = tuple(dict.fromkeys(name for group in groups for name in group.file.functions))
    imports = tuple(dict.fromkeys(line for group in groups for line in group.file.imports))
    return Sequence(groups, bodies, with_called(used), functions, imports, guard(plan.spec))


def _refusing_as(spec: OperatorSpec, group: Group) -> FileText:
    """What a function refuses, it refuses in the name of the operator."""
    file = group.file
    large = _in_name_of(spec, group.spec, [Check(*file.too_large)]) if file.too_large else ()
    return replace(
        file,
        too_large=(large[0].condition, large[0].message) if large else None,
        filled=_in_name_of(spec, group.spec, file.filled),
    )


def _in_name_of(spec: OperatorSpec, part: OperatorSpec, checks: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(replace(c, message=c.message.replace(f"{part.name}: ", f"{spec.name}: ", 1)) for c in checks)


def _dispatch(plan: ChoicesPlan) -> Body:
    """The operator's function, which calls that of the way in which it is called."""
    lines = []
    for one in plan.alternatives:
        inputs = [t.name for t in one.choice.spec.inputs]
        text = f"return {_function(one)}({', '.join(inputs)})"
        lines.append(Line(text, "", one.choice.when))
    return Body(plan.spec.name, plan.spec, tuple(lines), ())


def _function(one: Alternative) -> str:
    """The function of one way of calling, which may be the only one."""
    made = joined([o.name for o in one.choice.spec.outputs])
    return one.choice.spec.name if one.choice.suffix else f"compute_{made}"


def _steps(plan: StepsPlan, taken: set[str], suffix: str) -> tuple[tuple[Group, ...], Body]:
    """The groups of a plan with calls, and the function of its statements."""
    plan, kept = _written(plan)
    kernels = plan.kernels
    groups = tuple(_step(one, taken, suffix, alone=len(kernels) == 1) for one in kernels)
    waiting = iter(groups)
    lines = [
        _call(plan, step) if isinstance(step, TorchCall) else Line(_launch(next(waiting)), "") for step in plan.steps
    ]
    copies, results = copied_back(plan.spec, kept), returned(plan.spec)
    lines += [Line(text, "") for text in copies]
    last, made = lines[-1].text, f"{', '.join(o.name for o in plan.spec.outputs)} = "
    if last.startswith(made):
        lines[-1] = replace(lines[-1], text=f"return {last.removeprefix(made)}")
    else:
        lines.append(Line(f"return {results}", ""))
    return groups, Body(plan.spec.name, plan.spec, tuple(lines), tuple(check for _, check in filled(plan)))


def _written(plan: StepsPlan) -> tuple[StepsPlan, frozenset[str]]:
    """The plan in which kernels write into an input only where no later step reads it; and the outputs of these."""
    kept: set[str] = set()
    steps: list[Step] = []
    for i, step in enumerate(plan.steps):
        later = {name for other in plan.steps[i + 1 :] for name in _reads(other)}
        if isinstance(step, KernelPlan):
            own = {t.name for t in step.spec.inputs}
            outputs = tuple(replace(o, into=o.into if o.into in own - later else None) for o in step.spec.outputs)
            kept |= {o.name for o in outputs if o.into is not None}
            step = replace(step, spec=replace(step.spec, outputs=outputs))
        steps.append(step)
    return replace(plan, steps=tuple(steps)), frozenset(kept)


def _reads(step: Step) -> set[str]:
    """The tensors whose elements a step reads."""
    if isinstance(step, TorchCall):
        return {operand.tensor.name for operand in step.operands}
    return {t.name for t in step.spec.inputs if t.role != "like"}


def _step(plan: KernelPlan, taken: set[str], suffix: str, *, alone: bool) -> Group:
    made = joined([o.name for o in plan.spec.outputs])
    function = f"compute_{made}"
    while function in taken:
        function = f"{function}_{suffix.lower() or 'alone_'}"[:-1]
    return _group(plan, function, f"{suffix}SCHEDULES" if alone else f"{suffix}{made.upper()}_SCHEDULES")


def _group(plan: KernelPlan, function: str, table: str) -> Group:
    return Group(function, plan.spec, replace(file_text(plan), guard=""), table)


def _launch(group: Group) -> str:
    made, read = ([t.name for t in tensors] for tensors in (group.spec.outputs, group.spec.inputs))
    turned = ".movedim(-1, 1)" if group.spec.facts.turned else ""
    return f"{', '.join(made)} = {group.function}({', '.join(read)}){turned}"


def _call(plan: StepsPlan, call: TorchCall) -> Line:
    places = size_places(plan.spec)
    text = f"{call.result.name} = {call.text.format(*(_operand(o, places) for o in call.operands))}"
    said = call.statement.replace("F.", "torch.nn.functional.")
    comment = f"# {call.statement}" if said not in (text, "") else ""
    read = {t.name for group in plan.kernels for t in group.spec.inputs if t.role != "like"}
    if (call.result.name in read or call.contiguous) and not is_dense(call):
        copied = text.removesuffix(".clone()")
        text = f"{copied}.clone(memory_format=torch.contiguous_format)" if copied != text else f"{text}.contiguous()"
    return Line(text, comment)


def is_dense(call: TorchCall) -> bool:
    """Whether the result is known to be contiguous."""
    if call.is_view:
        return all(view.op == "reshape" for view in call.operands[0].views)
    if call.function != "torch.matmul":
        return call.function in _DENSE
    first, second = (o.tensor.shape for o in call.operands)
    return ELLIPSIS not in second and len(second) <= max(2, len(first))


def _operand(operand: Operand, places: dict[str, str]) -> str:
    return operand.tensor.name + "".join(_view(view, places) for view in operand.views)


def _view(view: View, places: dict[str, str]) -> str:
    if view.op != "permute":
        return f".{view.op}({', '.join(_size(s, places) for s in view.sizes)})"
    order, rank = view.sizes, len(view.sizes)
    if order == (*range(rank - 2), rank - 1, rank - 2):
        return ".T" if rank == 2 else ".mT"
    return f".permute({', '.join(map(str, order))})"


def _size(size: Size, places: dict[str, str]) -> str:
    if size == ELLIPSIS:
        return f"*{places[ELLIPSIS]}"
    if isinstance(size, int):
        return str(size)
    return renamed(size, places) if is_expression(size) else places[size]
