"""The backward of an operator: its gradients, derived from the reference, as specs of their own and the file that joins
them to an operator that autograd and torch.compile know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelgen.backward.attention import written_out
from kernelgen.backward.convolution import is_convolution, spread
from kernelgen.backward.differentiate import gradients
from kernelgen.backward.joined import Judged, joined_files
from kernelgen.backward.parts import partition
from kernelgen.backward.specs import Derived, derived, saving
from kernelgen.backward.tape import Tape
from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families.space import exact_sizes
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Graph, Ref
from kernelgen.spec.model import OperatorSpec
from kernelgen.wrapper import Layout, following


@dataclass(frozen=True)
class Backward:
    """The gradients of an operator."""

    parts: tuple[Derived, ...]
    """In the order in which they run; before them the forward, where it saves more than inputs."""
    spec: OperatorSpec
    passed: dict[str, str]
    judged: Judged
    saves: bool
    """Whether the first part is the forward."""

    def files(self, laid: Sequence[Mapping[str, Layout]]) -> dict[str, str]:
        """What lies beside the forward's quartet, by name: the operator with gradients, their test, the specs of parts.
        `laid`: how the outputs of the forward lie, and of each part."""
        forward, parts = (self.parts[0], self.parts[1:]) if self.saves else (None, self.parts)
        found = dict(laid[1 if self.saves else 0])
        for later in laid[2 if self.saves else 1 :]:
            found |= following(later, found)
        texts = joined_files(self.spec, parts, self.passed, self.judged, found, forward)
        return {**texts, **{f"{p.folder}/{p.spec.name}.yaml": p.text for p in self.parts}}


def backward(spec: OperatorSpec, graph: Graph) -> Backward:
    """The gradients of a traced operator. Raises UnsupportedError where one cannot be derived."""
    try:
        graph, attended = written_out(graph)
        tape, found = gradients(spec, graph, attended)
        passed = _passed(spec, tape, found)
        forward = saving(spec, tape)
        parts = derived(spec, tape, partition(tape, {n: ref for n, ref in found.items() if n not in passed}), forward)
    except Refused as refusal:
        place = spec.reference_place
        raise UnsupportedError([Mistake(spec.path, place.line, place.column, f"unsupported: {refusal}")]) from None
    judged = Judged(
        tuple(_uniform(tape, found)),
        exact_sizes(graph),
        frozenset(spread(graph)),
        any(map(is_convolution, graph.nodes)),
    )
    return Backward((forward, *parts) if forward else parts, spec, passed, judged, forward is not None)


def _uniform(tape: Tape, found: Mapping[str, Ref]) -> list[str]:
    """The inputs whose gradient is one number shown everywhere."""
    nodes = {name: tape.node(ref) for name, ref in found.items()}
    shown = {n: node.args[0] for n, node in nodes.items() if node.op == "expand"}
    return [n for n, arg in shown.items() if isinstance(arg, Ref) and not any(tape.node(arg).shape)]


def _passed(spec: OperatorSpec, tape: Tape, found: Mapping[str, Ref]) -> dict[str, str]:
    """The inputs whose gradient is that of an output or of another input, and which it is."""
    dtypes = {t.name: t.dtype for t in spec.inputs}
    passed: dict[str, str] = {}
    known: dict[tuple[Ref, str], str] = {}
    for name, ref in found.items():
        node = tape.node(ref)
        first = known.setdefault((ref, dtypes[name]), name)
        if node.op == "input":
            passed[name] = str(node.attrs[0])
        elif first != name:
            passed[name] = f"grad_{first}"
    return passed
