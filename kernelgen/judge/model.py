"""What is judged and what came of it, as frozen data: operators, cases, reports and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, Literal

import torch

ELLIPSIS = "..."

Layout = Literal["contiguous", "transposed", "sliced", "offset", "expanded"]
Verdict = Literal["faster", "slower", "undecided"]
Value = float | int | bool | str
"""What an input that is no tensor may be."""
Function = Callable[..., Any]
"""A wrapper, baseline or reference: tensors in, a tensor or a tuple of tensors out."""


@dataclass(frozen=True)
class Tensor:
    """A declared input or output."""

    name: str
    shape: tuple[int | str, ...]
    """Numbers, names of sizes, "..." for any number of dimensions, or expressions such as "2 * D"."""
    dtype: str
    """A dtype such as "float16", or a variable that the case binds."""
    like: bool = False
    """Only shape, dtype and device are read, never the elements."""
    rows: int | None = None
    """The entry of `shape` along which results are independent ("..." counts as one entry and covers all of its
    dimensions); None: the tensor is needed whole."""
    below: int | str | None = None
    """What its elements, which are indices from 0, stay below: a number or a size."""
    offsets: int | str | None = None
    """Where its elements end, which begin at 0 and never fall: a number or a size."""
    is_ends: bool = False
    """Whether these are the ends alone, without the 0 that the first part begins at."""
    uniform: bool = False
    """All elements of an output are the same, whatever the inputs."""
    finite: bool = False
    """No element of an input is NaN or infinite."""
    number: float | None = None
    """Of an input that is a number of Python's: its default. The judge holds it as a tensor of the host."""
    into: str | None = None
    """Of an output: the input that it is written into, and is returned."""
    kept: bool = False
    """Of such an output: only elements that change are written, and none of the input is read."""


