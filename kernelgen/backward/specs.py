"""The parts of an operator's backward as specs of their own, generated like any other."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kernelgen.backward.convolution import convolves
from kernelgen.backward.differentiate import NOUNS
from kernelgen.backward.moves import MOVES
from kernelgen.backward.parts import Part
from kernelgen.backward.sizes import Sizes
from kernelgen.backward.source import LINE, Source, laid_out
from kernelgen.backward.tape import Tape, needed
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import DOT, SCATTERS, VIEWS, Node, Ref
from kernelgen.render import render
from kernelgen.spec import parse_spec
from kernelgen.spec.model import ELLIPSIS, Case, OperatorSpec, TensorSpec
from kernelgen.spec.sizes import bound_by, names_in, size_entry


@dataclass(frozen=True)
class Derived:
    """One part of a backward: an operator with a spec of its own."""

    spec: OperatorSpec
    text: str
    """The spec's YAML."""
    folder: str
    """Where its quartet goes below the forward's."""
    gradients: tuple[str, ...]
    """The inputs of the forward whose gradients are its first outputs."""
    multiplied: str = ""
    """The dtype, or its variable, of its products of matrices; empty where it has none."""


def saving(spec: OperatorSpec, tape: Tape) -> Derived | None:
    """The forward that saves what its gradients need beside inputs and outputs; None where they need nothing else."""
    if not tape.saved:
        return None
    part = Part((), tuple(tape.saved), (), tuple(tape.forward.items()))
    writer = _Writer(spec, tape, part, f"{spec.name}_forward", f"{spec.folder or spec.name}/forward", {})
    text = writer.text()
    return Derived(parse_spec(text, f"{writer.name}.yaml"), text, "forward", ())


def derived(
    spec: OperatorSpec, tape: Tape, parts: tuple[Part, ...], forward: Derived | None = None
) -> tuple[Derived, ...]:
    """The specs of all parts, in the order in which they run. `forward`: where it saves what they need. Raises Refused
    where a part cannot be written out."""
    kept = forward.spec.outputs if forward else spec.outputs
    made = dict(zip(tape.saved, kept[len(tape.forward) :], strict=True)) if forward else {}
    found = []
    for number, part in enumerate(parts):
        names = [n for n, _ in part.gradients] or list(dict.fromkeys(str(tape.nodes[i].name) for i in part.saved))
        suffix = "_".join(["backward", *(names if number else [])])
        writer = _Writer(spec, tape, part, f"{spec.name}_{suffix}", f"{spec.folder or spec.name}/{suffix}", made, kept)
        text = writer.text()
        made |= writer.saved
        path = f"{writer.name}.yaml"
        gradients = tuple(n for n, _ in part.gradients)
        found.append(Derived(parse_spec(text, path), text, suffix, gradients, writer.multiplied()))
    return tuple(found)


