"""A traced graph as a reference that a person can go on with: names from the source, one line a statement."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernelgen.importer.lines import Lines, frames_of
from kernelgen.importer.load import Loaded
from kernelgen.importer.naming import LETTERS, unique
from kernelgen.importer.operations import (
    INDEXING,
    RECURRENT,
    Spelled,
    Text,
    argument,
    constant,
    expression,
    indexable,
    indexed,
    is_size,
    is_whole,
    merged,
    plain_name,
    target_noun,
    written,
)  # fmt: skip
from kernelgen.importer.rewrite import Input, Rewritten, Scalar, is_literal, literal_of
from kernelgen.importer.traced import STATISTICS, Traced

COLUMNS = 116
"""The longest line; in the spec it stands two further in."""

WIDTH = 100
"""From this length on an expression is cut into statements."""

_NOTHING = ("_assert", "_guards", "sym_constrain", "num_batches_tracked")
_SAME = ("alias", "detach", "lift_fresh", "lift_fresh_copy")
_DRAWN = ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "multinomial", "rand_like", "randn_like",
          "uniform", "exponential", "rrelu", "randint_like")  # fmt: skip


def from_graph(loaded: Loaded, traced: Traced, operator: str) -> Rewritten:
    """The reference of what was traced. SpecError at the place of what no reference can say."""
    return _Writer(loaded, traced, operator).reference()


class _Writer:
    def __init__(self, loaded: Loaded, traced: Traced, operator: str) -> None:
        self.loaded, self.source, self.traced, self.operator = loaded, loaded.source, traced, operator
        self.lines = Lines(loaded.source.tree)
        self.same: dict[Any, Any] = {}
        """What a node is the same as: a dropout of nothing, an operation in place and the functional one."""
        self.written: set[Any] = set()
        """Operations in place that must stay so."""
        self.drawn: list[Any] = []
        self.changed: list[str] = []
        self.names: dict[Any, str] = {}
        self.last: dict[Any, int] = {}
        """The last statement that reads a name."""
        self.inputs: list[Input] = []

    def reference(self) -> Rewritten:
        self._simplify()
        self.kept = self._kept()
        self._name_inputs()
        self._spell_what_follows()
        self._choose()
        body = self._body()
        head = ", ".join(t.name for t in self.inputs)
        text = "\n".join([*_wrapped(f"def {self.operator}({head}):", 0), *body])
        module = self.loaded.module
        fixed = () if module is None else (("self.training", str(module.training)),)
        traced = replace(self.traced, drawn=tuple(node for node in self.drawn if node in self.names))
        return Rewritten(
            text, tuple(self.inputs), self._scalars(), fixed, self._made_with(), traced, tuple(self.changed)
        )

    # what is left of the graph

    def _simplify(self) -> None:
        position = {node: i for i, node in enumerate(self.traced.nodes)}
        self.root: dict[Any, Any] = {}
        self.family: dict[Any, list[Any]] = {}
        for node in self.traced.nodes:
            seen = _seen_through(node)
            self.root[node] = self.root.setdefault(seen, seen) if seen is not None else node
            self.family.setdefault(self.root[node], [self.root[node]]).append(node)
        for node in self.traced.nodes:
            name = plain_name(node)
            if name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
                if node.args[1] and node.args[2]:
                    raise self._mistake(
                        node, f"a dropout of {node.args[1]} in training draws from torch's generator: import the "
                        "module in evaluation (.eval()), with p=0, or with the mask as an argument"
                    )  # fmt: skip
                self.same[node] = node.args[0]
            elif name in RECURRENT and node.args[5] and node.args[6]:
                raise self._mistake(
                    node, f"a dropout of {node.args[5]} between the layers of {name} in training draws from torch's "
                    "generator: import the module in evaluation (.eval()) or with dropout=0"
                )  # fmt: skip
            elif (
                name in _SAME or is_whole(node) or (name == "to" and self._real(node.args[0]) in self.traced.constants)
            ):
                self.same[node] = node.args[0]
            elif _is_as_it_was(node):
                self.same[node] = node.args[0].args[0][node.args[1]]
            elif name in ("randn", "rand") and not _is_size_like(node):
                self.drawn.append(node)
            elif name in _DRAWN:
                raise self._mistake(
                    node, f"{name} draws from torch's generator: pass the random numbers as an argument, or use "
                    "a mask and a seed"
                )  # fmt: skip
            elif self._is_new_state(node, position):
                self.same[node] = self.same[self.root[node]] = node.args[1]
                self.changed.append(_attribute(self.loaded, self.traced.state[self.root[node]].path))
            elif _writes(node):
                self._check_state(node)
                if not self._alone(node, position):
                    self.written.add(node)

    def _is_new_state(self, node: Any, position: dict[Any, int]) -> bool:
        """Whether a parameter or a buffer is given a new value as a whole, before anything reads it."""
        root = self.root[node]
        if plain_name(node) != "copy" or not _writes(node) or node.args[0] is not root or root not in self.traced.state:
            return False
        old, new = (given.meta["val"] for given in node.args[:2])
        reads = (u for one in self.family[root] if one is not node for u in one.users if u is not node)
        return (
            (old.shape, old.dtype) == (new.shape, new.dtype) and root not in self.same
            and all(position.get(u, math.inf) > position[node] for u in reads)
        )  # fmt: skip

    def _check_state(self, node: Any) -> None:
        """Refuse what changes a parameter or a buffer: only a norm in training may count its batches."""
        found = self.traced.state.get(self.root[node])
        if found is not None and not found.path.endswith(STATISTICS):
            own = _attribute(self.loaded, found.path)
            raise self._mistake(node, f"forward changes {own}; a reference changes nothing: return the new value")

    def _alone(self, node: Any, position: dict[Any, int]) -> bool:
        """Whether nothing reads what an operation in place has overwritten, but through its own result."""
        for other in self.family[self.root[node]]:
            if any(position.get(u, -1) > position[node] for u in other.users) and not self._follows(other, node):
                return False
        return not any(
            out in self.family[self.root[node]] and not self._follows(out, node) for out in self.traced.outputs
        )

    def _follows(self, node: Any, written: Any) -> bool:
        """Whether a node is the result of an operation in place, or looks at it."""
        while node is not written and self.root.get(node, node) is not node:
            node = node.args[0]
        return node is written

    def _kept(self) -> list[Any]:
        """The operations that the results follow from, in order."""
        needed: set[Any] = set()
        open_nodes = [self._real(out) for out in self.traced.outputs]
        open_nodes += [n for n in self.written if not self._is_statistic(n)]
        while open_nodes:
            node = open_nodes.pop()
            if node not in needed:
                needed.add(node)
                if node not in self.drawn:
                    open_nodes += _real_reads(node, self._real)
        return [n for n in self.traced.nodes if n in needed and n not in self.drawn]

    def _is_statistic(self, node: Any) -> bool:
        """A counter or a running statistic that training leaves in a buffer: no output."""
        return self.root[node] in self.traced.state

    def _real(self, node: Any) -> Any:
        while node in self.same:
            node = self.same[node]
        return node

    # names

    def _name_inputs(self) -> None:
        used = {source for node in self.kept for source in _real_reads(node, self._real)}
        used |= {self._real(out) for out in self.traced.outputs}
        arguments = _arguments(self.loaded)
        taken = {self.operator, "torch", "F", "math"}
        tensors = iter(self.traced.data)
        for name, example in arguments:
            if not hasattr(example, "shape"):
                continue
            node = next(tensors)
            self._input(node, unique(name, taken), example, "data", name, taken)
        for i, node in enumerate(self.drawn):
            if node in used:
                wanted = self.lines.of(node, self.source.path)[:1] or ["noise"]
                value = _as_example(node)
                made = expression(node, self._in_forward).text
                self._input(node, unique(wanted[0], taken), value, "data", made, taken, f"drawn {i}")
        state = {node: s for node, s in self.traced.state.items() if node in used}
        leaves = [s.path.rpartition(".")[2] for s in state.values()]
        for node, found in state.items():
            leaf = found.path.rpartition(".")[2]
            name = leaf if leaves.count(leaf) == 1 else found.path.replace(".", "_")
            made = _attribute(self.loaded, found.path)
            self._input(node, unique(name, taken), found.value, "parameter", made, taken, found.path)
        if not self.inputs:
            raise self.source.mistake(self.loaded.function, f"'{self.loaded.function.name}' takes no tensor")

    def _input(self, node: Any, name: str, value: Any, role: str, made: str, taken: set[str], path: str = "") -> None:
        taken.add(name)
        self.names[node] = name
        dtype = str(value.dtype).removeprefix("torch.")
        shape = tuple(int(size) for size in value.shape)
        fixed = frozenset(i for i, size in enumerate(node.meta["val"].shape) if isinstance(size, int))
        self.inputs.append(Input(name, shape, dtype, role, made, value, path, fixed))

    def _in_forward(self, value: Any) -> Text:
        """An argument of something that the module goes on drawing itself."""
        if hasattr(value, "op"):
            return Text(self.names[value]) if value in self.names else expression(value, self._in_forward)
        return Text(f"{self.inputs[0].name}.device") if _is_device(value) else _constant(value)

    def _scalars(self) -> tuple[Scalar, ...]:
        """The arguments of forward that are constants now."""
        given = [(name, e) for name, e in _arguments(self.loaded) if not hasattr(e, "shape")]
        return tuple(Scalar(name, literal_of(value)) for name, value in given if is_literal(value))

    def _made_with(self) -> tuple[tuple[str, str], ...]:
        """The constructor's arguments, as far as a file can say them."""
        if self.loaded.owner is None:
            return ()
        bound = inspect.signature(type(self.loaded.module).__init__).bind(None, *self.loaded.made_with)
        bound.apply_defaults()
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
        given = [(name, value) for name, value in list(bound.arguments.items())[1:] if kinds[name] in plain]
        return tuple((name, literal_of(value)) for name, value in given if is_literal(value))

    # statements

    def _choose(self) -> None:
        """Which operations get a statement of their own; the others stand in the one that reads them."""
        reads: dict[Any, int] = {}
        for node in self.kept:
            for source in _real_reads(node, self._real):
                reads[source] = reads.get(source, 0) + 1
        for out in self.traced.outputs:
            reads[self._real(out)] = reads.get(self._real(out), 0) + 1
        self.reads = reads
        self.wanted = {node: self.lines.of(node, self.source.path) for node in self.kept}
        following = dict(zip(self.kept, self.kept[1:], strict=False))
        self.statements: set[Any] = set()
        self.lengths: dict[Any, int] = {}
        for node in self.kept:
            name = str(node.target)
            if is_size(node):
                self.statements.add(node)
                continue
            if _is_size_like(node) and not _is_several(node):
                continue
            if "getitem" in name:
                continue
            own = self.lines.ends(node, following.get(node), self.source.path)
            if node in self.written or self.written or reads.get(node, 0) > 1 or own or _is_several(node):
                self.statements.add(node)
                continue
            if self._length(node) > WIDTH:
                inner = [s for s in _real_reads(node, self._real) if s in self.lengths and s not in self.statements]
                longest = max(inner, key=lambda n: self.lengths[n], default=None)
                if longest is not None:
                    self.statements.add(longest)

    def _length(self, node: Any) -> int:
        """How long the text of a node is, about: not every name is known yet."""
        found = len(self._text(node).text)
        self.lengths[node] = found
        return found

    def _body(self) -> list[str]:
        order = [n for n in self.kept if n in self.statements]
        outputs = [self._real(out) for out in self.traced.outputs]
        if (
            order
            and order[-1] in outputs
            and len(outputs) == 1
            and order[-1] not in self.written
            and not _is_several(order[-1])
        ):
            self.statements.discard(order.pop())  # it stands behind the return
        for i, node in enumerate(order):
            for source in self._behind(node):
                self.last[source] = i
        for out in outputs:
            for source in (out, *self._behind(out)):
                self.last[source] = len(order)
        held: dict[str, Any] = {name: node for node, name in self.names.items()}
        held |= {self.dtype: self.traced} if self.dtype else {}
        texts = [self._statement(node, i, held) for i, node in enumerate(order)]
        returned = ", ".join(self._operand(out).text for out in outputs)
        texts.append(f"return {returned}")
        for i in reversed(range(len(order))):  # sizes that no statement names in the end
            name = texts[i].split(" ")[0]
            if is_size(order[i]) and not any(re.search(rf"\b{name}\b", text) for text in texts[i + 1 :]):
                del texts[i]
        if self.dtype and any(re.search(rf"\b{self.dtype}\b(?!=)", text) for text in texts):
            texts.insert(0, f"{self.dtype} = {self._of_dtype()}.dtype")
        return [line for text in texts for line in _wrapped(text, 4)]

    def _spell_what_follows(self) -> None:
        """Have arguments that follow from the dtype of what comes in written so."""
        taken = {t.name for t in self.inputs}
        self.dtype = unique("dtype", taken) if self.traced.followed and self._of_dtype() else ""
        if not self.dtype:
            return
        for node, place, what in self.traced.followed:
            spelled = Spelled(self.dtype if what == "dtype" else f"torch.finfo({self.dtype}).{what}")
            if isinstance(place, int):
                node.update_arg(place, spelled)
            else:
                node.update_kwarg(place, spelled)

    def _of_dtype(self) -> str:
        """An input of float32, data where there is some."""
        floats = sorted((t for t in self.inputs if t.dtype == "float32"), key=lambda t: t.role != "data")
        return floats[0].name if floats else ""

    def _behind(self, node: Any) -> Iterator[Any]:
        """What a statement reads, through what stands in it."""
        open_nodes = list(_real_reads(node, self._real))
        while open_nodes:
            found = open_nodes.pop()
            if found in self.statements or found in self.names or _parts_of(found) in self.statements:
                yield found
            else:
                open_nodes += _real_reads(found, self._real)

    def _statement(self, node: Any, i: int, held: dict[str, Any]) -> str:
        text = self._text(node).text
        if node in self.written:
            self.names[node] = self._operand(node.args[0]).text
            return text
        if _is_several(node):
            return self._several(node, i, held, text)
        name = self._free_name(node, self._candidates(node), i, held)
        return f"{name} = {text}"

    def _several(self, node: Any, i: int, held: dict[str, Any], text: str) -> str:
        """The parts of a result by names of their own; one alone by its index."""
        parts = {n.args[1]: n for n in node.users if "getitem" in str(n.target) and n in self.reads}
        count = len(node.meta["val"])
        targets = self.lines.several(node, self.source.path)
        if len(parts) == 1:
            [(at, part)] = parts.items()
            wanted = [targets[at]] if at < len(targets) and targets[at] != "_" else []
            return f"{self._free_name(part, [*wanted, *self._candidates(part)], i, held)} = {text}[{at}]"
        names = []
        for at in range(count):
            part = parts.get(at)
            if part is None:
                names.append("_")
                continue
            wanted = [targets[at]] if at < len(targets) else []
            names.append(self._free_name(part, [*wanted, *self._candidates(part)], i, held, fresh=True))
        return f"{', '.join(names)} = {text}"

    def _candidates(self, node: Any) -> list[str]:
        if is_size(node):
            rank = len(node.args[0].meta["val"].shape)
            axis = node.args[1]
            letter = LETTERS.get(rank, "")[axis : axis + 1].lower() or "size"
            return [*self.lines.sizes.get((self.names[node.args[0]], axis), []), letter]
        module = [leaf for leaf in _module_path(node)[-1:] if not leaf.isdigit()]
        return [*self.lines.of(node, self.source.path), *module, target_noun(node)]

    def _free_name(self, node: Any, wanted: Sequence[str], i: int, held: dict[str, Any], fresh: bool = False) -> str:
        """The first of the names whose value nothing reads any more, or one like the first."""
        taken = {self.operator, "torch", "F", "math", "random_mask"}

        def is_free(name: str) -> bool:
            holder = held.get(name)
            dead = holder is None or self.last.get(holder, -1) <= i
            return name not in taken and dead and not (fresh and self.last.get(holder, -1) == i)

        plain = [re.sub(r"\W", "_", name) for name in wanted if name.isidentifier() and name != "_"]
        found = next((name for name in plain if is_free(name)), None)
        if found is None:
            base = re.sub(r"_?\d+$", "", plain[0]) or "value"
            found = next(name for k in range(2, 10000) if is_free(name := f"{base}_{k}"))
        held[found] = node
        self.names[node] = found
        return found

    # expressions

    def _operand(self, value: Any) -> Text:
        if hasattr(value, "op") and hasattr(value, "meta"):
            node = self._real(value)
            if node in self.names:
                return Text(self.names[node])
            if node in self.traced.constants:
                return self._lifted(node)
            if node in self.statements:
                return Text("unnamed")
            return self._text(node)
        return Text(f"{self.inputs[0].name}.device") if _is_device(value) else _constant(value)

    def _lifted(self, node: Any) -> Text:
        """A tensor that forward made of numbers."""
        value = self.traced.constants[node]
        if value.ndim == 0 and not value.is_meta:
            return _constant(value.item())
        if value.numel() > 64:
            raise self._mistake(
                next(iter(node.users)),
                f"a tensor of {value.numel()} numbers that forward makes itself: "
                "make it a buffer of the module, or compute it from torch.arange",
            )
        device = f"{self.inputs[0].name}.device"
        return Text(f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={device})")

    def _text(self, node: Any) -> Text:
        if "getitem" in str(node.target):
            several = self._real(node.args[0])
            return Text(f"{self._operand(several).within(3)}[{node.args[1]}]")
        if str(node.target) in INDEXING:
            chain = [node]
            while True:
                inner = self._real(chain[0].args[0])
                if str(getattr(inner, "target", "")) not in INDEXING or inner in self.statements:
                    break
                if not indexable([inner, *chain]):
                    break
                chain.insert(0, inner)
            if indexable(chain) and not (len(chain) == 1 and plain_name(node) == "unsqueeze"):
                return merged(chain, self._operand)
        if node in self.written:
            return self._in_place(node)
        return expression(node, self._operand)

    def _in_place(self, node: Any) -> Text:
        name = plain_name(node)
        target = self._operand(node.args[0]).text
        if name == "copy":
            return Text(f"{target}.copy_({self._operand(node.args[1]).text})")
        if name == "index_put" and not argument(node, 3, "accumulate", False):
            return Text(f"{indexed(node, self._operand).text} = {self._operand(node.args[2]).text}")
        rest = [written(value, self._operand) for value in node.args[1:]]
        rest += [f"{key}={written(value, self._operand)}" for key, value in node.kwargs.items()]
        return Text(f"{target}.{name}_({', '.join(rest)})")

    def _mistake(self, node: Any, message: str) -> Exception:
        line = next((line for line in reversed(frames_of(node, self.source.path))), None)
        if line is None:
            return self.source.mistake(self.loaded.function, message)
        return self.source.mistake_on(line, message)


