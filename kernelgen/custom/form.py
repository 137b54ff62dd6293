"""The form of an answer: device code, sizes, scratch memory and launches, as JSON; every refusal is one clear line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.custom.expressions import Expression, ExpressionError
from kernelgen.custom.expressions import parse as parse_expression
from kernelgen.custom.shape import FIELDS, problems, schema
from kernelgen.custom.syntax import Kernel, check
from kernelgen.custom.vocabulary import RESERVED
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, TensorSpec
from kernelgen.spec.sizes import is_expression

__all__ = ["Answer", "Launch", "Refused", "Scratch", "from_json", "parse", "schema", "to_json"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
WARPS = (1, 2, 4, 8, 16, 32)
MOST_STAGES = 8
SCRATCH_DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")


class Refused(Exception):
    """An answer that is not of the agreed form; `reasons` are lines for whoever wrote it."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


@dataclass(frozen=True)
class Scratch:
    """Memory that is allocated and filled anew for every call."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    fill: float


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    grid: tuple[str, ...]
    arguments: tuple[str, ...]
    """Tensors by name, or expressions over sizes, in the order of the kernel's parameters."""
    constexprs: tuple[tuple[str, str], ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Answer:
    """A kernel as it was proposed. Made only by `parse` and `from_json`, which check all of it."""

    idea: str
    kernels: str
    sizes: tuple[tuple[str, str], ...]
    scratch: tuple[Scratch, ...]
    launches: tuple[Launch, ...]


def to_json(answer: Answer) -> dict[str, Any]:
    """The form that `from_json` reads."""
    named = [{"name": name, "value": value} for name, value in answer.sizes]
    return {
        "idea": answer.idea,
        "kernels": answer.kernels,
        "sizes": named,
        "scratch": [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "fill": s.fill} for s in answer.scratch],
        "launches": [
            {
                "kernel": one.kernel, "grid": list(one.grid), "arguments": list(one.arguments),
                "constexprs": [{"name": name, "value": value} for name, value in one.constexprs],
                "num_warps": one.num_warps, "num_stages": one.num_stages,
            }
            for one in answer.launches
        ],
    }  # fmt: skip


def parse(data: object, spec: OperatorSpec) -> Answer:
    """An answer from decoded JSON. Raises Refused with every reason."""
    return from_json(data, spec)


def from_json(data: object, spec: OperatorSpec) -> Answer:
    """An answer, checked against its form, the allow-list and the operator's interface. Raises Refused."""
    found = problems(data, FIELDS, "the answer")
    if found or not isinstance(data, dict):
        raise Refused(found)
    answer = Answer(
        _plain(data["idea"]),
        "\n".join(line.rstrip() for line in data["kernels"].expandtabs(4).strip("\n").split("\n")) + "\n",
        tuple((one["name"], one["value"]) for one in data["sizes"]),
        tuple(Scratch(s["name"], tuple(s["shape"]), s["dtype"], float(s["fill"])) for s in data["scratch"]),
        tuple(_launch(one) for one in data["launches"]),
    )
    kernels, findings = check(answer.kernels)
    reasons = [str(finding) for finding in findings]
    if not reasons:
        reasons = _Checks(spec, answer, {k.name: k for k in kernels}).all()
    if reasons:
        raise Refused(reasons)
    return answer


def _plain(text: str) -> str:
    """One line of a text as it may stand in a docstring: nothing that could end one."""
    kept = "".join(c for c in text.replace('"', "'").replace("\\", "/") if c.isprintable() or c.isspace())
    return " ".join(kept.split())[:400]


def _launch(data: Mapping[str, Any]) -> Launch:
    named = tuple((one["name"], one["value"]) for one in data["constexprs"])
    grid, arguments = tuple(data["grid"]), tuple(data["arguments"])
    return Launch(data["kernel"], grid, arguments, named, data["num_warps"], data["num_stages"])


def declared_sizes(spec: OperatorSpec) -> tuple[str, ...]:
    """The names of sizes that the spec's inputs declare."""
    entries = (entry for tensor in spec.inputs for entry in tensor.shape)
    return tuple(dict.fromkeys(e for e in entries if isinstance(e, str) and e != ELLIPSIS and not is_expression(e)))