class _Writer:
    """Writes the spec of one part; `known` are the tensors that parts before it have saved, by node."""

    def __init__(
        self,
        spec: OperatorSpec,
        tape: Tape,
        part: Part,
        name: str,
        folder: str,
        known: Mapping[int, TensorSpec],
        kept: Collection[TensorSpec] = (),
    ) -> None:
        """`kept`: what the forward returns, and saves beside it."""
        self.spec, self.tape, self.part, self.name, self.folder = spec, tape, part, name, folder
        self.saved: dict[int, TensorSpec] = {}
        taken = {t.name for t in (*spec.inputs, *spec.outputs, *known.values())}
        for i in part.saved:
            self.saved[i] = self._saved(i, taken)
        given = {i: known[i] for i in part.given}
        self.targets = [*(i for _, i in part.results), *(i for _, i in part.gradients), *part.saved]
        used = [i for i in needed(tape, self.targets, given) if tape.nodes[i].op == "input"]
        self.nodes = {i: str(tape.nodes[i].attrs[0]) for i in used} | {i: t.name for i, t in given.items()}
        read = set(self.nodes.values())
        own = {t.name: t for t in spec.inputs}
        outputs = [TensorSpec(f"grad_{o.name}", o.shape, o.dtype) for o in spec.outputs]
        declared = {o.name: o for o in spec.outputs}
        self.outputs = [
            *(replace(declared[n], role="data") for n, _ in part.results),
            *(TensorSpec(f"grad_{n}", own[n].shape, own[n].dtype) for n, _ in part.gradients), *self.saved.values()
        ]  # fmt: skip
        from_parts = [t for t in given.values() if t not in kept]
        inputs = [t for t in (*outputs, *spec.inputs, *kept) if t.name in read] + from_parts
        inputs += self._likes(inputs, [own[n] for n, _ in part.gradients])
        bound = {bound_by(e) for t in inputs for e in t.shape}
        for entry in (e for t in inputs for e in t.shape):
            if not bound.issuperset(names_in(entry)):
                raise Refused(f"a gradient of the size {entry}, which binds no size")
        self.inputs = [
            replace(
                t, below=t.below if {*names_in(t.below)} <= bound else None,
                offsets=t.offsets if {*names_in(t.offsets)} <= bound else None,
            )
            for t in inputs
        ]  # fmt: skip

    def _saved(self, i: int, taken: set[str]) -> TensorSpec:
        """A value of whole rows as an output; its name is none of those `taken`, to which it is added."""
        node = self.tape.nodes[i]
        wanted = name = node.name or NOUNS.get(node.op, node.op)
        number = 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        taken.add(name)
        return TensorSpec(name, tuple(map(size_entry, node.shape)), self.tape.saved.get(i, "float32"))

    def _likes(self, inputs: list[TensorSpec], wanted: list[TensorSpec]) -> Iterator[TensorSpec]:
        """Inputs of which only the shape or the dtype is needed: those that outputs have and no other input shows, and
        sizes from which those of others follow."""
        sizes = {bound_by(e) for t in inputs for e in t.shape}
        followed = {n for t in inputs for e in t.shape for n in names_in(e)}
        kinds = {t.dtype for t in inputs}
        variables = {name for name, _ in self.spec.dtypes}
        scattered = {name for name, i in self.part.gradients if self.tape.nodes[i].op in SCATTERS}
        for tensor in wanted:
            new = {bound_by(e) for e in tensor.shape} - sizes - {None}
            zeros = tensor.name in scattered and tensor.name not in {t.name for t in inputs}
            if new or zeros or (tensor.dtype in variables and tensor.dtype not in kinds):
                sizes |= new
                kinds.add(tensor.dtype)
                yield TensorSpec(tensor.name, tensor.shape, tensor.dtype, "like")
        for tensor in self.spec.inputs:
            new = ({bound_by(e) for e in tensor.shape} & followed) - sizes
            if new:
                sizes |= new
                yield TensorSpec(tensor.name, tensor.shape, tensor.dtype, "like")

    def text(self) -> str:
        """The YAML of the part."""
        inputs = {n for t in self.inputs for n in (t.name,)}
        sizes = list(dict.fromkeys(n for t in self.inputs for e in t.shape for n in names_in(e)))
        kinds = {t.dtype for t in (*self.inputs, *self.outputs)}
        constraints = [c.text for c in self.spec.constraints if _mentions(c.text, self.spec) <= inputs]
        # sizes that kernelgen made up are made up again, where the constraints that they meet are at hand
        again = len(constraints) == len(self.spec.constraints)
        return render(
            "backward_spec.yaml.jinja",
            name=self.name,
            forward=self.spec.name,
            summary=self._summary(),
            inputs=_columns(self.inputs),
            outputs=_columns(self.outputs),
            dtypes=[(n, v) for n, v in self.spec.dtypes if n in kinds],
            constraints=constraints,
            precision=self.spec.precision if self._multiplies() else "",
            reference=self._reference(),
            strategies=self.spec.optimization_strategies,
            accuracy=_bindings((c for c in self.spec.accuracy if not (c.derived and again)), sizes),
            performance=_bindings((c for c in self.spec.performance if not (c.derived and again)), sizes),
            timed=_timed(self.spec, kinds),
            any_order=not self.spec.deterministic
            and any(self.tape.nodes[i].op == "scatter_add" for _, i in self.part.gradients),
            folder=self.folder,
            rounds=self.spec.max_rounds,
        )

    def _summary(self) -> str:
        names = [n for n, _ in self.part.gradients]
        if self.part.results:
            kept = " and ".join(t.name for t in self.saved.values())
            kept = "the logsumexp of its scores" if self.tape.delta is not None else kept
            return f"{self.spec.name} with {kept}, which its gradients need"
        what = f"the gradient of {' and of '.join(names)}" if names else "the values per row that its gradients need"
        return f"Backward of {self.spec.name}: {what}"

    def _reference(self) -> str:
        sizes = Sizes(self._forward_first())
        results = {i: f"grad_{n}" for n, i in self.part.gradients} | {i: n for n, i in self.part.results}
        body, kinds = self._casts()
        reserved = ["torch", "F", "math", "dtype", self.name]
        factors = self._factors()
        narrow = [i for i, name in self.nodes.items() if name in self._wide() and name in factors]
        called = self._as_called()
        source = Source(self.tape, sizes, self.nodes, reserved, narrow, kinds, called)
        source.write({**results, **{i: t.name for i, t in self.saved.items()}})
        nodes = self.tape.nodes
        rounded = {t.name for i, t in self.saved.items() if nodes[i].op == "round" or i in called}
        rounded |= {f"grad_{n}" for n, i in self.part.gradients if i in called}
        rounded |= {n for n, i in self.part.results if nodes[i].op == "round"}
        narrowed = {t.name: kinds[t.dtype] for t in self.outputs if t.dtype in kinds and t.name not in rounded}
        returned = [
            (t.name, f"{t.name}.to({narrowed[t.name]})" if t.name in narrowed else t.name) for t in self.outputs
        ]
        lines = [*body, *source.lines, f"return {', '.join(text for _, text in returned)}"]
        head = f"def {self.name}({', '.join(t.name for t in self.inputs)}):"
        return "\n".join([head, *map(laid_out, lines)])

    def _as_called(self) -> set[int]:
        """The outputs that calls of torch's give in the dtype that is declared."""
        dtypes = {t.name: t.dtype for t in self.outputs}
        made = {i: dtypes[t.name] for i, t in self.saved.items()}
        made |= {i: dtypes[f"grad_{n}"] for n, i in self.part.gradients}
        nodes = self.tape.nodes
        return {i for i, dtype in made.items() if convolves(nodes[i]) and nodes[i].attrs[0] == dtype}

    def _forward_first(self) -> list[TensorSpec]:
        """The inputs, those of the forward before gradients: what sizes and dtypes are read from."""
        own = {t.name for t in self.spec.inputs}
        return sorted(self.inputs, key=lambda t: t.name not in own)

    def _casts(self) -> tuple[list[str], dict[str, str]]:
        """The statements that make float32 of the inputs, and what every output's dtype is called afterwards."""
        if self._only_moves():
            return [], {}
        dtypes = dict(self.spec.dtypes)
        wide = [name for name in self._wide() if name not in self._factors()]
        lines, kinds = [], {}
        for made in (*(t.dtype for t in self.outputs), *self._rounded()):
            if made == "float32" or made in kinds:
                continue
            if made not in dtypes:
                kinds[made] = f"torch.{made}"
                continue
            carrier = next(t for t in self._forward_first() if t.dtype == made)
            kinds[made] = f"{made.lower()}_dtype" if kinds else "dtype"
            lines.append(f"{kinds[made]} = {carrier.name}.dtype")
        cast = f"{', '.join(wide)} = {', '.join(f'{n}.float()' for n in wide)}"
        lines += [cast] if wide and len(cast) <= LINE else [f"{n} = {n}.float()" for n in wide]
        return lines, kinds

    def _wide(self) -> list[str]:
        """The inputs that float32 is made of."""
        dtypes = dict(self.spec.dtypes)
        return [
            t.name
            for t in self.inputs
            if t.role != "like" and any("float" in d and d != "float32" for d in dtypes.get(t.dtype, (t.dtype,)))
        ]

    def multiplied(self) -> str:
        """The dtype, or its variable, in which it multiplies."""
        if not self._multiplies():
            return ""
        wide = self._wide() or [t.name for t in self.inputs if t.role != "like"]
        return self.tape.multiplied_as or next(t.dtype for t in self.inputs if t.name in wide)

    def _multiplies(self) -> bool:
        """Whether it has products or convolutions, whose factors are in the inputs' own dtype."""
        given = dict.fromkeys(self.nodes)
        return any(_is_product(self.tape.nodes[i]) for i in needed(self.tape, self.targets, given))

    def _rounded(self) -> list[str]:
        """What factors of its products are rounded to."""
        nodes = self.tape.nodes
        return [str(nodes[j].attrs[0]) for j in self._multiplied_nodes() if nodes[j].op == "round"]

    def _factors(self) -> set[str]:
        """The inputs that are needed in the dtype in which products multiply: what these read, also through views. What
        attention reads beside them it sees through their views."""
        if self.tape.delta is not None and self._multiplies():
            return set(self.nodes.values())
        found = set()
        for j in self._multiplied_nodes():
            while j not in self.nodes and self.tape.nodes[j].op in VIEWS:
                (j,) = self.tape.nodes[j].operands
            if j in self.nodes:
                found.add(self.nodes[j])
        return found

    def _multiplied_nodes(self) -> list[int]:
        """The factors of its products."""
        nodes = self.tape.nodes
        inside = needed(self.tape, self.targets, dict.fromkeys(self.nodes))
        return [a.node for i in inside if _is_product(nodes[i]) for a in nodes[i].args if isinstance(a, Ref)]

    def _only_moves(self) -> bool:
        """Whether elements are what they were in another place, or a number everywhere."""
        given = dict.fromkeys(self.nodes)
        nodes = [self.tape.nodes[i] for i in needed(self.tape, self.targets, given)]
        kinds, ops = {t.dtype for t in (*self.inputs, *self.outputs)}, {n.op for n in nodes}
        is_number = not any(dim for i in self.nodes for dim in self.tape.nodes[i].shape)
        return len(kinds) == 1 and ops <= {*MOVES, *VIEWS} and (bool(ops & set(MOVES)) or is_number)


