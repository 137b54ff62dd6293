"""The input checks that a wrapper and its baseline share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelgen.spec.constraints import conjuncts, failing, message
from kernelgen.spec.model import ELLIPSIS, OPTION, SCALAR, OperatorSpec, Size, TensorSpec
from kernelgen.spec.sizes import follows, is_expression, multiple, renamed


@dataclass(frozen=True)
class Check:
    """One condition under which a wrapper raises ValueError, and the f-string body of its message."""

    condition: str
    message: str


def checks(spec: OperatorSpec) -> tuple[Check, ...]:
    """The input checks that the wrapper and the baseline share: dtypes, devices, ranks, sizes, numbers and options,
    then the constraints, at last elements where the spec has these looked at."""
    tensors = (*_dtype_checks(spec), *_shape_checks(spec), *_plain_checks(spec))
    found = (*tensors, *_constraint_checks(spec), *_element_checks(spec))
    return tuple({check.condition: check for check in reversed(found)}.values())[::-1]


def _plain_checks(spec: OperatorSpec) -> Iterator[Check]:
    """Types of numbers, and values of options."""
    for given in spec.inputs:
        name, got = given.name, f"got {{{given.name}!r}}"
        if given.role == SCALAR:
            kinds, wanted = ("int", "whole number") if given.kind == "int" else ("(int, float)", "number")
            yield Check(f"not isinstance({name}, {kinds})", f"{spec.name}: {name} must be a {wanted}, {got}")
        elif len(given.values) > 1 and given.kind == "bool":
            yield Check(f"not isinstance({name}, bool)", f"{spec.name}: {name} must be True or False, {got}")
        elif given.role == OPTION:
            values = [repr(value).replace("'", '"') for value in given.values]
            words = [str(value) for value in given.values]
            wanted = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
            known = f"{name} != {values[0]}" if len(values) == 1 else f"{name} not in ({', '.join(values)})"
            yield Check(known, f"{spec.name}: {name} must be {wanted}, {got}")


def _of_optional(tensor: TensorSpec, found: Check) -> Check:
    """A check of a tensor that a call may leave out."""
    if not tensor.optional:
        return found
    both = f"({found.condition})" if " or " in found.condition else found.condition
    return replace(found, condition=f"{tensor.name} is not None and {both}")


def _dtype_checks(spec: OperatorSpec) -> list[Check]:
    found: list[Check] = []
    first: dict[str, str] = {}
    for tensor in spec.tensors:
        name = tensor.name
        choices = dict(spec.dtypes).get(tensor.dtype, (tensor.dtype,))
        known = first.get(tensor.dtype, name) if tensor.optional else first.setdefault(tensor.dtype, name)
        if known != name:
            condition, wanted = f"{name}.dtype != {known}.dtype", f"have the dtype of {known}, {{{known}.dtype}}"
        elif len(choices) == 1:
            condition, wanted = f"{name}.dtype != torch.{choices[0]}", f"be {choices[0]}"
        else:
            condition = f"{name}.dtype not in ({', '.join(f'torch.{c}' for c in choices)})"
            wanted = f"be {', '.join(choices[:-1])} or {choices[-1]}"
        message = f"{spec.name}: {name} must {wanted}, got {{{name}.dtype}}"
        found.append(_of_optional(tensor, Check(condition, message)))
    first_name = spec.inputs[0].name
    for tensor in spec.tensors[1:]:
        message = f"{spec.name}: {tensor.name} must be on {{{first_name}.device}}, got {{{tensor.name}.device}}"
        found.append(_of_optional(tensor, Check(f"{tensor.name}.device != {first_name}.device", message)))
    return found


def _shape_checks(spec: OperatorSpec) -> list[Check]:
    every: list[Check] = []
    known: dict[Size, tuple[str, str]] = {}
    plain: dict[Size, tuple[str, str]]
    always = [tensor for tensor in spec.tensors if not tensor.optional]
    plain = {
        entry: (tensor.name, dimension(tensor, position))
        for tensor in reversed(always)
        for position, entry in enumerate(tensor.shape)
        if isinstance(entry, str) and not is_expression(entry)
    }
    for number, tensor in enumerate(spec.tensors):
        whole = _whole_check(spec, tensor, always[:number], known)
        found = [whole] if whole is not None else [*_size_checks(spec, tensor, known, plain)]
        every += [_of_optional(tensor, check) for check in found]
    firsts = {tensor.shape: tensor for tensor in reversed(spec.tensors)}.values()  # others must equal one of these
    return every + [_of_optional(t, check) for t in firsts for check in _following_checks(spec, t)]


def _following_checks(spec: OperatorSpec, tensor: TensorSpec) -> Iterator[Check]:
    """A check of every dimension that follows from sizes of other inputs."""
    for position, entry in enumerate(tensor.shape):
        if follows(entry):
            place, wanted = dimension(tensor, position), _spelt(spec, entry)
            said = f"{place} must equal {wanted}, {{{wanted}}}, got shape {{tuple({tensor.name}.shape)}}"
            yield Check(f"{place} != {wanted}", f"{spec.name}: {said}")


def _size_checks(
    spec: OperatorSpec,
    tensor: TensorSpec,
    known: dict[Size, tuple[str, str]],
    plain: Mapping[Size, tuple[str, str]],
) -> list[Check]:
    """A check of every dimension. `known`: where sizes are found, to which those that are new are added."""
    found = _rank_check(spec, tensor)
    got = f"{{tuple({tensor.name}.shape)}}"
    for position, entry in enumerate(tensor.shape):
        place = dimension(tensor, position)
        if isinstance(entry, int):
            found.append(Check(f"{place} != {entry}", f"{spec.name}: {place} must be {entry}, got shape {got}"))
        elif follows(entry):
            continue  # once the ranks of all are known
        elif is_expression(entry):
            factor, name = multiple(entry)
            condition, wanted = f"{place} % {factor}", f"be a multiple of {factor}"
            if name in known or name in plain:
                origin, there = known.get(name) or plain[name]
                condition, wanted = f"{place} != {factor} * {there}", f"equal {factor} * {there}"
            else:
                known[name] = tensor.name, f"{place} // {factor}"
            found.append(Check(condition, f"{spec.name}: {place} must {wanted}, got shape {got}"))
        elif entry in known:
            origin, there = known[entry]
            both = f"got shapes {got} and {{tuple({origin}.shape)}}"
            found.append(Check(f"{place} != {there}", f"{spec.name}: {place} must equal {there}, {both}"))
        else:
            known[entry] = tensor.name, place
    return found


def _whole_check(
    spec: OperatorSpec, tensor: TensorSpec, before: Sequence[TensorSpec], known: Mapping[Size, tuple[str, str]]
) -> Check | None:
    """One check of a whole shape, which costs a call less than one of every dimension; None where sizes are new."""
    shape, got = f"{tensor.name}.shape", f"{{tuple({tensor.name}.shape)}}"
    like = next((t.name for t in before if t.shape == tensor.shape and t.shape), None)
    if like is not None:
        both = f"got shapes {got} and {{tuple({like}.shape)}}"
        return Check(f"{shape} != {like}.shape", f"{spec.name}: {shape} must equal {like}.shape, {both}")
    if not tensor.shape or not all(isinstance(e, int) or (e in known and not is_expression(e)) for e in tensor.shape):
        return None
    entries = [str(known.get(e, ("", e))[1]) for e in tensor.shape]
    entries = [f"*{place}" if e == ELLIPSIS else place for e, place in zip(tensor.shape, entries, strict=True)]
    wanted = f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"
    origins = dict.fromkeys(known[e][0] for e in tensor.shape if isinstance(e, str))
    others = [f" and {{tuple({name}.shape)}}" for name in origins]
    said = f"got shape{'s' if others else ''} {got}{''.join(others)}"
    return Check(f"{shape} != {wanted}", f"{spec.name}: {shape} must be {wanted}, {said}")


def _rank_check(spec: OperatorSpec, tensor: TensorSpec) -> list[Check]:
    elastic = ELLIPSIS in tensor.shape
    rank = len(tensor.shape) - elastic
    if elastic and rank == 0:
        return []
    least = "at least " if elastic else ""
    wanted = f"{spec.name}: {tensor.name} must have {least}{rank} dimension{'' if rank == 1 else 's'}"
    got = f"got shape {{tuple({tensor.name}.shape)}}"
    return [Check(f"{tensor.name}.ndim {'<' if elastic else '!='} {rank}", f"{wanted}, {got}")]


def _constraint_checks(spec: OperatorSpec) -> list[Check]:
    parts = [part for constraint in spec.constraints for part in conjuncts(constraint)]
    plain = {t.name for t in spec.inputs if t not in spec.tensors}
    found = []
    for part in parts:
        check = Check(failing(part), message(spec.name, part, plain))
        for tensor in spec.inputs:
            said = re.search(rf"\b{tensor.name}\b", part.text) and f"{tensor.name} is " not in part.text
            check = _of_optional(tensor, check) if said else check
        found.append(check)
    return found


def _element_checks(spec: OperatorSpec) -> Iterator[Check]:
    """One look at the elements each, for which the host waits."""
    for tensor in spec.inputs:
        name = tensor.name
        if tensor.checked and tensor.below is not None:
            size = _spelt(spec, tensor.below)
            yield _of_optional(tensor, Check(
                f"(({name} < 0) | ({name} >= {size})).any()",
                f"{spec.name}: {name} must hold indices from 0 and below {_said(size)}, got {{{name}.min()}} to "
                f"{{{name}.max()}}",
            ))  # fmt: skip
        if tensor.checked and tensor.offsets is not None:
            size = _spelt(spec, tensor.offsets)
            begins = f"({name}[:1] < 0)" if tensor.is_ends else f"({name}[:1] != 0)"
            said = "be non-decreasing and end at" if tensor.is_ends else "begin with 0, be non-decreasing and end at"
            yield _of_optional(tensor, Check(
                f"({name}.diff() < 0).any() | {begins}.any() | ({name}[-1:] != {size}).any()",
                f"{spec.name}: {name} must {said} {_said(size)}, got {{{name}[:9].tolist()}}, ending with "
                f"{{{name}[-1:].tolist()}}",
            ))  # fmt: skip


def _said(size: str) -> str:
    return size if size.isdigit() else f"{size}, {{{size}}}"


def _spelt(spec: OperatorSpec, size: Size) -> str:
    """A size in terms of the inputs' shapes."""
    places: dict[str, str] = {}
    for tensor in sorted(spec.inputs, key=lambda t: t.optional):
        for position, entry in enumerate(tensor.shape):
            if isinstance(entry, str) and entry != ELLIPSIS and not follows(entry):
                factor, name = multiple(entry) if is_expression(entry) else (1, entry)
                place = dimension(tensor, position)
                places.setdefault(name, place if factor == 1 else f"{place} // {factor}")
    return renamed(size, places) if isinstance(size, str) else str(size)


def dimension(tensor: TensorSpec, position: int) -> str:
    """One dimension of a tensor as the wrapper writes it, or those that "..." stands for."""
    if tensor.shape == (ELLIPSIS,):
        return f"{tensor.name}.shape"
    which = tensor.span(position, position) if tensor.shape[position] == ELLIPSIS else tensor.dim(position)
    return f"{tensor.name}.shape[{which}]"
