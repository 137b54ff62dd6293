"""What a spec says, as frozen data. Built only by `kernelgen.spec.load_spec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelgen.spec.sizes import evaluate, is_expression

Size = int | str
"""One entry of a declared shape: a number, the name of a size, "..." (any number of leading dimensions), or an
expression of names."""

SizeValue = int | tuple[int, ...]
"""What a case binds a size name to; a tuple for "..."."""

ELLIPSIS = "..."

STRATEGIES = ("grid_config", "block_size", "warp_stage", "memory_access", "data_reuse", "dynamic_shape")

WRITING = ("llm",)
"""Strategies that write whole kernels."""

ON_REQUEST = (*WRITING, "tune")
"""Strategies that a spec or a command must name: they need something that not everybody has, or more time."""

FAMILIES = (
    "pointwise",
    "reduction",
    "scan",
    "selection",
    "scatter",
    "convolution",
    "matmul",
    "attention",
    "attention_backward",
)
"""What `type:` may name; whether the reference really lowers to it is the frontend's to say."""

CUSTOM = "custom"
"""What `family:` may name: no family writes the kernel, a language model does."""

PRECISIONS = ("ieee", "tf32x3", "tf32")
"""How products of float32 are made: of all bits; as three products on tensor cores, with errors no larger in sums of 64
terms or more; as one, of operands of 10 bits behind the first."""
SCALAR = "scalar"
"""The role of an input that is a number of Python's, which each call may give another value."""
OPTION = "option"
"""The role of an input that is one of few values of Python's, each of which has kernels of its own."""

Value = float | int | bool | str
"""What an input that is no tensor may be."""
Given = tuple[tuple[str, Value | None], ...]
"""Options with their values, and optional inputs that a call leaves out, with None."""
ROLES = ("data", "like", "parameter", "constant", "scale")

