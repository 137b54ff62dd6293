"""Operators of several steps: kernels, and calls of torch's for operations that no family takes.

The graph is cut at the calls. What calls read lies in memory, so everything that the calls of one depth need is
computed before them, by one kernel where a family takes it as a whole and else by several (`partition.py`); what the
outputs need is computed last. Every such group is lowered as an operator of its own. A value that two groups need is
computed in both unless a call reads it, in which case it lies in memory anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families import partition
from kernelgen.families.convolution.lowering import ConvolutionBody
from kernelgen.families.convolution.schedules import has_bias
from kernelgen.families.costs import FLOPS_A_BYTE, LAUNCH, cost, large, moved, multiplied, result_bytes
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import body_of
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.partition import Group
from kernelgen.families.registry import row_of
from kernelgen.frontend.graph import CALL, DOT, VIEWS, Atom, Dim, Graph, Node, Output, Ref, SizeOf, seen_through
from kernelgen.frontend.indices import leaves
from kernelgen.frontend.operations import KIND_NOUNS, OPERATIONS
from kernelgen.frontend.products import rounded_first
from kernelgen.plan import KernelPlan, Operand, Step, TorchCall, View
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, TensorFacts, TensorSpec
from kernelgen.spec.sizes import bound_by, names_in, size_entry

Lower = Callable[[OperatorSpec, Graph], KernelPlan]
_EACH = ("map", "cast", "read", "view", "move")
"""Kinds of operations that read no more of anything than their result has elements."""
_NOTHING_LEFT = "nothing left for a kernel: all of it is"
_WAYS_OUT = "include what is computed before or after it, write it out step by step, or use family: custom"


def has_calls(graph: Graph) -> bool:
    return any(node.op == CALL for node in graph.nodes)


def steps(
    spec: OperatorSpec,
    graph: Graph,
    lower: Lower,
    taken: Iterable[str],
    limit: int,
    *,
    materialize: bool,
    costs: partition.Costs,
) -> tuple[Step, ...]:
    """The operator as kernels and calls in their order; `limit`, `materialize` and `costs` as in `partition.groups`.
    Raises UnsupportedError where there is nothing for a kernel, or where no family takes what is around the calls."""
    graph = rounded_first(graph)
    names = {*taken, spec.name, *(t.name for t in (*spec.inputs, *spec.outputs))}
    cut = _Cut(spec, graph, lower, names, limit, materialize=materialize, costs=costs)
    depth = _depths(graph)
    for level in range(1, max(depth) + 1):
        calls = [i for i, node in enumerate(graph.nodes) if node.op == CALL and depth[i] == level]
        read = [a.node for i in calls for a in graph.nodes[i].args if isinstance(a, Ref)]
        cut.compute(dict.fromkeys(i for i in read if not cut.is_stored(i)))
        for i in calls:
            cut.call(i)
    finals = [cut.final(output) for output in graph.outputs]
    cut.compute(dict.fromkeys(i for i in finals if not cut.is_stored(i) or graph.nodes[cut.base(i)].op == "input"))
    found = (*cut.steps, *cut.returned(finals))
    if not any(isinstance(step, KernelPlan) for step in found):
        made = [node for node in graph.nodes if node.op == CALL]
        functions = " and ".join(dict.fromkeys(map(function_of, made)))
        raise _unsupported(spec, graph, made[0], f"{_NOTHING_LEFT} {functions} ({_WAYS_OUT})")
    return _named(spec, found)


def _named(spec: OperatorSpec, found: tuple[Step, ...]) -> tuple[Step, ...]:
    """Where there is one kernel it has the operator's name."""
    alone = sum(isinstance(step, KernelPlan) for step in found) == 1
    return tuple(
        replace(step, spec=replace(step.spec, name=spec.name)) if alone and isinstance(step, KernelPlan) else step
        for step in found
    )


def function_of(node: Node) -> str:
    """The function of torch's that a call node calls: `torch.nn.functional.linear`."""
    return str(node.attrs[1]).partition("(")[0]


