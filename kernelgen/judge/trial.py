"""One trial: the kernel on one set of inputs, with every guard around the call."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from . import device as devices
from . import guards, inputs, memory, patience, values
from .eager import InOrder, LastWrites
from .fences import Fences
from .indexing import indexes
from .model import Case, Function, Operator, Trial
from .mutants import Suite
from .oracle import as_tuple
from .readings import the_other_way
from .replay import Replay

REFUSABLE = 2**29
"""A wrapper may say of a hidden case with a tensor of so many elements, one between its steps included, that this is
more than it takes."""


class WrongError(Exception):
    """The kernel failed a check; the message says which."""


_REHEARSED = 2**22
"""Elements of inputs that are not too many for the host."""
_NO_ELEMENT = re.compile(
    r"out of (bounds|range)|device-side assert|must be non-negative|elements of source <|should be between 0 and 1"
)
"""In what torch says of an index that names nothing, and of other values with which it stops a GPU."""
_NO_KERNEL = "not implemented for '"
"""In what torch says where it has no kernel for a dtype: `"avg_pool3d_out_frame" not implemented for 'Half'`."""


class LostError(WrongError):
    """The kernel's fault made the device unusable for this process."""


class RefusedError(Exception):
    """Baseline and kernel both refuse the inputs."""


class LimitError(Exception):
    """The kernel says that the sizes are beyond what it takes, of a case that need not be."""


class NotOnHostError(Exception):
    """The reference has a step that torch computes in this dtype on a GPU, and not on the host."""


class UncomputableError(Exception):
    """The reference itself cannot be computed on these inputs."""


@dataclass(frozen=True)
class Setting:
    """What a trial runs: `kernel` stands in the place of the operator's own."""

    operator: Operator
    case: Case
    kernel: Function
    device: str
    distribution: str
    seed: int
    verbose: bool = False
    repeat: bool = True
    """Call twice and compare all bits."""
    first: bool = True
    """Nothing is known yet of whether the case can be computed."""
    suite: Suite | None = None
    """The mutants that this trial tries to tell apart."""


def run(setting: Setting) -> Trial:
    """Judge one call; a failed check is a failed Trial. Raises RefusedError, NotOnHostError and UncomputableError.

    What is right is computed after the kernel has run: until then no memory holds it, so that none can be copied.
    """
    trial = Trial(setting.distribution, setting.seed, passed=True)
    try:
        if setting.first:
            _rehearse(setting)
        elif setting.distribution == "specials":
            _rehearse_indices(setting)
        buffers = _inputs(setting, setting.seed)
        before = guards.fingerprints([b.flat for b in buffers])
        fences = Fences(guards.POISONS[0], devices.allocated_on(setting.device))
        with guards.poison(_output_sizes(setting), guards.POISONS[0], setting.device) as reached:
            devices.forget_peak(setting.device)
            got = _first_call(setting, buffers, fences)
            trial = replace(trial, peak_bytes=devices.peak_bytes(setting.device))
        _check_inputs(setting, buffers, before)
        eager = _eager(setting, buffers)
        _check_form(setting, buffers, got, eager)
        trial = replace(trial, poison_reached=_reached(setting, got, fences, reached))
        outcome = _compare(setting, buffers, got, eager)
        trial = replace(trial, max_error=outcome.max_error, eager_error=outcome.eager_error, worst=outcome.worst)
        trial = replace(trial, relative_error=outcome.relative_error, l2_error=outcome.l2_error)
        trial = replace(trial, bound_share=outcome.bound_share)
        trial = replace(trial, selects=outcome.selects, remark=outcome.remark)
        if outcome.complaint:
            raise WrongError(outcome.complaint)
        del eager
        if setting.operator.repeatable and not setting.operator.any_order and setting.repeat:
            _check_repeat(setting, buffers, got)
            _check_inputs(setting, buffers, before)
    except WrongError as wrong:
        return replace(
            trial, passed=False, message=f"{wrong} ({setting.distribution} inputs)", fatal=isinstance(wrong, LostError)
        )
    return trial