def rank(tensor: TensorSpec) -> int | None:
    """How many dimensions a tensor has; None where the spec leaves it open."""
    return None if ELLIPSIS in tensor.shape else len(tensor.shape)


class _Checks:
    """An answer against the operator's interface."""

    def __init__(self, spec: OperatorSpec, answer: Answer, kernels: Mapping[str, Kernel]) -> None:
        self._spec, self._answer, self._kernels = spec, answer, kernels
        self._tensors = {t.name: rank(t) for t in (*spec.inputs, *spec.outputs)}
        self._readable = {t.name for t in spec.inputs if t.role != "like"} | {t.name for t in spec.outputs}
        self._sizes = set(declared_sizes(spec))
        self._reasons: list[str] = []

    def all(self) -> list[str]:
        self._names()
        for name, value in self._answer.sizes:
            self._expression(f"sizes: {name}", value)
            self._sizes.add(name)
        for one in self._answer.scratch:
            if one.dtype not in SCRATCH_DTYPES:
                self._reasons.append(f"scratch: {one.name}: dtype must be one of {', '.join(SCRATCH_DTYPES)}")
            for entry in one.shape:
                self._expression(f"scratch: {one.name}: shape", entry)
        for number, launch in enumerate(self._answer.launches, start=1):
            self._launch(f"launches: {number}", launch)
        passed = {argument for launch in self._answer.launches for argument in launch.arguments}
        self._reasons += [
            f"launches: no kernel is given the output {t.name}" for t in self._spec.outputs if t.name not in passed
        ]
        return self._reasons

    def _names(self) -> None:
        """Every name of the answer is new, and none is a word of the wrapper's."""
        taken = {*RESERVED, *self._tensors, self._spec.name}
        own = [name for name, _ in self._answer.sizes] + [s.name for s in self._answer.scratch]
        for name in own:
            if not NAME.match(name) or name in taken or name in self._kernels or name.startswith("__"):
                self._reasons.append(f"the name {name[:60]!r} is taken or no name")
            taken.add(name)
        for name in self._kernels:
            if name in taken or name in self._sizes:
                self._reasons.append(f"kernels: the name {name} is taken")

    def _launch(self, where: str, launch: Launch) -> None:
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            self._reasons.append(f"{where}: there is no kernel {launch.kernel[:60]}")
            return
        if len(launch.arguments) != len(kernel.arguments):
            wanted = f"{len(kernel.arguments)} arguments ({', '.join(kernel.arguments)})"
            self._reasons.append(f"{where}: {kernel.name} takes {wanted}, got {len(launch.arguments)}")
        names = [name for name, _ in launch.constexprs]
        if sorted(names) != sorted(kernel.constexprs):
            wanted = ", ".join(kernel.constexprs) or "none"
            self._reasons.append(
                f"{where}: the constexprs of {kernel.name} are {wanted}; got {', '.join(names) or 'none'}"
            )
        scratch = {s.name for s in self._answer.scratch}
        for argument in launch.arguments:
            if argument not in self._readable | scratch:
                if argument in self._tensors:
                    self._reasons.append(f"{where}: {argument} is a like input: only its shape may be used")
                else:
                    self._expression(f"{where}: argument", argument, floats=True)
        for name, value in launch.constexprs:
            self._expression(f"{where}: {name}", value)
        known = self._sizes
        self._sizes = known | set(names)
        for entry in launch.grid:
            self._expression(f"{where}: grid", entry)
        self._sizes = known
        if launch.num_warps not in WARPS or not 1 <= launch.num_stages <= MOST_STAGES:
            self._reasons.append(
                f"{where}: num_warps is one of {', '.join(map(str, WARPS))}, num_stages 1 to {MOST_STAGES}"
            )

    def _expression(self, where: str, text: str, *, floats: bool = False) -> Expression | None:
        try:
            return parse_expression(text, self._sizes, self._tensors, floats=floats)
        except ExpressionError as error:
            self._reasons.append(f"{where}: {error}")
            return None
