"""What a model is told. Everything here follows from the plan and the journal, so a resumed run asks the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kernelgen import custom
from kernelgen.custom.form import declared_sizes
from kernelgen.custom.vocabulary import BUILTINS, CALLS, DTYPES, LOOPS, METHODS
from kernelgen.devices import DeviceFacts, Peaks
from kernelgen.journal import Journal
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json
from kernelgen.render import environment
from kernelgen.spec.model import Case, OperatorSpec, TensorSpec
from kernelgen.strategies import Context

Message = dict[str, str]
SHOWN = 20
"""Candidates of the run that are told of, the last ones."""
LONGEST_OUTCOME = 300

EXAMPLE: dict[str, Any] = {
    "idea": "one contiguous block of elements a program",
    "kernels": (
        "@triton.jit\n"
        "def double_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):\n"
        "    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)\n"
        "    mask = offsets < n_elements\n"
        "    x = tl.load(x_ptr + offsets, mask=mask)\n"
        "    tl.store(out_ptr + offsets, x * 2, mask=mask)\n"
    ),
    "sizes": [{"name": "n_elements", "value": "out.numel()"}],
    "scratch": [],
    "launches": [
        {
            "kernel": "double_kernel", "grid": ["cdiv(n_elements, BLOCK_SIZE)"],
            "arguments": ["x", "out", "n_elements"], "constexprs": [{"name": "BLOCK_SIZE", "value": "1024"}],
            "num_warps": 4, "num_stages": 1,
        }
    ],
}  # fmt: skip
"""An answer for an operator that doubles its input."""


def first(context: Context, device: Peaks, journal: Journal, index: int, width: int) -> list[Message]:
    """The conversation's beginning; `index` of `width` that are begun at once, each told to go its own way."""
    text = environment().get_template("prompt.md.jinja").render(
        **_operator(context.plan.spec, context.cases, device),
        current=context.compiler.source(context.plan), diagnosis=context.diagnosis,
        tried=_tried(journal), index=index + 1, width=width,
    )  # fmt: skip
    return [{"role": "system", "content": system()}, {"role": "user", "content": text}]


def whole(spec: OperatorSpec, device: Peaks) -> list[Message]:
    """The beginning where there is no kernel to set out from."""
    operator = _operator(spec, spec.performance, device)
    tested = [case.label for case in spec.accuracy]
    text = environment().get_template("prompt_whole.md.jinja").render(**operator, tested=tested)
    return [{"role": "system", "content": system()}, {"role": "user", "content": text}]


def _operator(spec: OperatorSpec, cases: Sequence[Case], device: Peaks) -> dict[str, Any]:
    """What every prompt says of an operator and of the device."""
    return {
        "spec": spec,
        "inputs": [_tensor(t) for t in spec.inputs],
        "outputs": [_tensor(t) for t in spec.outputs],
        "kinds": dict(spec.dtypes),
        "sizes": declared_sizes(spec),
        "constraints": [c.text for c in spec.constraints],
        "cases": [case.label for case in cases],
        "device": _device(device),
    }


def system() -> str:
    """The form of an answer and the rules; the same for every operator."""
    return environment().get_template("prompt_system.md.jinja").render(
        schema=json.dumps(custom.schema(), indent=1), example=json.dumps(EXAMPLE, indent=1),
        calls=", ".join(sorted(CALLS | LOOPS)), methods=", ".join(sorted(METHODS)), dtypes=", ".join(sorted(DTYPES)),
        builtins=", ".join(sorted(BUILTINS)),
    )  # fmt: skip


def repair_of_refusal(reasons: Sequence[str]) -> str:
    """What a model is told of an answer that broke the form."""
    lines = "\n".join(f"- {reason[:LONGEST_OUTCOME]}" for reason in reasons[:12])
    return f"Your answer was refused:\n{lines}\nCorrect these and answer with the whole JSON object again."


def repair_of_failure(outcome: str) -> str:
    """What a model is told of a candidate that did not win."""
    return (
        f"This kernel was tried: {outcome[: 4 * LONGEST_OUTCOME]}\n"
        "Correct what is wrong, or make it faster, and answer with the whole JSON object again."
    )


def outcome(evaluation: Evaluation) -> str:
    """What became of a candidate, in one line for its author."""
    if evaluation.status is not Status.OK:
        return f"{evaluation.status.value.replace('_', ' ')}: {evaluation.message}"
    timings = evaluation.speedups("current")
    if not timings:
        return evaluation.message or "it compiled, and was not compared"
    cases = "; ".join(f"{t.case}: {t.speedup:.3f}x ({t.time_us:.1f} µs, {t.source})" for t in timings)
    return f"current over new, above 1 is faster: {cases}"


def _device(device: Peaks) -> str:
    """What the device is limited by."""
    parts = [f"{device.dram_bytes_per_s / 1e12:.2f} TB/s to memory", f"{device.l2_bytes >> 20} MiB of L2"]
    if isinstance(device, DeviceFacts):
        parts += [
            f"{device.sms} SMs of {device.registers_per_sm} registers",
            f"at most {device.registers_per_thread_max} registers a thread",
            f"{device.shared_per_block_max >> 10} KiB of shared memory a program at most",
        ]
    return f"{device.name} ({device.arch}): {', '.join(parts)}"


def _tensor(tensor: TensorSpec) -> str:
    like = ", only its shape, dtype and device may be used" if tensor.role == "like" else ""
    below = f", indices from 0 and below {tensor.below}" if tensor.below is not None else ""
    offsets = f", which never falls, from 0 to {tensor.offsets}" if tensor.offsets is not None else ""
    return f"{tensor.name}[{', '.join(map(str, tensor.shape))}] of {tensor.dtype}{like}{below}{offsets}"


def _tried(journal: Journal) -> list[tuple[str, str]]:
    """What the run tried so far, with results; of this round no refusals, which a resumed round would see too early."""
    now = len(journal.records("round"))
    rows = []
    for record in journal.records("candidate", "refused"):
        if record.kind == "candidate":
            found = outcome(evaluation_from_json(record.data["evaluation"]))
            rows.append((record.data["what"], found[:LONGEST_OUTCOME]))
        elif record.data["round"] < now:
            rows.append(("an answer that was refused", "; ".join(record.data["reasons"])[:LONGEST_OUTCOME]))
    return rows[-SHOWN:]
