"""The gradients of a convolution: by its weight a call of torch's, by its input a convolution too, the other way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from kernelgen.backward.moved import moved
from kernelgen.backward.tape import Tape, needed
from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Refused
from kernelgen.frontend.convolution_gradients import options, written
from kernelgen.frontend.graph import CALL, Convolution, Dim, Graph, Node, Ref, seen_through
from kernelgen.spec.sizes import check_size, size_text

_FUNCTIONS = ("torch.nn.functional.conv", "torch.nn.grad.conv")
_THROUGH = ("add", "sub", "round", "reshape")
"""What hands the gradient of its result on as it is, to its first operand or to both, where that has its shape."""


def is_convolution(node: Node) -> bool:
    """Whether it is a convolution of the reference."""
    return node.op == CALL and node.convolution is not None


def convolves(node: Node) -> bool:
    """Whether it is a convolution, or the gradient of one."""
    return node.op == CALL and str(node.attrs[1]).startswith(_FUNCTIONS)


def narrowed(graph: Graph) -> dict[int, tuple[str, str]]:
    """The values whose gradient is that of a convolution's result, each with the dtype of this and a name: it lies in
    memory in that dtype, where torch's calls read it, and whatever else needs it reads the same."""
    found: dict[int, tuple[str, str]] = {}
    for i, node in enumerate(graph.nodes):
        at = i if is_convolution(node) else None
        while at is not None:
            last, at = at, _handing(graph, at)
            if at is None:
                found[last] = str(node.attrs[0]), f"grad_{node.name}"
    return found


def named(graph: Graph) -> Graph:
    """The graph with a name for every convolution, by which its gradient is called too."""
    unnamed = [i for i, node in enumerate(graph.nodes) if is_convolution(node) and node.name is None]
    names = {i: "convolved" if len(unnamed) == 1 else f"convolved_{n}" for n, i in enumerate(unnamed, start=1)}
    nodes = tuple(replace(node, name=names.get(i, node.name)) for i, node in enumerate(graph.nodes))
    return replace(graph, nodes=nodes) if names else graph


def results(tape: Tape, graph: Graph) -> dict[int, Ref]:
    """The values that outputs hold as torch computed them, and of what is bounded what a convolution reads, where
    nobody computes twice what needs one. One that the reference rounds afterwards says too little: where tanh is nearly
    1, its rounding is all of 1 - tanh * tanh."""
    found: dict[int, Ref] = {}
    if any(map(is_convolution, graph.nodes)):
        for i in _read(graph):
            found |= {j: Ref(i) for j in graph.nodes[i].operands if graph.nodes[j].op in ("maximum", "minimum")}
        for output in graph.outputs:
            if graph.nodes[output.node].op != "round":
                found[output.node] = tape.input(output.name, graph.nodes[output.node].shape, "float")
    return found


def _read(graph: Graph) -> list[int]:
    """What is computed for convolutions, as it lies in memory."""
    read = {j for node in graph.nodes if is_convolution(node) for j in node.operands}
    return [i for i in sorted(read) if graph.nodes[i].op == "round"]


def save(tape: Tape, graph: Graph, found: Mapping[str, Ref]) -> None:
    """Have the forward save what a gradient would convolve for again: what convolutions read, or else their results."""
    targets = [ref.node for ref in found.values()]
    below = set(needed(tape, targets, {}))
    if not any(is_convolution(graph.nodes[i]) for i in below if i < tape.first):
        return
    convolved = {i for i in below if any(is_convolution(tape.nodes[j]) for j in needed(tape, [i], {}))}
    saved = {i: str(graph.nodes[i].attrs[0]) for i in _read(graph) if i in convolved}
    left = [i for i in needed(tape, targets, saved) if i < tape.first and is_convolution(graph.nodes[i])]
    tape.saved |= saved | {i: str(graph.nodes[i].attrs[0]) for i in left}
    tape.forward = {output.name: output.node for output in graph.outputs}
    for i in tape.saved:
        node = tape.nodes[i]
        if node.op == "round" and node.name is None:  # what is saved is called what is computed
            (source,) = node.operands
            tape.nodes[i] = replace(node, name=tape.nodes[source].name)
            tape.nodes[source] = replace(tape.nodes[source], name=None)


def _handing(graph: Graph, i: int) -> int | None:
    """What reads a value alone, and hands its own gradient on to it."""
    readers = graph.readers[i]
    if len(readers) != 1 or any(output.node == i for output in graph.outputs):
        return None
    reader = graph.nodes[readers[0]]
    first = reader.args[0] == Ref(i) or reader.op == "add"
    hands = reader.op in _THROUGH and first and reader.args.count(Ref(i)) == 1
    return readers[0] if hands and reader.shape == graph.nodes[i].shape else None


def spread(graph: Graph) -> set[str]:
    """The inputs that are weights of transposed convolutions. Whether an infinite one makes NaN of the zeros around an
    image differs among torch's convolutions, and what follows makes finite differences of that."""
    weights = [node.operands[1] for node in graph.nodes if node.convolution is not None and node.convolution.transposed]
    seen = (graph.nodes[seen_through(graph.nodes, i)] for i in weights)
    return {str(node.attrs[0]) for node in seen if node.op == "input"}