def _module_path(node: Any) -> list[str]:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).split(".")[1:] if stack else []  # without the name that the whole is traced under


def _read(node: Any) -> Iterator[Any]:
    """The nodes that a node reads."""
    yield from getattr(node, "all_input_nodes", ())


def _real_reads(node: Any, real: Any) -> list[Any]:
    unread: set[Any] = set()
    if _is_training_norm(node):
        unread = {node.args[i] for i in (3, 4) if i < len(node.args)}
    elif plain_name(node) in ("layer_norm", "rms_norm") and argument(node, 2, "weight") is not None:
        unread = set(node.args[1])  # written as the shape of the weight
    return [real(source) for source in _read(node) if source not in unread]


def _is_training_norm(node: Any) -> bool:
    """A norm in training: it keeps running statistics, and does not read them."""
    return plain_name(node) in ("batch_norm", "instance_norm") and node.op == "call_function" and bool(node.args[5])


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.is_mutable and schema.arguments and schema.arguments[0].alias_info is not None)


def _seen_through(node: Any) -> Any:
    """What a view looks at, or an operation in place overwrites; None for what is new."""
    if "getitem" in str(node.target):
        return node.args[0]
    schema = getattr(node.target, "_schema", None)
    aliases = schema is not None and schema.arguments and schema.arguments[0].alias_info is not None
    return node.args[0] if aliases and node.args and hasattr(node.args[0], "op") else None