def main_group(spec: OperatorSpec, found: tuple[Step, ...]) -> int:
    """The step whose kernel takes the longest, which is the one worth tuning."""
    groups = [i for i, step in enumerate(found) if isinstance(step, KernelPlan)]
    cases = spec.performance or spec.accuracy

    def time(i: int) -> int:
        group = found[i]
        assert isinstance(group, KernelPlan)
        return moved(group, cases) + sum(multiplied(group, case) for case in cases) // FLOPS_A_BYTE

    return max(groups, key=time)


_CALLED = "library"
"""Its variant that is torch's call."""
CONVOLUTION = "convolution"
"""The family whose kernels write outputs by their strides, and lay them out as torch's convolution would."""


def _unsupported(spec: OperatorSpec, graph: Graph, node: Node, message: str) -> UnsupportedError:
    line = graph.statements[node.statement].line if node.statement is not None else 1
    place = spec.reference_place
    return UnsupportedError([Mistake(spec.path, place.line + line - 1, place.column, f"unsupported: {message}")])


def _depths(graph: Graph) -> list[int]:
    """How many calls there are on the way to each value."""
    found: list[int] = []
    for node in graph.nodes:
        before = max((found[a.node] for a in node.args if isinstance(a, Ref)), default=0)
        found.append(before + (node.op == CALL))
    return found