def _reached(
    setting: Setting, got: Sequence[torch.Tensor], fences: Fences, reached: Callable[[torch.Tensor], bool]
) -> bool:
    """Whether the poison lay where outputs were written that have memory of their own."""
    own = (o for i, o in enumerate(got) if i not in setting.operator.written)
    return all(fences.covers(o) or reached(o) for o in own)


def _inputs(setting: Setting, seed: int) -> tuple[inputs.Buffer, ...]:
    return inputs.make(
        setting.operator, setting.case, distribution=setting.distribution, seed=seed, device=setting.device
    )


def _rehearse(setting: Setting) -> None:
    """Whether the case can be computed, in each way the operator has, and is not refused, as inputs of other values
    show."""
    buffers = _inputs(setting, inputs.derive_seed(setting.seed, "rehearsal"))
    _eager(setting, buffers)
    try:
        the_other_way(setting.operator, lambda x: x, [b.view for b in buffers])
    except ArithmeticError as error:  # of sizes, as D ** -0.5 where D is 0
        raise UncomputableError(f"the reference cannot be computed: {first_line(error)}") from error


def _rehearse_indices(setting: Setting) -> None:
    """Whether an index that the reference computes from NaN or an infinity names no element. On the host and before the
    kernel runs: a GPU that is to read there is lost."""
    elements = sum(math.prod(setting.case.shape(t)) for t in setting.operator.inputs)
    if elements > _REHEARSED or not indexes(setting.operator, setting.case):
        return
    on_host = replace(setting, device="cpu")
    try:
        _eager(on_host, _inputs(on_host, inputs.derive_seed(setting.seed, "rehearsal")))
    except UncomputableError as error:
        if _NO_ELEMENT.search(str(error)):
            raise
    except (RefusedError, NotOnHostError):
        pass


