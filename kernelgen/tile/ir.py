"""Kernels as data: statements over tiles, whose dimensions are axes with names.

An expression knows its axes, so that nobody counts dimensions: a value along `m` meets one along `(m, n)`, and the
backend that prints it writes the broadcast. Names are those of the reference; a statement carries the comment that
stands above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernelgen.plan import Schedule


@dataclass(frozen=True)
class Axis:
    """A dimension of a tile."""

    name: str
    """Such as "m"."""
    index: str
    """The variable with the numbers of its elements within the tensors."""
    mask: str
    """The variable that says which of them exist."""
    block: str
    """The constexpr that says how many a tile has."""
    size: str
    """The argument that says how many there are."""


Shape = tuple[Axis, ...]
"""The axes of a tile, outermost first; `()` is a scalar of the program."""


@dataclass(frozen=True)
class ElementOf:
    """The element type of an argument that points to a tensor."""

    tensor: str


@dataclass(frozen=True)
class DtypeOf:
    """The dtype that an expression has."""

    value: Expr


Dtype = str | ElementOf | DtypeOf
"""A dtype's name, or that of a tensor's elements, or of an expression."""


@dataclass(frozen=True)
class Name:
    """A variable, an argument or a constexpr."""

    text: str
    shape: Shape = ()


@dataclass(frozen=True)
class Number:
    value: float | int | bool
    shape: Shape = ()


@dataclass(frozen=True)
class Size:
    """An expression of arguments, as a spec writes a size: `H // 2`."""

    text: str
    shape: Shape = ()


@dataclass(frozen=True)
class Part:
    """What is written out where it is used, and gets a line of its own where the whole is too long for one."""

    value: Expr
    name: str
    """What it is called then; empty: after what it is part of, and `noun`."""
    noun: str = "part"
    is_variable: bool = False
    """Whether the reference calls it so, and it is taken out first."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.value, self.name, self.noun, self.is_variable))

    def __hash__(self) -> int:  # once: a long sum is a part of a part of a part
        return self._hash

    @property
    def shape(self) -> Shape:
        return self.value.shape


@dataclass(frozen=True)
class Apply:
    """An operation, element by element; operands are broadcast to its axes."""

    op: str
    """A map operation of `frontend.graph`, or one of whole numbers: `int_div`, `int_mod`, `cdiv`, `min`."""
    args: tuple[Expr, ...]
    shape: Shape


@dataclass(frozen=True)
class Cast:
    arg: Expr
    dtype: Dtype
    is_tensor: bool = False
    """Of a scalar: whether it is surely none that the compiler knows as a number."""

    @property
    def shape(self) -> Shape:
        return self.arg.shape


@dataclass(frozen=True)
class Limit:
    """What `torch.finfo` says of a dtype."""

    helper: str
    dtype: Dtype
    shape: Shape = ()


@dataclass(frozen=True)
class Range:
    """The numbers from `start` of as many elements as a tile has along an axis."""

    axis: Axis
    start: Expr

    @property
    def shape(self) -> Shape:
        return (self.axis,)


@dataclass(frozen=True)
class Program:
    """The number of the program along a dimension of the grid."""

    dimension: int
    shape: Shape = ()


@dataclass(frozen=True)
class Programs:
    """How many programs there are along a dimension of the grid."""

    dimension: int
    shape: Shape = ()


@dataclass(frozen=True)
class Zeros:
    shape: Shape
    dtype: str = "float32"


@dataclass(frozen=True)
class Full:
    """A tile of one number."""

    value: Expr
    dtype: Dtype
    shape: Shape


@dataclass(frozen=True)
class Paired:
    """The elements of two tiles alternately, along an axis of twice as many, whose mask is that of the whole tile."""

    even: Expr
    odd: Expr
    of: Shape
    """The axes of either."""
    shape: Shape


@dataclass(frozen=True)
class Unpaired:
    """Of a tile with pairs along its last axis two tiles: the first of every pair, and the second."""

    pairs: Expr
    shape: Shape


@dataclass(frozen=True)
class Contiguous:
    """A tile of numbers, of which `size` bytes of a tensor's elements stand in their order for sure."""

    arg: Expr
    size: int
    tensor: str

    @property
    def shape(self) -> Shape:
        return self.arg.shape


@dataclass(frozen=True)
class Reduce:
    """A reduction along one axis. What is beyond its size is neutral."""

    op: str
    """`sum`, `max`, `min`, `prod`, `log_add_exp`, `argmax`, `argmin`, or `size_max`: of what is not negative."""
    arg: Expr
    axis: Axis
    keeps_nan: bool = True
    """Whether a maximum or minimum is NaN where an element is."""
    numbers: Expr | None = None
    """Of an arg reduction: the numbers of the elements."""

    @property
    def shape(self) -> Shape:
        return tuple(a for a in self.arg.shape if a != self.axis)