def _is_as_it_was(node: Any) -> bool:
    """Whether a node is one of several tensors that were broadcast, which losses do, and had that shape before."""
    if "getitem" not in str(node.target) or plain_name(node.args[0]) != "broadcast_tensors":
        return False
    return bool(node.args[0].args[0][node.args[1]].meta["val"].shape == node.meta["val"].shape)


def _is_several(node: Any) -> bool:
    return isinstance(node.meta.get("val"), list | tuple)


def _is_size_like(node: Any) -> bool:
    return not hasattr(node.meta.get("val"), "shape")


def _parts_of(node: Any) -> Any:
    return node.args[0] if "getitem" in str(getattr(node, "target", "")) else node


def _is_device(value: Any) -> bool:
    import torch

    return isinstance(value, torch.device)


def _constant(value: Any) -> Text:
    text = constant(value)
    return Text(text, 2 if text.startswith("-") else 3)


def _arguments(loaded: Loaded) -> list[tuple[str, Any]]:
    """The parameters of forward that an example is given for."""
    arguments = loaded.function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    names = names[1:] if loaded.module is not None else names
    if arguments.vararg is not None:
        names += [f"{arguments.vararg.arg}_{i}" for i in range(len(loaded.examples))]
    names += [a.arg for a in arguments.kwonlyargs]
    return list(zip(names, loaded.examples, strict=False))