def _compare(
    setting: Setting, buffers: Sequence[inputs.Buffer], got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> values.Outcome:
    mutants = values.Mutants(setting.suite, setting.distribution) if setting.suite else None
    views = [b.view for b in buffers]
    again = partial(_eager, setting, buffers) if setting.operator.stored else None
    operator, case = setting.operator, setting.case
    return values.check(operator, case, views, got, eager, setting.seed, setting.verbose, mutants, again)


def _output_sizes(setting: Setting) -> list[int]:
    case = setting.case
    return [math.prod(case.shape(t)) * case.dtype(t).itemsize for t in setting.operator.outputs]


def _eager(setting: Setting, buffers: Sequence[inputs.Buffer]) -> tuple[torch.Tensor, ...]:
    """PyTorch's own result; where its input checks refuse, the kernel's wrapper must refuse as well."""
    try:
        with torch.no_grad(), InOrder(), LastWrites():
            before = _held(setting, buffers)
            outputs = tuple(as_tuple(devices.there(setting.operator.baseline)(*(b.view for b in buffers))))
            outputs = tuple(_taken(setting, buffers, outputs, before))
        devices.synchronize(setting.device)
    except ValueError as refusal:
        if _is_torchs(setting, buffers, refusal):
            raise UncomputableError(f"torch refuses it: {first_line(refusal)}") from refusal
        _expect_refusal(setting, buffers, refusal)
        raise RefusedError(f"refused by both: {first_line(refusal)}") from None
    except Exception as error:
        if devices.is_full(error):
            raise
        if setting.device == "cpu" and _NO_KERNEL in str(error):
            raise NotOnHostError(f"torch on the host: {first_line(error)}") from error
        message = f"the reference cannot be computed: {first_line(error)}{_indices_hint(setting, error)}"
        raise UncomputableError(message) from error
    for tensor, output in zip(setting.operator.outputs, outputs, strict=True):
        if not isinstance(output, torch.Tensor):  # some calls give None where a batch is empty
            raise UncomputableError(f"the reference gives {output} for {tensor.name}")
        if (tuple(output.shape), output.dtype) != (setting.case.shape(tensor), setting.case.dtype(tensor)):
            raise UncomputableError(f"the reference gives {output.dtype} {list(output.shape)} for {tensor.name}")
    return outputs


def _is_torchs(setting: Setting, buffers: Sequence[inputs.Buffer], refusal: ValueError) -> bool:
    """Whether the reference says the same without the checks before it, as torch does of a norm of one value."""
    try:
        with torch.no_grad():
            devices.there(setting.operator.pure)(*(b.view for b in buffers))
    except Exception as error:
        return str(error) == str(refusal)
    return False


def _indices_hint(setting: Setting, error: Exception) -> str:
    """What to say of a spec whose indices were drawn beyond what they index."""
    unbounded = [
        t.name for t in setting.operator.inputs if t.dtype in ("int32", "int64") and t.below is t.offsets is None
    ]
    if not unbounded or not _NO_ELEMENT.search(str(error)):
        return ""
    named = " or ".join(unbounded)
    return f" (where {named} holds indices, its entry in the spec says which size they stay below, as in below: N)"


def _expect_refusal(setting: Setting, buffers: Sequence[inputs.Buffer], refusal: ValueError) -> None:
    try:
        _call(setting, buffers, Fences(guards.POISONS[0], devices.allocated_on(setting.device)))
    except WrongError as wrong:
        if not isinstance(wrong.__cause__, ValueError):
            raise WrongError(f"baseline refuses the inputs ({first_line(refusal)}), but the {wrong}") from wrong
    else:
        raise WrongError(f"accepts what the baseline refuses: {first_line(refusal)}")


def _first_call(setting: Setting, buffers: Sequence[inputs.Buffer], fences: Fences) -> list[torch.Tensor]:
    """A call; LimitError where a hidden case is beyond what a wrapper has to take, and it says so."""
    try:
        return _call(setting, buffers, fences)
    except WrongError as wrong:
        limit = str(wrong.__cause__) if isinstance(wrong.__cause__, ValueError) else ""
        own = re.match(rf"{re.escape(setting.operator.name)}\w*: at most ", limit)  # or that of one of its parts
        if own and setting.case.hidden and _may_be_refused(setting.operator, setting.case):
            raise LimitError(f"the kernel refuses it: {limit}") from None
        raise


def _may_be_refused(operator: Operator, case: Case) -> bool:
    """Whether a size is beyond what the operator says that it takes, or a tensor, or one between two steps, has as many
    elements as a wrapper may refuse."""
    beyond = any(math.prod(case.dims(size)) > most for size, most in operator.limits)
    return beyond or memory.largest_step(operator, case) >= REFUSABLE


def _call(setting: Setting, buffers: Sequence[inputs.Buffer], fences: Fences) -> list[torch.Tensor]:
    before = _held(setting, buffers)
    try:
        long = memory.takes_long(setting.operator, setting.case, setting.device)
        limit = patience.limited(patience.CALL_S) if long else nullcontext()
        with torch.no_grad(), fences, warnings.catch_warnings(), limit:
            warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's NumPy on NaN and infinity
            outputs = list(as_tuple(devices.there(setting.kernel)(*(b.view for b in buffers))))
        devices.synchronize(setting.device)
    except Exception as error:
        if devices.is_full(error):
            raise
        kind = LostError if devices.is_lost(setting.device) else WrongError
        raise kind(f"kernel raises {type(error).__name__}: {first_line(error)}") from error
    if not fences.intact():
        raise WrongError("writes outside the memory that its wrapper allocated")
    return _taken(setting, buffers, outputs, before)


def _held(setting: Setting, buffers: Sequence[inputs.Buffer]) -> dict[int, torch.Tensor]:
    """What inputs hold before a call that writes into them, by the number of the output."""
    return {i: buffers[place].view.clone() for i, place in setting.operator.written.items()}


def _taken(
    setting: Setting, buffers: Sequence[inputs.Buffer], outputs: Sequence[torch.Tensor], before: dict[int, torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs; those that were written into inputs are copies, and the inputs hold what they held."""
    found = list(outputs)
    for i, place in setting.operator.written.items():
        view, tensor = buffers[place].view, setting.operator.outputs[i]
        if i < len(found) and not _is_same(found[i], view):
            raise WrongError(f"{tensor.name} is not {tensor.into}, into which it is to be written")
        found[i : i + 1] = [view.clone(memory_format=torch.contiguous_format)]
        view.copy_(before[i])
    return found


def _is_same(output: object, view: torch.Tensor) -> bool:
    """Whether a wrapper returned the very memory that it was given."""
    return isinstance(output, torch.Tensor) and (output.data_ptr(), output.shape, output.stride(), output.dtype) == (
        view.data_ptr(), view.shape, view.stride(), view.dtype
    )  # fmt: skip


def _check_form(
    setting: Setting, buffers: Sequence[inputs.Buffer], got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> None:
    declared = setting.operator.outputs
    if len(got) != len(declared):
        raise WrongError(f"returns {len(got)} outputs instead of {len(declared)}")
    for i, (output, tensor) in enumerate(zip(got, declared, strict=True)):
        if type(output) is not torch.Tensor:
            raise WrongError(f"{tensor.name} is a {type(output).__name__}, not a torch.Tensor")
        shape, dtype = setting.case.shape(tensor), setting.case.dtype(tensor)
        if (tuple(output.shape), output.dtype, output.device.type) != (shape, dtype, setting.device):
            found = f"{output.dtype} {list(output.shape)} on {output.device.type}"
            raise WrongError(f"{tensor.name} is {found}, not {dtype} {list(shape)} on {setting.device}")
        if not output.is_contiguous() and _strides(output) != _strides(eager[i]):
            theirs = "is contiguous" if eager[i].is_contiguous() else f"has {eager[i].stride()}"
            raise WrongError(f"{tensor.name} has strides {output.stride()}, PyTorch's result {theirs}")
        if any(guards.overlap(output, other) for other in (*(b.flat for b in buffers), *got[:i])):
            raise WrongError(f"{tensor.name} shares memory with an input or another output")


def _strides(x: torch.Tensor) -> list[int]:
    """Of the dimensions in which there is a next element."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def _check_inputs(setting: Setting, buffers: Sequence[inputs.Buffer], before: tuple[int, ...]) -> None:
    beside, now = guards.written_beside(buffers), guards.fingerprints([b.flat for b in buffers])
    for tensor, outside, found, known in zip(setting.operator.inputs, beside, now, before, strict=True):
        if outside:
            raise WrongError(f"writes outside its input {tensor.name}")
        if found != known:
            raise WrongError(f"changes its input {tensor.name}")


def _check_repeat(setting: Setting, buffers: Sequence[inputs.Buffer], got: list[torch.Tensor]) -> None:
    """Call again where memory holds the first results, every second element of them overwritten with another poison:
    all bits must agree, whatever lay where the outputs are written."""
    first = guards.fingerprints(got)
    _spoil(setting, got)
    fences = Fences(guards.POISONS[1], devices.allocated_on(setting.device), stale=got)
    with guards.poison(_output_sizes(setting), guards.POISONS[1], setting.device):
        again = _call(setting, buffers, fences)
    calls = setting.operator.stored or setting.operator.multiplied  # a schedule table may name torch's call
    if guards.fingerprints(again) != first and not (calls and _repeats_replayed(setting, buffers)):
        raise WrongError("a second call on the same inputs gives other bits")


def _repeats_replayed(setting: Setting, buffers: Sequence[inputs.Buffer]) -> bool:
    """Whether two calls agree in all bits if calls of torch's give what they gave before: a library may add in an order
    that changes, which is no fault of the kernels around it."""
    found, replay, stale = [], Replay(), list[torch.Tensor]()
    for byte in guards.POISONS:
        with guards.poison(_output_sizes(setting), byte, setting.device), replay:
            stale = _call(setting, buffers, Fences(byte, devices.allocated_on(setting.device), stale))
        found.append(guards.fingerprints(stale))
        _spoil(setting, stale)
    return found[0] == found[1]


def _spoil(setting: Setting, outputs: Sequence[torch.Tensor]) -> None:
    generator = torch.Generator(setting.device).manual_seed(inputs.derive_seed(setting.seed, "stale"))
    for output in outputs:
        guards.spoil(output, guards.POISONS[1], generator)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
