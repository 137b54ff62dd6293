"""A graph that gradients are added to: equal nodes are made once, and sums are taken of as little as they can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import REDUCTIONS, Arg, Dim, Graph, Node, Ref, SizeOf, broadcast

Shape = tuple[Dim, ...]


class Tape(Builder):
    """The nodes of a reference, and after them those of its gradients.

    A gradient may have size one where what it is the gradient of is longer: it is then the same along that dimension.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.nodes = list(graph.nodes)
        self.deviations = set(graph.deviations)
        self.pieces: set[Ref] = set()
        """Values that are zero where a condition does not hold, because something else is the result there."""
        self.first = len(self.nodes)
        """The first node that is not the reference's."""
        self.kept: set[int] = set()
        """Views and numbers that get a statement of their own."""
        self.hints: dict[int, str] = {}
        """What values without a name may be called."""
        self.delta: int | None = None
        """Of attention: what its rows' gradients and results come to, which one part computes for the others."""
        self.handed: tuple[int, ...] = ()
        """The gradients of products, of which all that they are products of is computed."""
        self.saved: dict[int, str] = {}
        """What the forward saves beside its outputs, with its dtype."""
        self.forward: dict[str, int] = {}
        """The outputs of a forward that saves something."""
        self.multiplied_as = ""
        """The dtype in which a reference multiplies, if it says so."""
        self.known = {_key(node): Ref(i) for i, node in reversed(list(enumerate(graph.nodes)))}

    def _add(self, node: Node) -> Ref:
        found = self.known.get(_key(node))
        if found is None:
            self.nodes.append(node)
            found = self.known[_key(node)] = Ref(len(self.nodes) - 1)
        return found

    def call(self, ref: Ref, name: str) -> None:
        """Name a value that has no name yet."""
        if self.node(ref).name is None:
            self.nodes[ref.node] = replace(self.node(ref), name=name)

    def keep(self, ref: Ref, name: str) -> None:
        """Name a value, and give it a statement of its own although it looks at another or is a number."""
        self.call(ref, name)
        self.kept.add(ref.node)

    def times(self, a: Arg, b: Arg) -> Ref:
        """A product, of which at least one factor is a tensor; the numbers in it are multiplied beforehand."""
        for piece, factor in ((a, b), (b, a)):
            if isinstance(piece, Ref) and piece in self.pieces:
                return self.piece(piece, lambda value: self.times(value, factor))  # noqa: B023
        (first, one), (second, other) = self._factor(a), self._factor(b)
        number = float(f"{first * second:.15g}")  # so that sqrt(0.5) twice is 0.5
        core = one if other is None else other if one is None else self.map("mul", one, other)
        assert isinstance(core, Ref)
        if number == 1:
            return core
        return self.map("neg", core) if number == -1 else self.map("mul", number, core)

    def over(self, a: Ref, b: Arg) -> Ref:
        """A quotient."""
        if a in self.pieces:
            return self.piece(a, lambda value: self.over(value, b))
        number, core = self._factor(a)
        divisor, other = self._factor(b) if isinstance(b, Ref) else (1, b)
        assert isinstance(core, Ref)
        assert other is not None
        return self.times(number / divisor, self.map("div", core, other))

    def piece(self, ref: Ref, change: Callable[[Ref], Ref]) -> Ref:
        """A value that is zero where a condition does not hold, changed where it does: zero stays zero there, whatever
        it is multiplied with."""
        condition, *branches = self.node(ref).args
        changed = self.map("where", condition, *(change(x) if isinstance(x, Ref) else x for x in branches))
        self.pieces.add(changed)
        return changed

    def _factor(self, arg: Arg) -> tuple[float, Arg | None]:
        """A value as a number times what is left of it."""
        if isinstance(arg, SizeOf):
            return 1, arg
        if not isinstance(arg, Ref):
            return arg, None
        node = self.node(arg)
        if node.op == "neg":
            number, rest = self._factor(node.args[0])
            return -number, rest
        if node.op == "mul":
            for one, other in (node.args, node.args[::-1]):
                if isinstance(one, int | float) and isinstance(other, Ref):
                    number, rest = self._factor(other)
                    return one * number, rest
        return 1, arg

    def minus(self, a: Ref) -> Ref:
        return self.times(-1, a)

    def view(self, op: str, x: Ref, shape: tuple[Dim, ...], attrs: tuple[int, ...] = ()) -> Ref:
        """As in any graph, but reshapes that follow one another are one."""
        node = self.node(x)
        if op == node.op == "reshape" and isinstance(node.args[0], Ref):
            return self.view(op, node.args[0], shape)
        return super().view(op, x, shape, attrs)

    def total(self, parts: Sequence[Ref]) -> Ref:
        """A sum. Pieces of one function are joined first, then what has factors in common, then the rest in order."""
        left = list(parts)
        for join in (self._stacked, self._pieced, self._factored):
            i = 0
            while i < len(left):
                made = [(j, one) for j in range(i + 1, len(left)) if (one := join(left[i], left[j])) is not None]
                if made:
                    left[i] = made[0][1]
                    del left[made[0][0]]
                else:
                    i += 1
        result = left[0]
        for part in left[1:]:
            result = self._plain_sum(result, part)
        return result

    def _stacked(self, a: Ref, b: Ref) -> Ref | None:
        """Two pieces of the same place."""
        if a not in self.pieces or b not in self.pieces:
            return None
        (condition, first, _), (other, third, fourth) = self.node(a).args, self.node(b).args
        further = fourth if third == 0.0 else third
        if condition != other or (first == 0.0) != (third == 0.0) or not isinstance(further, Ref):
            return None
        return self.piece(a, lambda value: self.total([value, further]))

    def _pieced(self, a: Ref, b: Ref) -> Ref | None:
        """What is zero where a condition holds, and what is zero where it does not."""
        if a not in self.pieces or b not in self.pieces:
            return None
        (condition, first, second), (other, third, fourth) = self.node(a).args, self.node(b).args
        if condition != other or (first == 0.0) == (third == 0.0):
            return None
        return self.map("where", condition, *((third, second) if first == 0.0 else (first, fourth)))

    def _factored(self, a: Ref, b: Ref) -> Ref | None:
        """A sum with the factors that both have taken out of it: an infinite one then meets no infinity of the other
        sign."""
        (number, own), (other_number, others) = self._factors(a), self._factors(b)
        left, mine, common = list(others), list(own), []
        for factor in own:
            if factor in left:
                left.remove(factor)
                mine.remove(factor)
                common.append(factor)
        if not common:
            return None
        one, other = self._product(number, mine), self._product(other_number, left)
        whole = self._product(1, common)
        if not isinstance(one, Ref) and not isinstance(other, Ref):
            return self.times(number + other_number, whole)
        return self.times(whole, self._plain_sum(one, other))

    def _factors(self, ref: Ref) -> tuple[float, list[Ref]]:
        """The factors of a value: a number, and values that have a name, come from the reference or are no products."""
        number, core = self._factor(ref)
        assert isinstance(core, Ref)
        factors, todo = [], [core]
        while todo:
            one = todo.pop(0)
            node = self.node(one)
            if node.op == "mul" and one.node >= self.first and not node.name:
                parts = [self._factor(arg) for arg in node.args]
                if all(n == 1 and isinstance(rest, Ref) for n, rest in parts):
                    todo = [*(rest for _, rest in parts if isinstance(rest, Ref)), *todo]
                    continue
            factors.append(one)
        return number, factors

    def _product(self, number: float, factors: list[Ref]) -> Arg:
        product: Arg = number
        for i, factor in enumerate(factors):
            product = self.map("mul", product, factor) if i else factor
        return self.times(number, product) if factors else float(number)

    def _plain_sum(self, a: Arg, b: Arg) -> Ref:
        if isinstance(b, Ref) and self.node(b).op == "neg":
            return self.map("sub", a, self.node(b).args[0])
        if isinstance(a, Ref) and self.node(a).op == "neg":
            return self.map("sub", b, self.node(a).args[0])
        return self.map("add", a, b)

    def summed_to(self, g: Ref, full: Shape, shape: Shape) -> Ref | None:
        """The sum of `g`, a gradient of something of the shape `full`, over what an operand of `shape` was repeated
        along; None where it is zero."""
        rank = len(full)
        own, wanted = (((),) * (rank - len(s)) + tuple(s) for s in (self.node(g).shape, shape))
        dims = [i - rank for i in range(rank) if wanted[i] == () and full[i] != ()]
        same = tuple(atom for d in dims if own[d] == () for atom in full[d])
        if same:
            g = self.times(g, SizeOf(same))
        real = tuple(d for d in dims if own[d] != ())
        result = self.sum(g, real) if real else g
        if result is None or self.rank(result) <= len(shape):
            return result
        number, core = self._factor(result)  # a sum that nothing but a number is taken out of needs no kept dimensions
        assert isinstance(core, Ref)
        return self.times(number, self.view("reshape", core, self.node(core).shape[self.rank(core) - len(shape) :]))

    def sum(self, x: Ref, dims: tuple[int, ...]) -> Ref | None:
        """A sum that keeps its dimensions; what is the same along them is taken out of it. None where it is zero."""
        if self._cancels(x, dims):
            return self._zero(x, dims)
        node = self.node(x)
        if node.op == "neg":
            inner = self._sum_of(node.args[0], dims)
            return inner and self.minus(inner)
        if node.op in ("mul", "div"):
            a, b = node.args
            if self._leaves(b, dims):
                inner = self._sum_of(a, dims)
                return inner and (self.times(inner, b) if node.op == "mul" else self.over(inner, b))
            if self._leaves(a, dims) and node.op == "mul":
                inner = self._sum_of(b, dims)
                return inner and self.times(a, inner)
        if node.op in ("add", "sub") and any(self._cancels(a, dims) for a in node.args):
            first, second = (self._sum_of(arg, dims) for arg in node.args)
            second = second and (second if node.op == "add" else self.minus(second))
            return self._plain_sum(first, second) if first and second else first or second
        return self.reduce("sum", x, dims)

    def _sum_of(self, arg: Arg, dims: tuple[int, ...]) -> Ref | None:
        assert isinstance(arg, Ref)
        return self.sum(arg, dims)

    def _leaves(self, arg: Arg, dims: tuple[int, ...]) -> bool:
        """Whether a factor is taken out of a sum: a number, or what rows were reduced to. An infinite input makes
        infinities of both signs of what it is multiplied with, and their sum NaN."""
        return self._constant(arg, dims) and (not isinstance(arg, Ref) or self._is_statistic(arg))

    def _is_statistic(self, ref: Ref) -> bool:
        node = self.node(ref)
        return node.op in REDUCTIONS or any(self._is_statistic(a) for a in node.args if isinstance(a, Ref))

    def _constant(self, arg: Arg, dims: tuple[int, ...]) -> bool:
        """Whether an operand is the same along some dimensions."""
        if not isinstance(arg, Ref):
            return True
        shape = self.node(arg).shape
        return all(len(shape) + d < 0 or shape[d] == () for d in dims)

    def _cancels(self, arg: Arg, dims: tuple[int, ...]) -> bool:
        """Whether an operand is a deviation from its own mean, times something that is the same along the sum."""
        if not isinstance(arg, Ref):
            return False
        node = self.node(arg)
        if node.op == "neg":
            return self._cancels(node.args[0], dims)
        if node.op in ("mul", "div"):
            a, b = node.args
            if self._constant(b, dims):
                return self._cancels(a, dims)
            return node.op == "mul" and self._constant(a, dims) and self._cancels(b, dims)
        return node.op == "sub" and self._is_mean(node.args[1], node.args[0], dims)

    def _zero(self, arg: Arg, dims: tuple[int, ...]) -> Ref | None:
        """The sum of deviations from a mean times factors: NaN where a factor is not finite. None where it is zero, as
        in composites, of whose derivatives torch leaves it out."""
        factors: list[Ref] = []
        while isinstance(arg, Ref) and self.node(arg).op != "sub":
            node = self.node(arg)
            first, *rest = node.args
            if node.op == "mul" and not self._constant(rest[0], dims):
                first, rest = rest[0], [first]
            factors += [self.map("div", 1.0, f) if node.op == "div" else f for f in rest if isinstance(f, Ref)]
            arg = first
        if not factors or (isinstance(arg, Ref) and arg.node in self.deviations):
            return None
        zero = self.times(0.0, self._product(1, factors))
        self.call(zero, "zero_or_nan")
        return zero

    def _is_mean(self, arg: Arg, of: Arg, dims: tuple[int, ...]) -> bool:
        if not isinstance(arg, Ref) or not isinstance(of, Ref) or self.node(arg).op != "div":
            return False
        total, count = self.node(arg).args
        if not isinstance(total, Ref) or count != self.size(of, dims):
            return False
        node = self.node(total)
        return node.op == "sum" and node.args == (of,) and node.attrs == dims


def needed(tape: Tape, targets: Iterable[int], given: Mapping[int, object]) -> list[int]:
    """The nodes that the targets depend on, themselves included and what is given left out, in the graph's order."""
    found: set[int] = set()
    todo = list(targets)
    while todo:
        i = todo.pop()
        if i not in found and i not in given:
            found.add(i)
            todo += [a.node for a in tape.nodes[i].args if isinstance(a, Ref)]
    return sorted(found)


def _key(node: Node) -> Node:
    return replace(node, name=None, statement=None)


__all__ = ["Shape", "Tape", "broadcast", "needed"]
