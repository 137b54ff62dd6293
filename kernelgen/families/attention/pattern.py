"""The softmax between two products, found among values, and what its scores are masked and scaled by.

    scores = query . key;  weights = softmax(where(seen, scores * scale, -inf));  product = weights . value

Masks are taken out of the scores as conditions, for a walk over the keys may leave out what they hide; and a positive
factor, which goes into the exponentials. Whatever else is computed from the scores stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernelgen.families.masks import Condition
from kernelgen.families.values import Operand, Unlowerable, Use, Value
from kernelgen.frontend import indices as ix

_POSITIVE = ("rsqrt", "sqrt", "exp")
"""Functions that are positive, of sizes."""


@dataclass(frozen=True)
class Scale:
    """A positive factor: a number times some values of the program, over others."""

    number: float = 1.0
    times: tuple[int, ...] = ()
    over: tuple[int, ...] = ()
    statement: int | None = None


@dataclass(frozen=True)
class Softmax:
    """The values of an attention by what they are."""

    query: int
    key: int
    value: int
    scores: int
    """The product of queries and keys."""
    logits: int
    """What weights are computed from, short of conditions and scale."""
    conditions: tuple[Condition, ...]
    scale: Scale
    row_max: int
    row_sums: tuple[int, ...]
    """Of the exponentials: one, or one more for a logsumexp."""
    product: int
    weights: str | None
    """What weights are rounded to before they weigh values; None: they are float32."""
    divided: bool
    """Whether weights are divided by their sum before they weigh values, which may be done afterwards as well."""
    of_two: bool
    """Whether exponentials are powers of two in the reference already."""
    hidden_is_zero: bool
    """Whether a row that sees no key is zero instead of NaN."""


def softmax_of(values: Sequence[Value], outputs: Sequence[int]) -> tuple[tuple[Value, ...], Softmax, tuple[int, ...]]:
    """The values short of what the walk over keys does itself, the softmax among them, and the numbers of the outputs
    then. Raises Unlowerable where there is none."""
    found = Finder(list(values)).softmax()
    pruned, softmax, numbers = _Pruned(found, outputs).result()
    for i, value in enumerate(pruned):
        if value.op in ("max", "sum") and i not in (softmax.row_max, *softmax.row_sums):
            raise Unlowerable("a reduction of scores beside their softmax", value.statement)
    return pruned, softmax, numbers


@dataclass(frozen=True)
class _Found:
    values: list[Value]
    softmax: Softmax


class Finder:
    """Looks at values by what they are made of; what it takes apart it adds to these."""

    def __init__(self, values: list[Value]) -> None:
        self.values = values

    def softmax(self) -> _Found:
        first, second = (i for i, v in enumerate(self.values) if v.op == "dot")
        query, key = self.uses(self.values[first])
        weights, value = self.uses(self.values[second])
        rounded, zero, divided = None, False, False
        if self.values[weights].op == "round":
            rounded, (weights,) = self.values[weights].attr, self.uses(self.values[weights])
        if self.values[weights].op == "where":
            weights, zero = self._unhidden(weights), True
        after: list[tuple[str, int]] = []
        if self.values[weights].op == "div":
            numerator, denominator = self.uses(self.values[weights])
            divided = self.values[denominator].op == "sum" and self.values[denominator].args == (Use(numerator),)
            after, weights = [("div", denominator)], numerator
        logits, shift = self._unshifted(*self._difference(weights))
        row_max = self._maximum(shift, logits)
        if row_max is None:
            row_max, factor = self._shifted_anew(weights, logits, shift)
            after, divided = [("mul", factor), *after], False
        elif divided:
            after = []
        if (zero and not divided) or any(self._varies(i) for _, i in after):
            raise self._refused(weights)
        second = self._followed(second, after)
        of_two = self.values[weights].op == "exp2"
        sums = [i for i, v in enumerate(self.values) if v.op == "sum" and self._is_sum(v, logits, row_max)]
        conditions, inner = self.masked(logits)
        scale, inner = self.scaled(inner)
        self.values[row_max] = replace(self.values[row_max], args=(Use(inner),))
        for i in [*sums, second]:  # the walk computes these itself
            self.values[i] = replace(self.values[i], args=(Use(row_max), *self.values[i].args[1:]))
        if self.values[first].name is None:
            self.values[first] = replace(self.values[first], name="scores" if inner == first else "products")
        softmax = Softmax(
            query, key, value, first, inner, conditions, scale, row_max, tuple(sums), second, rounded, divided, of_two,
            zero,
        )  # fmt: skip
        self.values[second] = replace(self.values[second], args=(Use(row_max), Use(value)))
        return _Found(self.values, softmax)

    def uses(self, value: Value) -> list[int]:
        return [a.value for a in value.args if isinstance(a, Use)]

    def _refused(self, i: int) -> Unlowerable:
        return Unlowerable("two products without a softmax between them", self.values[i].statement)

    def _unhidden(self, i: int) -> int:
        """The weights in `where(row_max == -inf, 0, weights)`."""
        test, zero, weights = self.values[i].args
        if not isinstance(test, Use) or not isinstance(weights, Use) or self.constant(zero) != 0:
            raise self._refused(i)
        compared = self.values[test.value]
        is_hidden = compared.op == "eq" and self.constant(compared.args[1]) == -math.inf
        greatest = self.uses(compared)[:1]
        if not is_hidden or not greatest or self.values[greatest[0]].op != "max":
            raise self._refused(i)
        return weights.value

    def _difference(self, i: int) -> tuple[int, int]:
        """The logits in exp(logits - shift), and what is taken from them."""
        if self.values[i].op not in ("exp", "exp2") or not self.uses(self.values[i]):
            raise self._refused(i)
        difference = self.values[self.uses(self.values[i])[0]]
        uses = self.uses(difference)
        if difference.op != "sub" or len(uses) != 2:
            raise self._refused(i)
        return uses[0], uses[1]

    def _unshifted(self, logits: int, shift: int) -> tuple[int, int]:
        """Logits from which a number of the row has been taken already without that, which is then taken as well."""
        while self.values[logits].op == "sub" and len(self.uses(self.values[logits])) == 2:
            inner, own = self.uses(self.values[logits])
            if self._varies(own) or not self._varies(inner):
                break
            for i, v in enumerate(list(self.values)):
                if v.op == "max" and v.args == (Use(logits),):
                    self.values[i] = replace(v, op="sub", args=(Use(self._greatest(inner)), Use(own)), name=None)
            axes = self.values[own].axes | self.values[shift].axes
            logits, shift = inner, self._made(Value("add", (Use(own), Use(shift)), "float", axes))
        return logits, shift

    def _shifted(self, i: int) -> tuple[int, int]:
        """The logits in exp(logits - max(logits)), and that maximum."""
        logits, shift = self._difference(i)
        row_max = self._maximum(shift, logits)
        if row_max is None:
            raise self._refused(i)
        return logits, row_max

    def _varies(self, i: int) -> bool:
        """Whether a value changes from key to key."""
        first, second = (v.axes for v in self.values if v.op == "dot")
        return bool(self.values[i].axes & (first - second))

    def _shifted_anew(self, power: int, logits: int, shift: int) -> tuple[int, int]:
        """The maximum of logits from which something else is taken, such as a logsumexp, or the larger one of their
        maximum and a sink; and what exponentials of logits less the maximum are multiplied by for those."""
        value, op = self.values[power], self.values[power].op
        row_max = self._greatest(logits)
        axes = self.values[row_max].axes | self.values[shift].axes
        less = self._made(Value("sub", (Use(row_max), Use(shift)), "float", axes))
        factor = self._made(Value(op, (Use(less),), "float", self.values[less].axes, None, value.statement))
        sums = [i for i, v in enumerate(self.values) if v.op == "sum" and Use(power) in v.args]
        if sums:
            less = self._made(Value("sub", (Use(logits), Use(row_max)), "float", self.values[logits].axes))
            own = self._made(Value(op, (Use(less),), "float", self.values[less].axes))
        for i in sums:
            total = self._made(replace(self.values[i], args=(Use(own),)))
            self.values[i] = Value("mul", (Use(total), Use(factor)), "float", self.values[factor].axes)
        return row_max, factor

    def _greatest(self, logits: int) -> int:
        """The maximum of logits, which there is once."""
        for i, value in enumerate(self.values):
            if value.op == "max" and value.args == (Use(logits),):
                return i
        first, second = (v.axes for v in self.values if v.op == "dot")
        axes = self.values[logits].axes - (first - second)
        return self._made(Value("max", (Use(logits),), "float", axes, "row_max"))

    def _followed(self, second: int, after: Sequence[tuple[str, int]]) -> int:
        """The second product, where it has been multiplied or divided by what its weights were."""
        if not after:
            return second
        product, axes = self.values[second], self.values[second].axes
        found = last = self._made(product)
        for op, i in after[:-1]:
            last = self._made(Value(op, (Use(last), Use(i)), "float", axes, None, product.statement))
        op, i = after[-1]
        self.values[second] = Value(op, (Use(last), Use(i)), "float", axes, None, product.statement)
        return found

    def _made(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _maximum(self, shift: int, logits: int) -> int | None:
        """The maximum that exponents are less of: as it is, or 0 where it is infinite, as a logsumexp has it."""
        value = self.values[shift]
        if value.op == "where" and self.constant(value.args[1]) == 0 and isinstance(value.args[2], Use):
            shift = value.args[2].value
            value = self.values[shift]
        return shift if value.op == "max" and value.args == (Use(logits),) else None

    def _is_sum(self, total: Value, logits: int, row_max: int) -> bool:
        (summed,) = self.uses(total)
        if self.values[summed].op == "round":  # where what is rounded weighs values: their sum is of what is not
            (summed,) = self.uses(self.values[summed])
        try:
            return self._shifted(summed) == (logits, row_max)
        except Unlowerable:
            return False

    def constant(self, operand: Operand) -> float | None:
        if isinstance(operand, Use):
            value = self.values[operand.value]
            return self.constant(value.args[0]) if value.op == "const" else None
        return float(operand) if isinstance(operand, int | float) else None

    # masks

    def masked(self, i: int) -> tuple[tuple[Condition, ...], int]:
        """The conditions under which logits are not minus infinity, and the logits where they hold."""
        value = self.values[i]
        if value.op == "where":
            found = self._chosen(i)
            if found is not None:
                conditions, inner = self.masked(found[1])
                return (found[0], *conditions), inner
        if value.op in ("add", "sub", "mul", "div"):
            return self._within(i)
        return (), i

    def _chosen(self, i: int) -> tuple[Condition, int] | None:
        """`where(test, x, -inf)` or `where(test, -inf, x)`."""
        value = self.values[i]
        test, one, other = value.args
        assert isinstance(test, Use)
        if self.constant(other) == -math.inf and isinstance(one, Use):
            return Condition(test.value, True, value.statement), one.value
        if self.constant(one) == -math.inf and isinstance(other, Use):
            return Condition(test.value, False, value.statement), other.value
        return None

    def _within(self, i: int) -> tuple[tuple[Condition, ...], int]:
        """What is added to masked logits, or multiplies them by what is positive, may be taken of them unmasked."""
        value = self.values[i]
        scored = [n for n, a in enumerate(value.args) if isinstance(a, Use) and self.is_scored(a.value)]
        args, conditions = list(value.args), tuple[Condition, ...]()
        if value.op == "add":
            added = [self._added(a.value) for n, a in enumerate(args) if n not in scored and isinstance(a, Use)]
            if len(scored) == 1 and added and added[0] is not None:
                conditions, inner = self.masked(self._number(args[scored[0]]))
                return (added[0], *conditions), inner
        elif scored != [0] or (value.op != "sub" and not self._is_positive(args[1])):
            return (), i
        for n in scored:
            own, inner = self.masked(self._number(args[n]))
            args[n], conditions = Use(inner), (*conditions, *own)
        if not conditions:
            return (), i
        self.values.append(replace(value, args=tuple(args)))
        return conditions, len(self.values) - 1

    def _number(self, operand: Operand) -> int:
        assert isinstance(operand, Use)
        return operand.value

    def _added(self, i: int) -> Condition | None:
        """The condition that `where(test, 0, -inf)` is, where it is added."""
        value = self.values[i]
        if value.op != "where":
            return None
        one, other = (self.constant(a) for a in value.args[1:])
        test = value.args[0]
        assert isinstance(test, Use)
        if {one, other} != {0.0, -math.inf}:
            return None
        return Condition(test.value, one == 0.0, value.statement)

    def is_scored(self, i: int) -> bool:
        """Whether a value is computed from the scores."""
        todo, first = [i], next(n for n, v in enumerate(self.values) if v.op == "dot")
        seen: set[int] = set()
        while todo:
            j = todo.pop()
            if j == first:
                return True
            if j not in seen:
                seen.add(j)
                todo += self.uses(self.values[j])
        return False

    # scale

    def scaled(self, i: int) -> tuple[Scale, int]:
        """The positive factor of logits, and the logits without it."""
        value = self.values[i]
        scores = [n for n, a in enumerate(value.args) if isinstance(a, Use) and self.is_scored(a.value)]
        if value.op not in ("mul", "div") or len(scores) != 1 or (value.op == "div" and scores != [0]):
            return Scale(), i
        factor, rest = value.args[1 - scores[0]], value.args[scores[0]]
        assert isinstance(rest, Use)
        if not self._is_positive(factor):
            return Scale(), i
        before, inner = self.scaled(rest.value)
        number = self.constant(factor)
        over = value.op == "div"
        if number is not None:
            made = replace(before, number=before.number / number if over else before.number * number)
        else:
            assert isinstance(factor, Use)
            times, below = (() if over else (factor.value,)), ((factor.value,) if over else ())
            made = replace(before, times=(*before.times, *times), over=(*before.over, *below))
        return replace(made, statement=value.statement), inner

    def _is_positive(self, operand: Operand) -> bool:
        """Whether a factor is a positive number or follows from sizes, which are."""
        number = self.constant(operand)
        if number is not None or not isinstance(operand, Use):
            return number is not None and 0 < number < math.inf
        value = self.values[operand.value]
        if value.axes:
            return False
        if value.op == "place":
            return all(leaf.op in ("size", "number") for e in value.index for leaf in ix.leaves(e))  # type: ignore[arg-type]
        return value.op in (*_POSITIVE, "convert", "div", "mul", "pow") and all(map(self._is_positive, value.args))


class _Pruned:
    """The values that are still needed, operands before what is computed from them."""

    def __init__(self, found: _Found, outputs: Iterable[int]) -> None:
        self.old = found.values
        self.softmax = found.softmax
        self.outputs = tuple(outputs)
        self.values: list[Value] = []
        self.moved: dict[int, int] = {}

    def result(self) -> tuple[tuple[Value, ...], Softmax, tuple[int, ...]]:
        s = self.softmax
        roots = [s.query, s.key, s.scores, s.logits, *(c.value for c in s.conditions), *s.scale.times, *s.scale.over]
        for i in (*roots, s.row_max, *s.row_sums, s.value, s.product, *self.outputs):
            self._move(i)
        of = self.moved
        moved = replace(
            s, query=of[s.query], key=of[s.key], value=of[s.value], scores=of[s.scores], logits=of[s.logits],
            conditions=tuple(replace(c, value=of[c.value]) for c in s.conditions),
            scale=replace(s.scale, times=tuple(of[i] for i in s.scale.times), over=tuple(of[i] for i in s.scale.over)),
            row_max=of[s.row_max], row_sums=tuple(of[i] for i in s.row_sums), product=of[s.product],
        )  # fmt: skip
        return tuple(self.values), moved, tuple(of[i] for i in self.outputs)

    def _move(self, i: int) -> int:
        if i not in self.moved:
            value = self.old[i]
            args = tuple(Use(self._move(a.value)) if isinstance(a, Use) else a for a in value.args)

            def leaf(expr: ix.Expr) -> ix.Expr:
                return ix.value(self._move(expr.number)) if expr.op == "value" else expr

            index = tuple(ix.substitute(e, leaf) if isinstance(e, ix.Expr) else e for e in value.index)
            conditions = tuple(
                replace(c, left=ix.substitute(c.left, leaf), right=ix.substitute(c.right, leaf))
                for c in value.conditions
            )
            self.values.append(replace(value, args=args, index=index, conditions=conditions))
            self.moved[i] = len(self.values) - 1
        return self.moved[i]