def _is_product(node: Node) -> bool:
    return node.op == DOT or convolves(node)


def _columns(tensors: list[TensorSpec]) -> list[str]:
    """The entries of inputs or outputs, in columns."""
    names = [f"{t.name}," for t in tensors]
    shapes = [f"[{', '.join(map(str, t.shape))}]," for t in tensors]
    return [
        f"{{name: {name:{max(map(len, names))}} shape: {shape:{max(map(len, shapes))}} dtype: {t.dtype}"
        f"{', role: like' if t.role == 'like' else ''}{f', below: {t.below}' if t.below is not None else ''}"
        f"{f', offsets: {t.offsets}' if t.offsets is not None else ''}}}"
        for t, name, shape in zip(tensors, names, shapes, strict=True)
    ]


def _mentions(constraint: str, spec: OperatorSpec) -> set[str]:
    names = {n.id for n in ast.walk(ast.parse(constraint, mode="eval")) if isinstance(n, ast.Name)}
    return names & {t.name for t in spec.inputs}


def _bindings(cases: Iterable[Case], sizes: list[str]) -> list[str]:
    """The shapes of some cases as entries of a spec."""
    found: dict[str, None] = {}
    for case in cases:
        bound = dict(case.sizes)
        shown = {n: list(v) if isinstance(v := bound[n], tuple) else v for n in sizes}
        found["{" + ", ".join(f"{n if n != ELLIPSIS else '...'}: {v}" for n, v in shown.items()) + "}"] = None
    return list(found)


def _timed(spec: OperatorSpec, kinds: set[str]) -> list[tuple[str, list[str]]]:
    """The dtypes that are timed, where those are not all."""
    found = []
    for name, values in spec.dtypes:
        timed = [v for v in values if any(dict(c.dtypes)[name] == v for c in spec.performance)]
        if name in kinds and 0 < len(timed) < len(values):
            found.append((name, timed))
    return found