def stored(tape: Tape, g: Ref, dtype: str, name: str, kinds: Mapping[str, str]) -> Ref:
    """A gradient in the dtype in which a convolution's result is, if it is none of an output of that dtype. `kinds`: of
    the outputs' gradients."""
    node = tape.node(g)
    given = node.op == "input" and kinds.get(str(node.attrs[0])) == dtype
    if given:
        return g
    rounded = tape.round(g, dtype)
    tape.keep(rounded, name)
    return rounded


def gradients(tape: Tape, node: Node, g: Ref) -> Iterator[tuple[int, Ref]]:
    """What input, weight and bias get. With more padding behind, which torch's calls do not know, they are those of an
    input with these zeros. Raises Refused where a transposed convolution leaves more places behind the last than its
    stride."""
    windows = node.convolution
    assert windows is not None
    given, weight, *bias = (a for a in node.args if isinstance(a, Ref))
    rank = len(node.shape) - 2
    function = str(node.attrs[1]).partition("(")[0]
    g = tape.view("expand", g, node.shape)
    own = given
    if not windows.transposed and windows.padding != windows.behind:
        given = _padded(tape, given, windows, str(node.attrs[0]))
        windows = replace(windows, behind=windows.padding)
    of_weight = (weight, given, g)
    if windows.transposed:
        if any(rest >= stride for rest, stride in zip(windows.behind, windows.stride, strict=True)):
            raise Refused(f"the gradient of {function} with output_padding of its stride or more")
        of_input = f"torch.nn.functional.conv{rank}d({{2}}, {{1}}{options(windows)})"
        of_weight = (weight, g, given)
    else:
        of_input = _of_input(rank, windows, tape.node(weight).shape)
    yield own.node, _within(tape, _call(tape, node, (given, weight, g), of_input, given), tape.node(own).shape)
    yield weight.node, _call(tape, node, of_weight, written("weight", rank, windows), weight)
    for one in bias:
        total = tape.sum(g, tuple(d for d in range(-rank - 2, 0) if d != -rank - 1))
        if total is not None:
            yield one.node, tape.view("reshape", total, tape.node(one).shape)


def _padded(tape: Tape, x: Ref, windows: Convolution, dtype: str) -> Ref:
    """The input in the dtype that a convolution reads, with what is padded behind it beyond what is before it."""
    more = [behind - before for before, behind in zip(windows.padding, windows.behind, strict=True)]
    shape, dims = list(tape.node(x).shape), [d - len(more) for d, n in enumerate(more) if n]
    places = [ix.number(n) for count in more if count for n in (0, count)]
    for d in dims:
        shape[d] = _longer(shape[d], more[d])
    return tape.round(moved(tape, "pad", [x], tuple(shape), dims, *places), dtype)


def _longer(dim: Dim, by: int) -> Dim:
    """A size and a number."""
    if all(isinstance(atom, int) for atom in dim):
        return (prod(atom for atom in dim if isinstance(atom, int)) + by,)
    return (check_size(f"{size_text(dim)} + {by}"),)


def _within(tape: Tape, x: Ref, shape: tuple[Dim, ...]) -> Ref:
    """The part of a tensor that begins where it does."""
    for d in range(-len(shape), 0):
        known = tape.node(x).shape
        if known[d] != shape[d]:
            cut = (*known[: len(known) + d], shape[d], *known[len(known) + d + 1 :])
            x = moved(tape, "slice", [x], cut, [d, 1], ix.number(0))
    return x


def _of_input(rank: int, windows: Convolution, weight: tuple[Dim, ...]) -> str:
    """Where windows lie side by side it is a transposed convolution, which a kernel can compute; of every channel by
    itself it is a convolution with the windows turned round, which the kernel of the forward computes."""
    reach = [
        d * (prod(n for n in size if isinstance(n, int)) - 1)
        for d, size in zip(windows.dilation, weight[2:], strict=True)
    ]
    before = tuple(r - p for r, p in zip(reach, windows.padding, strict=True))
    by_itself = not windows.groups or weight[:2] == ((windows.groups,), ())
    if set(windows.stride) == {1} and by_itself and min(before, default=0) >= 0:
        turned = f"{{1}}.flip({', '.join(str(d) for d in range(-rank, 0))})"
        around = options(replace(windows, padding=before, behind=before))
        return f"torch.nn.functional.conv{rank}d({{2}}, {turned}{around})"
    if set(windows.stride) == {1}:
        return f"torch.nn.functional.conv_transpose{rank}d({{2}}, {{1}}{options(windows)})"
    return written("input", rank, windows)


def _call(tape: Tape, node: Node, operands: tuple[Ref, ...], text: str, like: Ref) -> Ref:
    """A call of torch's in the dtype of the convolution's result, of the shape of one of its operands."""
    used = [operand for i, operand in enumerate(operands) if f"{{{i}}}" in text]
    for new, old in enumerate(i for i in range(len(operands)) if f"{{{i}}}" in text):
        text = text.replace(f"{{{old}}}", f"{{{new}}}")
    attrs = (str(node.attrs[0]), text, "gradient")
    made = tape.torch_call(tuple(used), tape.node(like).shape, attrs)
    tape.hints.setdefault(made.node, "part")
    return made