@dataclass(frozen=True)
class Case:
    """One binding of every size name and dtype variable."""

    sizes: Mapping[str, int | tuple[int, ...]]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    """How the case is named in every output; made from the bindings where none is given."""
    layout: Layout = "contiguous"
    """How the inputs lie in memory."""
    hidden: bool = False
    """Derived by the judge, not listed in the spec."""
    derived: bool = False
    """Made up by kernelgen where the spec lists no shapes."""
    given: Mapping[str, Value | None] = field(default_factory=dict)
    """What is passed for options, and None for optional inputs that are left out."""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self._describe())

    def _describe(self) -> str:
        parts = [str(list(v)) if isinstance(v, tuple) else f"{k}={v}" for k, v in self.sizes.items()]
        parts += self.dtypes.values()
        parts += [f"without {name}" if value is None else f"{name}={value}" for name, value in self.given.items()]
        return " ".join([*parts, *([self.layout] if self.layout != "contiguous" else [])])

    def __str__(self) -> str:
        return self.label

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`; reads the form that `kernelgen.spec.model.Case.to_json` writes."""
        sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in data["sizes"].items()}
        rest = {k: data[k] for k in ("layout", "hidden", "derived", "given") if k in data}
        return Case(sizes, dict(data["dtypes"]), data.get("label", ""), **rest)

    def to_json(self) -> dict[str, Any]:
        sizes = {k: list(v) if isinstance(v, tuple) else v for k, v in self.sizes.items()}
        data: dict[str, Any] = {"sizes": sizes, "dtypes": dict(self.dtypes), "label": self.label}
        if self.hidden:
            data |= {"layout": self.layout, "hidden": True}
        data |= {"given": dict(self.given)} if self.given else {}
        return data | ({"derived": True} if self.derived else {})

    def dims(self, entry: int | str) -> tuple[int, ...]:
        """The concrete sizes behind one entry of a declared shape."""
        if isinstance(entry, str) and entry not in self.sizes:
            return (int(eval(entry, {"__builtins__": {}}, dict(self.sizes))),)
        value = entry if isinstance(entry, int) else self.sizes[entry]
        return value if isinstance(value, tuple) else (value,)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(size for entry in tensor.shape for size in self.dims(entry))

    def dtype(self, tensor: Tensor) -> torch.dtype:
        found = getattr(torch, self.dtypes.get(tensor.dtype, tensor.dtype), None)
        if not isinstance(found, torch.dtype):
            raise KeyError(f"{tensor.name}: {tensor.dtype!r} is neither a dtype nor bound by case {self.label}")
        return found

    def row_dims(self, tensor: Tensor) -> range:
        """The concrete dimensions along which `tensor` may be cut into tiles; empty: not at all."""
        if tensor.rows is None:
            return range(0)
        before = sum(len(self.dims(entry)) for entry in tensor.shape[: tensor.rows])
        return range(before, before + len(self.dims(tensor.shape[tensor.rows])))


@dataclass(frozen=True)
class Operator:
    """Everything the judge needs to know of a kernel."""

    name: str
    kernel: Function
    """The wrapper under judgement."""
    baseline: Function
    """The reference behind the same input checks as the kernel's; raises ValueError on bad inputs."""
    reference: Function
    """The spec's function itself: the only definition of what is right."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    exact: bool = False
    """The results must be bit-identical with the baseline's: data is moved, not computed."""
    tolerance_factor: float = 1.0
    """Multiplies the error bound; for operators whose author accepts more error than PyTorch makes."""
    large: float = 2.0**14
    """The spread of floats that are to be large, in float16 2**10 at most."""
    terms: tuple[str, ...] = ()
    """Inputs as large as the terms that results are differences of, as a gradient's are the incoming gradients: noise
    is measured by the largest element of these where no result is larger."""
    stored: str = ""
    """The dtype, or its variable, of what lies in memory around calls of torch's; "" where there are none."""
    multiplied: str = ""
    """The dtype, or its variable, to which the kernel rounds what it multiplies in sums of products of its own; ""
    where it has none. float32 is multiplied at `torch.backends.cuda.matmul.fp32_precision`, on every device."""
    as_tf32: bool = False
    """The kernel multiplies float32 as TF32, whatever torch is set to, or float8, whose sums are off by no more."""
    also: Function | None = None
    """Another right way to the results, called as the reference is but for what comes first: a function that rounds a
    tensor to the dtype `stored`, as it lies in memory between two kernels."""
    repeatable: bool = True
    """Two calls on the same inputs must agree in every bit."""
    any_order: bool = False
    """Results are sums of elements of the inputs in whatever order, as atomics make them: two calls may differ, each by
    as much as the worst order costs."""
    limits: tuple[tuple[int | str, int], ...] = ()
    """Sizes, as shapes have them, of which the kernel takes no more than so many: its wrapper refuses more."""
    rounded: tuple[tuple[int | str, int], ...] = ()
    """Sizes, as shapes have them, along which torch counts places in float32 on a GPU, and how many of them are right:
    a hidden case of more is left out."""
    fixed: tuple[tuple[str, Value], ...] = ()
    """Parameters of its functions that every case gives the same value."""
    given: tuple[tuple[str, Value | None], ...] = ()
    """What its functions are called with beside the inputs, by keyword; `at` sets it."""

    def __post_init__(self) -> None:
        if self.numbers:
            for name in ("kernel", "baseline", "reference"):
                object.__setattr__(self, name, given_numbers(getattr(self, name), self.numbers))

    @property
    def numbers(self) -> frozenset[int]:
        """The inputs that are numbers."""
        return frozenset(i for i, t in enumerate(self.inputs) if t.number is not None)

    @property
    def written(self) -> dict[int, int]:
        """The outputs that are written into inputs, by number, each with that input's."""
        places = {t.name: i for i, t in enumerate(self.inputs)}
        return {i: places[t.into] for i, t in enumerate(self.outputs) if t.into is not None}

    @property
    def pure(self) -> Function:
        """The reference on copies of what it may write into."""
        return self.on_copies(self.reference)

    def on_copies(self, function: Function) -> Function:
        """A function on copies of what it may write into."""
        return _on_copies(function, frozenset(self.written.values())) if self.written else function

    def taking(self, function: Function) -> Function:
        """A wrapper that is given tensors of the host for the numbers that it takes, and nothing for what is given."""
        if self.given:
            function = _with_given(function, tuple(t.name for t in self.inputs), self.given)
        return given_numbers(function, self.numbers)

    def at(self, case: Case) -> Operator:
        """The operator that a case is about: its inputs are the tensors and numbers that the case passes."""
        given = (*self.fixed, *case.given.items())
        if not given or self.given:
            return self
        inputs = tuple(t for t in self.inputs if t.name not in case.given)
        one = replace(self, inputs=inputs, given=given)
        kernel, baseline, reference = (one.taking(f) for f in (one.kernel, one.baseline, one.reference))
        return replace(one, kernel=kernel, baseline=baseline, reference=reference)


@cache
def _with_given(function: Function, names: tuple[str, ...], given: tuple[tuple[str, Value | None], ...]) -> Function:
    @wraps(function)
    def called(*arguments: Any) -> Any:
        return function(**dict(zip(names, arguments, strict=True)), **dict(given))

    return called


@cache
def given_numbers(function: Function, numbers: frozenset[int]) -> Function:
    """A function that takes numbers, as one that may be given tensors of the host for them."""
    if not numbers:
        return function

    @wraps(function)
    def called(*arguments: torch.Tensor, **named: Any) -> Any:
        taken = (i in numbers and isinstance(x, torch.Tensor) for i, x in enumerate(arguments))
        plain = (x.item() if is_number else x for x, is_number in zip(arguments, taken, strict=True))
        return function(*plain, **named)

    return called


@cache
def _on_copies(function: Function, written: frozenset[int]) -> Function:
    def called(*arguments: torch.Tensor) -> Any:
        return function(*(x.clone() if i in written else x for i, x in enumerate(arguments)))

    return called


@dataclass(frozen=True)
class Worst:
    """The element that is furthest outside (or nearest to) its bound."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    eager: float


@dataclass(frozen=True)
class Trial:
    """One call on one set of inputs."""

    distribution: str
    seed: int
    passed: bool
    message: str = ""
    max_error: float = 0.0
    """Largest absolute error against the fp64 reference, over the elements that are finite in both."""
    eager_error: float = 0.0
    """The same for PyTorch's own result."""
    bound_share: float = 0.0
    """Largest error over the bound of its element: at most 1 in a pass."""
    relative_error: float = 0.0
    """Largest error over its element of the reference, where that is not 0."""
    l2_error: float = 0.0
    """Norm of the errors over the norm of the reference, of the output where that is largest."""
    peak_bytes: int | None = None
    """Device memory that the call took beside its inputs at its peak; None where that is not known."""
    worst: Worst | None = None
    poison_reached: bool = True
    """The output lay where the poison was put, so elements left unwritten would have shown."""
    fatal: bool = False
    """The device is unusable for this process afterwards."""
    selects: bool = False
    """The reference selects, compares or counts, which equal elements may decide."""
    remark: str = ""
    """What is to be said of a pass."""


@dataclass(frozen=True)
class CaseReport:
    """What accuracy_case found."""

    case: Case
    passed: bool
    message: str = ""
    """Why it failed, or what is to be said of a pass (refused by both, for one)."""
    max_error: float = 0.0
    eager_error: float = 0.0
    bound_share: float = 0.0
    relative_error: float = 0.0
    l2_error: float = 0.0
    peak_bytes: int | None = None
    trials: tuple[Trial, ...] = ()
    left_out: str = ""
    """Why the case was not run, with figures; "" when it was."""
    run_as: str = ""
    """The smaller sizes that the case was run with; "" for its own."""
    fatal: bool = False
    """The device is unusable after this case; nothing more can be run in this process."""
    refused: bool = False
    """The reference itself does not take the case, which the spec lists: nothing is said of the kernel."""
    seed: int = 0
    """Repeats this report when passed to accuracy_case."""
    seconds: float = 0.0
    told: Mapping[str, str] = field(default_factory=dict)
    """Mutants that this case rejects, each with the inputs that told it."""
    undiscriminated: tuple[str, ...] = ()
    """Mutants that would pass this case."""


@dataclass(frozen=True)
class Comparison:
    """Two functions timed against each other. All times in microseconds of device time unless named otherwise."""

    speedup: float
    """a's time over b's: above 1, b is the faster one."""
    low: float
    high: float
    """The 95 % confidence interval of the speedup."""
    verdict: Verdict
    a_us: float
    """Median of a's samples."""
    b_us: float
    blocks: int
    std_error: float
    """Of the mean log ratio over blocks."""
    launches: int = 1
    """Launches per sample (K of the CUDA graph)."""
    swapped_sets: bool = True
    """False: two buffer sets did not fit, both sides ran on one."""
    graphed: bool = True
    """False: a function could not be captured in a CUDA graph; its launches were timed one by one."""
    a_call_us: float | None = None
    """Wall time a call in a back-to-back loop, launch overhead included."""
    b_call_us: float | None = None
    throttled: int = 0
    """Blocks thrown away because the device had lowered its clocks."""
    samples: tuple[tuple[tuple[float, float], ...], ...] = ()
    """Every (a, b) sample, a tuple per arrangement, two arrangements per block."""
    seconds: float = 0.0


@dataclass(frozen=True)
class PerformanceReport:
    """What performance_case found."""

    case: Case
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """By opponent: eager, compile, max-autotune."""
    floor_us: float | None = None
    """The least time that the bytes to be moved need at the bandwidths measured on this device."""
    bytes: int = 0
    message: str = ""
    """Why the case failed; "" when it did not."""
    left_out: str = ""
    notes: tuple[str, ...] = ()

    @property
    def kernel_us(self) -> float | None:
        """The kernel's device time: from the first comparison."""
        return next((c.b_us for c in self.comparisons.values()), None)