DTYPES = (
    *("float16", "bfloat16", "float32", "float8_e4m3fn"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)


@dataclass(frozen=True)
class Place:
    """Where in the spec file something stands; `line` and `column` count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class TensorSpec:
    """A declared input or output."""

    name: str
    shape: tuple[Size, ...]
    """Sizes from the outermost dimension to the innermost; `()` is a zero-dimensional tensor."""
    dtype: str
    """A name of DTYPES or a variable declared under `dtypes`."""
    role: Literal["data", "like", "parameter", "constant", "scale", "scalar", "option"] = "data"
    """`like`: only shape, dtype and device are read, never the elements. `parameter`: a module's weight or buffer.
    `constant`: data that has no gradient. `scale`: finite numbers, of which a sum may be a multiple instead of each of
    its summands."""
    place: Place = Place(1, 1)
    below: Size | None = None
    """What the elements of an index tensor stay below: a number or a size. They begin at 0."""
    offsets: Size | None = None
    """Where the elements end, which begin at 0 and never fall: a number or a size."""
    is_ends: bool = False
    """Whether these are the ends alone, without the 0 that the first part begins at."""
    checked: bool = False
    """Whether the wrapper looks if the elements are so."""
    optional: bool = False
    """Whether a call may leave the tensor out: None is then its default."""
    kind: str = "float"
    """Of a number or an option: the type of Python's that it is."""
    default: Value | None = None
    """Of a number or an option: its value where a call gives none."""
    values: tuple[Value, ...] = ()
    """Of an option: what it may be."""
    into: str | None = None
    """Of an output: the input that it is written into, in its memory; None: it has memory of its own."""

    def dim(self, entry: int) -> int:
        """The dimension that an entry of the shape stands for: behind "..." it is counted from the end."""
        behind = ELLIPSIS in self.shape[:entry]
        return entry - len(self.shape) if behind else entry

    def span(self, first: int, last: int) -> str:
        """The slice of the dimensions that some entries of the shape stand for, `1:-1`, `:-2` or `2:`."""
        rank = len(self.shape)
        if last + 1 == rank:
            return f"{self.dim(first) if ELLIPSIS in self.shape[first:] else first - rank}:"
        stop = last + 1 - rank if ELLIPSIS in self.shape[: last + 1] else last + 1
        return f"{self.dim(first) or ''}:{stop}"


@dataclass(frozen=True)
class Constraint:
    """A condition on the inputs, a Python expression such as `x.shape[-1] == bias.numel()`."""

    text: str
    place: Place = Place(1, 1)


@dataclass(frozen=True)
class Side:
    """The side of a branch on sizes that an operator is for."""

    line: int
    """Where its test stands within the reference, from 1; `column` from 0."""
    column: int
    taken: bool
    """What the test comes to."""
    constraint: str = ""
    """The constraint that this side is; empty where all sizes that the spec admits take it."""


@dataclass(frozen=True)
class Fork:
    """A condition on sizes of which an operator is for both sides, each with kernels of its own."""

    text: str
    """As a constraint says it."""
    places: tuple[tuple[int, int], ...] = ()
    """The lines and columns of the tests that ask it, as those of a Side; none where the trace alone does."""


@dataclass(frozen=True)
class TensorFacts:
    """What is known of tensors beside what is declared of them."""

    contiguous: frozenset[str] = frozenset()
    """Those that lie in memory in the order of their dimensions, without gaps."""
    channels_last: frozenset[str] = frozenset()
    """Those that lie with their channels side by side, as the convolution after them reads them."""
    laid_as: str = ""
    """The input that a convolution's result lies in memory as, where that is not what it convolves."""
    turned: str = ""
    """The output whose channels are its last dimension, and the second for all who read it."""


@dataclass(frozen=True)
class Case:
    """One binding of every size name and every dtype variable: what is tested or timed."""

    sizes: tuple[tuple[str, SizeValue], ...]
    dtypes: tuple[tuple[str, str], ...]
    label: str = ""
    derived: bool = False
    """Made up where the spec lists no shapes: what torch refuses of it is no mistake of anybody's."""
    given: Given = ()
    """What the case passes for options, and None for optional inputs that it leaves out."""
    place: Place = field(default=Place(1, 1), compare=False)
    """Where the spec lists its sizes."""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`; of a case that the judge derived, what a spec's cases have."""
        sizes = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in data["sizes"].items())
        rest = {"derived": data.get("derived", False), "given": tuple(data.get("given", {}).items())}
        return Case(sizes, tuple(data["dtypes"].items()), data["label"], **rest)

    def size(self, name: Size) -> SizeValue:
        """The value of a size: a number stands for itself, an expression for what it comes to."""
        if isinstance(name, int):
            return name
        sizes = dict(self.sizes)
        return int(evaluate(name, sizes)) if is_expression(name) else sizes[name]

    def dtype(self, name: str) -> str:
        """The dtype behind a declared dtype: a variable's binding, or the name itself."""
        return dict(self.dtypes).get(name, name)

    def shape(self, declared: tuple[Size, ...]) -> tuple[int, ...]:
        """The concrete shape of a tensor declared with `declared`."""
        sizes: list[int] = []
        for entry in declared:
            value = self.size(entry)
            sizes.extend(value if isinstance(value, tuple) else (value,))
        return tuple(sizes)

    def argument(self, tensor: TensorSpec) -> tuple[object, str]:
        """An input as processes that compile are told of it: its shape and its dtype, or itself and "value"."""
        given = dict(self.given)
        if tensor.name in given or tensor.role in (SCALAR, OPTION):
            return given.get(tensor.name, tensor.default), "value"
        return self.shape(tensor.shape), self.dtype(tensor.dtype)

    def to_json(self) -> dict[str, object]:
        return {
            "sizes": {k: list(v) if isinstance(v, tuple) else v for k, v in self.sizes},
            "dtypes": dict(self.dtypes),
            "label": self.label,
            **({"derived": True} if self.derived else {}),
            **({"given": dict(self.given)} if self.given else {}),
        }


@dataclass(frozen=True)
class Target:
    """What `optimize` aims at. `speedup` is over eager (x); the others are fractions of the peak, None: not asked."""

    speedup: float = 1.0
    bandwidth: float | None = None
    l2_hit: float | None = None


@dataclass(frozen=True)
class OperatorSpec:
    """An operator as its author declared it."""

    name: str
    summary: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dtypes: tuple[tuple[str, tuple[str, ...]], ...]
    """Each dtype variable with the dtypes it ranges over, in the spec's order."""
    constraints: tuple[Constraint, ...]
    reference: str
    """The source of the PyTorch function that defines the operator; its def is named `name`."""
    reference_place: Place
    """Where the first line of `reference` stands in the file (column of the text, line of its first line)."""
    accuracy: tuple[Case, ...]
    """Every shape times every dtype binding."""
    performance: tuple[Case, ...]
    optimization_strategies: tuple[str, ...] = STRATEGIES
    type: str | None = None
    """The family the author expects; checked against what the reference lowers to."""
    type_place: Place = Place(1, 1)
    target: Target = Target()
    max_rounds: int = 5
    folder: str = ""
    """Where the quartet goes below `operators/`; the operator's name when the spec does not say."""
    module: str = ""
    """The module the operator was imported from, its forward calling the operator; empty where it was not."""
    family: str | None = None
    """CUSTOM where a language model writes the kernel; None: whatever family takes the reference."""
    backward: bool = False
    """Whether kernels for its gradients are generated as well."""
    deterministic: bool = True
    """Whether the same inputs have to give the same bits; if not, floats may be added by atomics."""
    precision: str | None = None
    """One of PRECISIONS: how kernels multiply float32; None: as torch is set."""
    precision_place: Place = Place(1, 1)
    sides: tuple[Side, ...] = ()
    """The branches on sizes that are settled; their constraints stand among `constraints`."""
    fork: Fork | None = None
    """The branch on sizes of which the listed shapes take both sides."""
    facts: TensorFacts = TensorFacts()
    """What kernelgen has seen to itself; `constraints.facts_of` adds what the constraints promise."""
    path: str = "<spec>"
    """The file as the user named it."""
    sha256: str = ""
    """Hash of the file's text."""

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The inputs that are tensors."""
        return tuple(tensor for tensor in self.inputs if tensor.role not in (SCALAR, OPTION))

    @property
    def written(self) -> dict[str, str]:
        """The inputs that are changed, each with the output that is written into it."""
        return {output.into: output.name for output in self.outputs if output.into is not None}

    def dtype_bindings(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Every combination of the dtype variables' values, in declaration order."""
        combos: list[tuple[tuple[str, str], ...]] = [()]
        for name, values in self.dtypes:
            combos = [(*combo, (name, value)) for combo in combos for value in values]
        return tuple(combos)


@dataclass(frozen=True)
class Sketch:
    """What a list says of a spec without looking at all of it."""

    name: str
    folder: str
    family: str
    summary: str
    sha256: str
    """The first 16 hex digits, as in a manifest."""
