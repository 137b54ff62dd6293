"""The host side of an operator whose ways of calling are one kernel, with constexprs that say which is meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelgen.families import family_of
from kernelgen.families.kernel import body_of
from kernelgen.plan import ChoicesPlan, KernelPlan
from kernelgen.spec.choices import Choice, deciding
from kernelgen.spec.model import OperatorSpec, TensorSpec
from kernelgen.tile import ir
from kernelgen.tile.ways import Apart, merged
from kernelgen.wrapper.file import file_text, prepared_steps
from kernelgen.wrapper.flavours import flavours
from kernelgen.wrapper.launch import Branch, FileText, Launch, one_by_one


def one_file(plan: ChoicesPlan) -> FileText | None:
    """The text of a file with one function, None where the ways have kernels of their own."""
    plans = [_named(one.plan, plan.spec) for one in plan.alternatives if isinstance(one.plan, KernelPlan)]
    ways = [one.choice for one in plan.alternatives]
    if len(plans) < len(ways) or len(ways) < 2 or not all(one.is_tuned for one in plan.alternatives):
        return None
    if plan.spec.fork is not None or plan.spec.written or any(one.then is not None for one in plans):
        return None
    flags, passed = [_flags(plan.spec, way) for way in ways], _passed(plan.spec)
    try:
        whole = _whole(plan.spec, plans)
        steps = [_steps(one) for one in plans]
        made = {key: _joined([own[key] for own in steps], flags, passed) for key in steps[0]}
        text = file_text(whole, made)
        if {t.name for t in deciding(plan.spec)} & _variables(text):
            return None
        return _of_all(text, [file_text(one) for one in plans], _optional(plan.spec))
    except (Apart, KeyError):
        return None


def _named(plan: KernelPlan, spec: OperatorSpec) -> KernelPlan:
    return replace(plan, spec=replace(plan.spec, name=spec.name))


def _whole(spec: OperatorSpec, plans: Sequence[KernelPlan]) -> KernelPlan:
    """The plan whose kernels read all tensors."""
    tensors = {t.name for t in spec.tensors}
    found = [one for one in plans if {t.name for t in one.spec.tensors} == tensors]
    if not found:
        raise Apart
    return found[0]


def _steps(plan: KernelPlan) -> dict[tuple[object, ...], tuple[ir.Step, ...]]:
    """What is launched, by what tells one text from another."""
    family, body = family_of(plan), body_of(plan)
    texts = flavours(plan).items()
    return {key: prepared_steps(plan, family.kernels(plan.spec, body, s, name)) for key, (s, name) in texts}


def _joined(
    sequences: Sequence[tuple[ir.Step, ...]], flags: Sequence[Mapping[str, bool]], passed: Mapping[str, str]
) -> tuple[ir.Step, ...]:
    if len({len(sequence) for sequence in sequences}) > 1:
        raise Apart
    found = []
    for steps in zip(*sequences, strict=True):
        kernels = [step for step in steps if isinstance(step, ir.Kernel)]
        if len(kernels) < len(steps):
            raise Apart
        found.append(merged(kernels, flags, passed))
    return tuple(found)


def _flags(spec: OperatorSpec, way: Choice) -> dict[str, bool]:
    """What conditions may ask of one way."""
    known = dict(way.given)
    found: dict[str, bool] = {}
    for tensor in deciding(spec):
        name = _constexpr(tensor)
        if tensor.optional:
            found[name] = tensor.name not in known
        elif tensor.kind == "bool":
            found[name] = bool(known[tensor.name])
        else:
            for value in tensor.values:
                found[f"{name} == {value!r}".replace("'", '"')] = known[tensor.name] == value
    return found


def _passed(spec: OperatorSpec) -> dict[str, str]:
    return {_constexpr(t): f"{t.name} is not None" if t.optional else t.name for t in deciding(spec)}


def _constexpr(tensor: TensorSpec) -> str:
    return f"HAS_{tensor.name.upper()}" if tensor.optional else tensor.name.upper()


def _variables(text: FileText) -> set[str]:
    """What the wrapper calls its own variables."""
    assigned = [*text.sizes, *text.views, *text.left, *(pair for b in text.branches for pair in (*b.sizes, *b.scratch))]
    return {*text.own.values(), *(name for name, _ in assigned)}


def _optional(spec: OperatorSpec) -> dict[str, int]:
    """The inputs that may be left out, each with its number of dimensions."""
    return {t.name: len(t.shape) for t in spec.inputs if t.optional}


def _of_all(text: FileText, own: Sequence[FileText], optional: Mapping[str, int]) -> FileText:
    """The text for all ways, where what the wrapper does besides launching is the same in each. Raises Apart."""
    for one in own:
        same = [
            (t.outputs, t.key, t.too_large, t.returned, t.filled, t.reroutes, t.left, t.copies) for t in (text, one)
        ]
        if same[0] != same[1] or not {*one.sizes} <= {*text.sizes} or not {*one.views} <= {*text.views}:
            raise Apart
        if not {*one.prepare} <= {*text.prepare}:
            raise Apart
    asked = re.compile(rf"\b({'|'.join(optional)})\b" if optional else "(?!)")
    fixed = (text.outputs, text.sizes, text.views, text.too_large, text.key, text.left, text.filled)
    beside = [(b.sizes, b.scratch, b.fits) for b in text.branches]
    if asked.search(str(fixed)) or asked.search(str(beside)):
        raise Apart

    def given(expression: str, otherwise: str) -> str:
        """An expression that may ask a tensor that is left out."""
        name = asked.search(expression)
        return f"{otherwise} if {name[1]} is None else {expression}" if name else expression

    def launch(one: Launch) -> Launch:
        single = [a for argument in one.arguments for a in one_by_one(argument, optional)]
        arguments = tuple(a if a in optional or "=" in a else given(a, "0") for a in single)
        return replace(one, arguments=arguments)

    def branch(one: Branch) -> Branch:
        return replace(one, launches=tuple(map(launch, one.launches)), instead=tuple(map(launch, one.instead)))

    prepare = []
    for line in text.prepare:
        target, _, value = line.partition(" = ")
        prepare.append(f"{target} = {given(value, 'None')}")
    return replace(text, prepare=tuple(prepare), branches=tuple(map(branch, text.branches)))