def _attribute(loaded: Loaded, path: str) -> str:
    """How forward calls a parameter: `self.layers[0].weight`."""
    own = loaded.function.args.args[0].arg
    pieces = [f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".")]
    text = f"{own}{''.join(pieces)}"
    return (
        text
        if all(part.isdigit() or part.isidentifier() for part in path.split("."))
        else f'{own}.get_parameter("{path}")'
    )


def _as_example(node: Any) -> Any:
    import torch

    value = node.meta["val"]
    shape = [size if isinstance(size, int) else int(size.node.hint) for size in value.shape]
    return torch.empty(shape, dtype=value.dtype, device="meta")


def _wrapped(line: str, indent: int) -> list[str]:
    """A statement over several lines, cut behind commas in brackets, where it is too long for one."""
    pieces, depth, quoted, start = [], 0, False, 0
    for i, letter in enumerate(line):
        quoted ^= letter in "'\""
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == " " and line[i - 1] == "," and depth and not quoted:
            pieces.append(line[start : i + 1])
            start = i + 1
    lines = [" " * indent]
    for piece in (*pieces, line[start:]):
        if len(lines[-1]) + len(piece.rstrip()) > COLUMNS and lines[-1].strip():
            lines[-1] = lines[-1].rstrip()
            lines.append(" " * (indent + 4))
        lines[-1] += piece
    return lines