@dataclass(frozen=True)
class Scan:
    """What every element and those before it come to along one axis."""

    op: str
    """`cumsum`, `cumprod`, `cummax` or `cummin`."""
    arg: Expr
    axis: Axis
    dtype: str
    """Of its elements: "float", or an integer's."""
    reverse: bool = False
    """Whether it begins at the end of the axis."""
    is_turned: bool = False
    """Whether the axis is numbered from its end, where such a scan begins then."""
    in_pairs: bool = False
    """Of products of floats: whether these are two values, mantissas and exponents."""
    after: tuple[Expr, Expr] | None = None
    """Of products of floats: what came before, and the most that elements up to there multiply to. They are two values
    then, the products and the same for each element."""

    @property
    def shape(self) -> Shape:
        return self.arg.shape


@dataclass(frozen=True)
class Dot:
    """`carry + a @ b` on the matrix units, with `carry` in float32: a [rows, k], b [k, columns]. None: the product."""

    a: Expr
    b: Expr
    carry: Name | None
    precision: str | None = None
    """How float32 operands are multiplied: the constexpr that says it; None: they are no float32."""
    promoted: str | None = None
    """The constexpr that says of how many products the matrix units keep a sum before it is added in float32; None: of
    all. Without a carry: that it begins anew, which the compiler would undo where it is added to a sum."""

    @property
    def shape(self) -> Shape:
        return self.carry.shape if self.carry else (self.a.shape[0], self.b.shape[1])


@dataclass(frozen=True)
class Transposed:
    """A tile of two axes with these exchanged."""

    arg: Expr

    @property
    def shape(self) -> Shape:
        return self.arg.shape[::-1]


@dataclass(frozen=True)
class Pointer:
    """Places in a tensor: an offset of every term's index times its stride, in elements."""

    tensor: str
    terms: tuple[tuple[Expr, str | None], ...]
    """A stride of None is one."""
    shape: Shape
    base: Name | None = None
    """What is counted from, if not from where the tensor begins."""


@dataclass(frozen=True)
class Split:
    """The elements of a tile along its last axis, one by one: as many values as that has elements."""

    arg: Expr

    @property
    def shape(self) -> Shape:
        return self.arg.shape[:-1]


@dataclass(frozen=True)
class Join:
    """Values side by side, along a last axis of as many elements."""

    parts: tuple[Expr, ...]
    shape: Shape


@dataclass(frozen=True)
class Tuple:
    """Values that the compiler keeps apart, in their order."""

    items: tuple[Expr, ...]
    shape: Shape = ()


@dataclass(frozen=True)
class Item:
    """An element of a tuple, or the values that this is made of."""

    name: Name
    number: Expr
    shape: Shape = ()


@dataclass(frozen=True)
class Load:
    """Elements in memory, and something else where the mask is not."""

    pointer: Pointer
    mask: Expr | None
    other: float | int | bool | None = 0.0
    """None: nobody looks at it there."""
    policy: str = ""
    """What the caches are told: `evict_first`, `evict_last` or nothing."""
    within: tuple[Expr, ...] = ()
    """What has to hold beside the mask, which says what of a tile exists, for an element to be read."""
    fill: Expr | float | int | bool | None = None
    """What stands where that does not hold; None: nobody looks at it there."""
    steps: bool = False
    """Whether the columns that it reads are some apart."""

    @property
    def shape(self) -> Shape:
        return self.pointer.shape


@dataclass(frozen=True)
class Box:
    """A tile that a descriptor copies as a whole, zero beyond the tensor's edges."""

    tensor: str
    offsets: tuple[Expr, ...]
    """One for every dimension of the descriptor; those before the last two are of one element."""
    shape: Shape
    """In the order of memory."""


@dataclass(frozen=True)
class Call:
    """A device function of the generated file."""

    helper: str
    args: tuple[Expr, ...]
    shape: Shape = ()


Expr = (
    Name | Number | Size | Part | Apply | Cast | Range | Program | Programs | Zeros | Full | Paired | Unpaired
    | Contiguous | Reduce | Scan | Dot | Transposed | Pointer | Split | Join | Tuple | Item | Load | Box | Call | Limit
)  # fmt: skip


@dataclass(frozen=True)
class Let:
    """`names = value`; several names where a call returns several."""

    names: tuple[str, ...]
    value: Expr
    comment: str = ""
    aside: str = ""
    """A remark, behind the line where there is room."""


@dataclass(frozen=True)
class Update:
    """`name op= value`."""

    name: str
    op: str
    value: Expr
    comment: str = ""
    aside: str = ""
    """A remark, behind the line where there is room."""


@dataclass(frozen=True)
class Store:
    pointer: Pointer
    value: Expr
    mask: Expr | None
    streams: bool = False
    """Whether it goes past the caches."""


@dataclass(frozen=True)
class StoreBox:
    box: Box
    value: Expr


@dataclass(frozen=True)
class Do:
    """A call of a device function that returns nothing."""

    call: Call