class _Cut:
    """The steps so far, and which values lie in memory after them."""

    def __init__(
        self,
        spec: OperatorSpec,
        graph: Graph,
        lower: Lower,
        taken: set[str],
        limit: int,
        *,
        materialize: bool,
        costs: partition.Costs,
    ) -> None:
        self.spec = spec
        self.graph = graph
        self.lower = lower
        self.taken = taken
        self.limit = limit
        self.materialize = materialize
        self.costs = costs
        """Of groups before the first step: how tensors of steps lie decides what later ones cost."""
        self.cases = spec.performance or (large(spec),)
        """Whose bytes are counted."""
        self.each = range(len(self.cases))
        self.counts: dict[tuple[int, int], int] = {}
        """How many elements values have in cases, by their numbers."""
        self.steps: list[Step] = []
        self.loose: set[str] = set()
        """Tensors of steps that need not be contiguous."""
        self.parts: set[str] = set()
        """Tensors that are views of parts of inputs."""
        self.convolved: dict[str, TensorSpec] = {}
        """By tensors of convolutions, the input of the operator that the first of these reads."""
        inputs = {t.name: t for t in spec.inputs}
        self.given = frozenset(spec.inputs)
        self.stored = {i: inputs[str(n.attrs[0])] for i, n in enumerate(graph.nodes) if n.op == "input"}
        declared = {o.node: next(t for t in spec.outputs if t.name == o.name) for o in reversed(graph.outputs)}
        self.declared = {i: declared[o] for o in declared for i in (o, self._rounded(o)) if i is not None}
        """The outputs, by the node that computes one and by its rounding."""

    def _rounded(self, i: int) -> int | None:
        """What a value is where a call or a product reads it."""
        rounded = (j for j, n in enumerate(self.graph.nodes) if n.op == "round" and n.args == (Ref(i),))
        read = {a.node for n in self.graph.nodes if n.op in (CALL, DOT) for a in n.args if isinstance(a, Ref)}
        return next((j for j in rounded if j in read), None)

    def final(self, output: Output) -> int:
        """The node of an output, or the rounding of it that a call or a product reads."""
        rounded = self._rounded(output.node)
        return output.node if rounded is None else rounded

    def base(self, i: int) -> int:
        """What a value is a view of, if it is one."""
        while self.graph.nodes[i].op in VIEWS:
            source = self.graph.nodes[i].args[0]
            assert isinstance(source, Ref)
            i = source.node
        return i

    def is_stored(self, i: int) -> bool:
        """Whether a value lies in memory, or is a view of something that does."""
        return i in self.stored or self.base(i) in self.stored

    def compute(self, wanted: Iterable[int]) -> None:
        """A kernel for some values, or several."""
        outputs = tuple(wanted)
        computed: dict[int, TensorSpec] = {}
        found = partition.groups(
            self.graph,
            outputs,
            frozenset(self.stored),
            self._cost,
            self._least,
            self.limit,
            materialize=self.materialize,
            costs={} if self.steps else self.costs,
        )
        for group in found:
            own = {i: self._tensor(i, self._name(i)) for i in group.outputs}
            left = {
                i: own[i] if self._is_whole(i, own) else self._scratch(i, self._unused(i, _noun(self.graph, i)))
                for i in group.left
            }
            tensors = dict.fromkeys([*own.items(), *left.items()])
            made = self._group(list(tensors), self.stored)
            if made.family == CONVOLUTION and all(row.schedule.variant == _CALLED for row in made.table):
                made = self._group(list(tensors), self.stored, is_called=True)
            needed = partition.needed_for(self.graph, group.nodes, frozenset(self.stored))
            self._laid_out(made, self._first_of_chain(needed, self.stored))
            self.steps.append(made)
            self.stored |= left
            computed |= own
        self.stored |= computed

    def _cost(self, group: Group, stored: frozenset[int]) -> int:
        """What a group's kernel costs. What follows torch's own call, and a bias that this adds to a convolution, takes
        another pass over its result."""
        plan = self._group(self._written(group), self._lying(stored))
        body = body_of(plan)
        passes_again = isinstance(body, ProductBody) and not (
            body.is_library and not (isinstance(body, ConvolutionBody) and has_bias(body))
        )
        called = [c for c in self.cases if passes_again and plan.table[row_of(plan, c)].schedule.variant == _CALLED]
        return cost(plan, self.cases) + 2 * sum(result_bytes(plan, case) for case in called)

    def _least(self, group: Group, stored: frozenset[int]) -> int:
        """What a group's kernel costs at least: a launch, its results, and what these are computed from."""
        written = sum(self._elements(i, k) * self._itemsize(t, k) for i, t in self._written(group) for k in self.each)
        needed, lying = partition.needed_for(self.graph, group.nodes, stored), self._lying(stored)
        read = 0
        for k in self.each:
            asked = dict.fromkeys(group.nodes, sys.maxsize)
            for i in reversed(needed):
                elements = min(asked[i], self._elements(i, k))
                if i in lying:
                    read += elements * self._itemsize(lying[i], k)
                    continue
                node = self.graph.nodes[i]
                is_each = OPERATIONS[node.op].kind in _EACH
                for j in node.operands:  # of a part of a result no more may be read than it has elements
                    asked[j] = max(asked.get(j, 0), elements if is_each else sys.maxsize)
        return LAUNCH * len(self.cases) + written + read

    def _elements(self, i: int, k: int) -> int:
        """How many elements a value has in a case."""
        if (i, k) not in self.counts:
            self.counts[i, k] = prod(self.cases[k].shape(tuple(map(size_entry, self.graph.nodes[i].shape))))
        return self.counts[i, k]

    def _itemsize(self, tensor: TensorSpec, k: int) -> int:
        return 0 if tensor.role == "like" else ITEMSIZE[self.cases[k].dtype(tensor.dtype)]

    def _written(self, group: Group) -> list[tuple[int, TensorSpec]]:
        tensors = [(i, self._tensor(i, f"output_{i}")) for i in group.outputs]
        left = [(i, self._scratch(i, f"value_{i}")) for i in group.left if not self._is_whole(i, dict(tensors))]
        return tensors + left

    def _lying(self, stored: Iterable[int]) -> dict[int, TensorSpec]:
        return {i: self.stored.get(i) or self._scratch(i, f"value_{i}") for i in stored}

    def _is_whole(self, i: int, outputs: dict[int, TensorSpec]) -> bool:
        """Whether an output holds a value as it was computed."""
        return i in outputs and outputs[i].dtype == self._scratch(i, "").dtype

    def call(self, i: int) -> None:
        node = self.graph.nodes[i]
        operands = tuple(self._operand(a.node) for a in node.args if isinstance(a, Ref))
        result = self._tensor(i, self._name(i, str(node.attrs[2])))
        if node.statement is None:  # a part of an input
            result = replace(operands[0].tensor, name=result.name, shape=result.shape)
            self.parts.add(result.name)
        text = self.graph.statements[node.statement].text if node.statement is not None else ""
        contiguous = any(o.contiguous and self.final(o) == i for o in self.graph.outputs)
        self.steps.append(TorchCall(result, operands, str(node.attrs[1]), text, contiguous))
        self.stored[i] = result

    def returned(self, finals: list[int]) -> tuple[Step, ...]:
        """The outputs that are views of what calls have left; no two of them share memory."""
        found = []
        given = {t.name for t in self.spec.outputs}
        for i, output in zip(finals, self.graph.outputs, strict=True):
            if i not in self.stored or self.stored[i].name != output.name:
                operand = self._operand(i)
                text = "{0}.clone()" if operand.tensor.name in given else "{0}"
                result = next(t for t in self.spec.outputs if t.name == output.name)
                found.append(TorchCall(result, (operand,), text, "", output.contiguous))
                given.add(operand.tensor.name)
        return tuple(found)

    def _operand(self, i: int) -> Operand:
        views: list[View] = []
        while i not in self.stored:
            node = self.graph.nodes[i]
            source = node.args[0]
            assert isinstance(source, Ref)
            shape = tuple(map(size_entry, node.shape))
            views.insert(0, View(node.op, tuple(int(d) for d in node.attrs) if node.op == "permute" else shape))
            i = source.node
        return Operand(self.stored[i], tuple(views))

    def _name(self, i: int, noun: str = "operand") -> str:
        """The output's name, the reference's, or a noun."""
        return self.declared[i].name if i in self.declared else self._unused(i, noun)

    def _unused(self, i: int, noun: str = "operand") -> str:
        """The reference's name, or a noun, with a number where it is taken."""
        node = self.graph.nodes[i]
        source = node.args[0] if node.op == "round" else None
        wanted = node.name or (isinstance(source, Ref) and self.graph.nodes[source.node].name) or noun
        candidates = (wanted, *(f"{wanted}_{n}" for n in range(2, len(self.taken) + 3)))
        name = next(c for c in candidates if c not in self.taken)
        self.taken.add(name)
        return name

    def _tensor(self, i: int, name: str) -> TensorSpec:
        node = self.graph.nodes[i]
        if i in self.declared:
            return replace(self.declared[i], name=name, shape=tuple(map(size_entry, node.shape)))
        return self._scratch(i, name)

    def _scratch(self, i: int, name: str) -> TensorSpec:
        """A value in memory as it was computed; of a product, and of what follows from it element by element, as torch
        has it."""
        node, seen = self.graph.nodes[i], self.graph.nodes[self.base(i)]
        if seen.op in ("round", CALL):
            dtype = str(seen.attrs[0])
        else:
            dtype = self._product_dtype(i) or ("float32" if node.dtype == "float" else node.dtype)
        return TensorSpec(name, tuple(map(size_entry, node.shape)), dtype)

    def _leaves(self, i: int) -> list[int]:
        """What a value is computed from element by element."""
        found: dict[int, None] = {}
        todo = [i]
        while todo:
            j = todo.pop()
            if j not in found:
                found[j] = None
                todo += self.graph.nodes[j].operands if _is_each(self.graph.nodes[j]) else ()
        return [j for j in found if not _is_each(self.graph.nodes[j])]

    def _product_dtype(self, i: int) -> str:
        """The dtype in which torch has what a product comes to, and what is computed from it and tensors of that dtype
        element by element; empty for anything else."""
        leaves = [self.graph.nodes[j] for j in self._leaves(i)]
        found = {
            str(node.attrs[0]) if node.op in ("round", DOT) and node.attrs
            else next(t.dtype for t in self.spec.inputs if t.name == node.name) if node.op == "input" else ""
            for node in leaves
        }  # fmt: skip
        return found.pop() if len(found) == 1 and any(node.op == DOT for node in leaves) else ""

    def _group(
        self,
        tensors: list[tuple[int, TensorSpec]],
        stored: dict[int, TensorSpec],
        *,
        is_called: bool = False,
        more: tuple[str, ...] = (),
    ) -> KernelPlan:
        """The kernel that computes some values from what lies in memory. `is_called`: torch convolves them, which lays
        them as what it reads. `more`: sizes that it mentions."""
        needed = partition.needed_for(self.graph, tuple(i for i, _ in tensors), frozenset(stored))
        place = {old: new for new, old in enumerate(needed)}
        nodes = tuple(_node(self.graph.nodes[i], stored.get(i), place) for i in needed)
        outputs = tuple(Output(t.name, place[i], t.dtype) for i, t in tensors)
        graph = Graph(nodes, outputs, self.graph.statements)
        read = sorted((stored[i] for i in needed if i in stored), key=lambda t: t in self.given)
        inputs = (*read, *self._likes(read, graph, more))
        given = {t.name for t in (*self.spec.inputs, *self.spec.outputs)}
        last = {t.name for i, t in tensors if t.name not in given and self._is_for_windows(i, at_once=is_called)}
        contiguous = {t.name for t in read if t not in self.given} - self.loose - self.parts
        contiguous |= {t.name for _, t in tensors} - last - given  # as other kernels read them
        last |= {t.name for t in read} & self.loose - given
        source = self._first_of_chain(needed, stored)
        laid_as = source.name if source and self._convolved(needed, stored) != source else ""
        if laid_as and source and all(t.name != laid_as for t in inputs):
            inputs = (*inputs, replace(source, role="like"))
        turned = ""
        if (
            len(tensors) == 1
            and tensors[0][1].name in last
            and graph.kind == "map"
            and self.loose & {t.name for t in read}
        ):
            graph, tensors, turned = *_turned(graph, tensors), tensors[0][1].name
        made = TensorFacts(frozenset(contiguous), frozenset(last), laid_as, turned)
        spec = replace(
            self.spec, name=f"{self.spec.name}_{joined([t.name for _, t in tensors])}", inputs=inputs,
            outputs=tuple(t for _, t in tensors), facts=made, type=None,
            backward=False, deterministic=True,
        )  # fmt: skip
        plan = self.lower(spec, graph)
        sizes = tuple(name for name, _ in body_of(plan).layout.sizes if name != ELLIPSIS)
        if more or self._likes(read, graph, sizes) == self._likes(read, graph):
            return plan
        # places within what it reads mention sizes that no shape of that says
        return self._group(tensors, stored, is_called=is_called, more=sizes)

    def _is_for_windows(self, i: int, *, at_once: bool = False) -> bool:
        """Whether nothing but convolutions read a value, images or volumes, whose channels they want side by side, or,
        if not `at_once`, what is computed of it for these pixel by pixel, or window by window."""
        node, users = self.graph.nodes[i], [(j, self.graph.nodes[j]) for j in self.graph.readers[i]]

        def is_for(j: int, user: Node) -> bool:
            if user.convolution is not None:
                return user.op == "index" and user.args[0] == Ref(i)
            is_each = user.op == "index" or OPERATIONS[user.op].kind in ("map", "cast")
            return not at_once and is_each and len(user.shape) == len(node.shape) and self._is_for_windows(j)

        return bool(users) and len(node.shape) in (4, 5) and all(is_for(j, user) for j, user in users)

    def _convolved(self, needed: list[int], stored: dict[int, TensorSpec]) -> TensorSpec | None:
        """What the convolution among some nodes reads."""
        dots = (node for i in needed if (node := self.graph.nodes[i]).op == DOT and node.convolution)
        for dot in dots:
            windows = self.graph.nodes[dot.operands[0]]
            return stored.get(windows.operands[0])
        return None

    def _first_of_chain(self, needed: list[int], stored: dict[int, TensorSpec]) -> TensorSpec | None:
        """What the convolution among some nodes reads, or the first of those does that lie before it."""
        read = self._convolved(needed, stored)
        return self.convolved.get(read.name, read) if read else None

    def _laid_out(self, made: KernelPlan, source: TensorSpec | None) -> None:
        """Note which outputs of a step may lie with their channels last: as what it convolves does, or because what
        reads them wants that."""
        loose = [t.name for t in made.spec.outputs if t.name not in made.spec.facts.contiguous]
        loose = [made.spec.facts.turned] if made.spec.facts.turned else loose
        if (made.family == CONVOLUTION or made.spec.facts.turned) and source:
            self.loose |= set(loose)
            self.convolved |= dict.fromkeys(loose, source)

    def _likes(self, read: list[TensorSpec], graph: Graph, more: tuple[str, ...] = ()) -> tuple[TensorSpec, ...]:
        """Inputs of the operator that say a size, a dtype or a device which nothing that the group reads does. `more`:
        sizes beside the graph's."""
        known: set[object] = {bound_by(e) for t in read for e in t.shape}
        shapes = {e for t in read for e in t.shape}
        found: list[TensorSpec] = []
        for atom in (*_atoms(graph), *more):
            names = (atom,) if atom in shapes else names_in(atom)
            for name in names:
                if name not in known and name not in shapes:
                    tensor = next(t for t in self.spec.inputs if name in {bound_by(e) for e in t.shape})
                    found.append(replace(tensor, role="like"))
                    known |= {bound_by(e) for e in tensor.shape}
        wanted = {o.dtype for o in graph.outputs} | {str(n.attrs[0]) for n in graph.nodes if n.op == "round"}
        for dtype in sorted(wanted & {name for name, _ in self.spec.dtypes} - {t.dtype for t in (*read, *found)}):
            tensor = next(t for t in self.spec.inputs if t.dtype == dtype)
            found.append(replace(tensor, role="like"))
        if not read and not found:  # what follows from numbers alone lies on the device of the inputs
            found.append(replace(self.spec.inputs[0], role="like"))
        return tuple(found)


def _is_each(node: Node) -> bool:
    """Whether a value is a view, or floats computed element by element."""
    return node.op in VIEWS or (node.dtype == "float" and OPERATIONS[node.op].kind == "map")


def _turned(graph: Graph, tensors: list[tuple[int, TensorSpec]]) -> tuple[Graph, list[tuple[int, TensorSpec]]]:
    """A graph with one output, whose channels become its last dimension."""
    ((i, tensor),), (output,) = tensors, graph.outputs
    node = graph.nodes[output.node]
    order = (0, *range(2, len(node.shape)), 1)
    shape = tuple(node.shape[d] for d in order)
    last = Node("permute", (Ref(output.node),), shape, node.dtype, None, node.statement, order)
    made = Graph((*graph.nodes, last), (replace(output, node=len(graph.nodes)),), graph.statements)
    return made, [(i, replace(tensor, shape=tuple(tensor.shape[d] for d in order)))]


def _noun(graph: Graph, i: int) -> str:
    """What a value without a name is called in memory between two kernels."""
    return KIND_NOUNS.get(OPERATIONS[graph.nodes[seen_through(graph.nodes, i)].op].kind, "intermediate")


def joined(names: Sequence[str]) -> str:
    """What computes some tensors, in one name: of more than two the first and the last."""
    return "_".join(names) if len(names) <= 2 else f"{names[0]}_to_{names[-1]}"


def _node(node: Node, stored: TensorSpec | None, place: dict[int, int]) -> Node:
    """A node among those of a group; one that lies in memory is an input of it."""
    if stored is not None:
        return Node("input", (), node.shape, node.dtype, stored.name, None, (stored.name,))
    return replace(node, args=tuple(Ref(place[a.node]) if isinstance(a, Ref) else a for a in node.args))


def _atoms(graph: Graph) -> tuple[Atom, ...]:
    """The sizes that a graph mentions; those within expressions for places by their names."""
    dims: list[Dim] = [dim for node in graph.nodes for dim in node.shape]
    dims += [arg.dim for node in graph.nodes for arg in node.args if isinstance(arg, SizeOf)]
    found = [atom for dim in dims for atom in dim]
    for node in graph.nodes:
        if node.indexing is not None:
            used = (*node.indexing.places, *(e for c in node.indexing.conditions for e in (c.left, c.right)))
            found += [n for e in used for leaf in leaves(e) for atom in leaf.size for n in names_in(atom)]
    return tuple(dict.fromkeys(found))