@dataclass(frozen=True)
class For:
    """`for index in range(start, stop, step)`."""

    index: str
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Stmt, ...]
    stages: str = ""
    """The constexpr that says how many turns are loaded ahead."""
    flatten: bool = False
    """Whether the loop within it is made one with it, so that loads of the next turn are asked for before this ends."""
    comment: str = ""
    unroll: bool = False
    """Whether its turns are written out one after the other."""


@dataclass(frozen=True)
class While:
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Barrier:
    """The threads of a program wait until all have done what stands before."""

    aside: str = ""


@dataclass(frozen=True)
class If:
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class When:
    """Statements of some ways of calling alone: `if`, `elif` and `else` on constexprs."""

    choices: tuple[tuple[str, tuple[Stmt, ...]], ...]
    """Each with its condition; that of the last may be empty."""


@dataclass(frozen=True)
class Scatter:
    """All that a kernel of a scatter does, which a backend has written by hand, and what that is told."""

    text: str
    """Which of its kernels."""
    out: str
    index: str
    source: str
    """What is added; of counts nothing."""
    base: str
    """What is added to, where the kernel reads it; empty: zeros."""
    size: str
    """What indices stay below: a number, or the kernel's argument for it."""
    dtype: str
    """Of the sums."""
    narrow: frozenset[str]
    """The tensors of which a float32 is made where they are read."""
    said: str
    """The statement of the reference."""
    slots: int = 0
    """Of counts that are kept in registers: a power of two."""
    from_end: bool = False
    """Whether negative numbers of the index count from the end."""
    is_long: bool = False
    """Whether the index is of int64."""
    along_last: bool = False
    """Whether the last dimension scatters."""
    has_rows: bool = False
    starts_itself: bool = False
    """Whether programs give the result what is added to."""
    atomic: str = "add"
    """add or max: what an atomic makes of what is there and what comes."""
    counts: bool = False
    """Whether one is added for every place; else, of nothing that is read, one more than where it stands."""
    names: tuple[tuple[str, str], ...] = ()
    """Words that are called otherwise in the kernel, where a tensor has the name of a value of its own."""

    @property
    def is_float(self) -> bool:
        return self.dtype == "float32"


@dataclass(frozen=True)
class Remark:
    """Comments that head what follows."""

    lines: tuple[str, ...]
    apart: bool = True
    """Whether a blank line comes before it, unless it stands first or behind another."""


Stmt = Remark | Let | Update | Store | StoreBox | Do | For | While | If | When | Barrier | Scatter


@dataclass(frozen=True)
class Argument:
    """What the host passes: a `pointer`, a `descriptor` of tiles, or a `number`."""

    name: str
    """As the kernel calls it."""
    kind: str
    host: str
    """The wrapper's expression."""
    block: tuple[str, ...] = ()
    """Of a descriptor: the extents of its tiles, numbers and constexprs."""


@dataclass(frozen=True)
class Scratch:
    """Memory that one kernel leaves for the next."""

    name: str
    shape: str
    """The wrapper's expression."""
    dtype: str = "float32"
    """Of torch's; or the wrapper's expression for it, such as `x.dtype`."""
    zeros: bool = False
    """Whether it is zero when the kernel begins."""


Given = tuple[str, str | None]
"""What a launch is told by a name, with the wrapper's expression for it; None: the table's line says it."""


@dataclass(frozen=True)
class Kernel:
    """One kernel and its launch."""

    name: str
    schedule: Schedule
    arguments: tuple[Argument, ...]
    constexprs: tuple[Given, ...]
    body: tuple[Stmt, ...]
    grid: tuple[str, ...]
    """The wrapper's expressions, one a dimension."""
    scratch: tuple[Scratch, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    """Tensors in another form that the launch needs, with the wrapper's expressions for them."""
    counts: tuple[tuple[str, str], ...] = ()
    """Numbers that the launch needs, with the wrapper's expressions for them."""
    options: tuple[Given, ...] = ()
    """What its launch is told beside the constexprs, such as `num_warps`, where that is not what the table's line says
    of the first kernel."""
    named_sizes: tuple[tuple[str, str], ...] = ()
    """The size names that it mentions and others need not, each with its argument."""
    when_unfit: bool = False
    """Whether it is launched instead of the one before it, where tensors do not fit that one's descriptors."""
    unaligned: tuple[str, ...] = ()
    """Pointers of which is not asked whether 16 divides them: a thread that took several columns would leave gaps
    between what its neighbours read."""
    fits: str = ""
    """The wrapper's condition for launching it, without which the next is launched instead; empty: none, or that
    descriptors copy what they are made of."""


@dataclass(frozen=True)
class LibraryCall:
    """A function of torch's that does the work of a kernel."""

    name: str
    """As the wrapper calls it, such as `torch.matmul`."""
    statement: str
    """The wrapper's expression, without what it is written to."""
    result: str = ""
    """What the result is called, where it is not written to an output."""
    out: str = ""
    """The output that it is written to."""
    way: str = ""
    """The option of a table's line that asks for this call, where another line has the function called otherwise."""
    when_unfit: bool = False


Step = Kernel | LibraryCall
NO_SCHEDULE = Schedule("", ())
