"""Kernels as data: what statements read, which of them are needed, and how they are printed."""

from __future__ import annotations

import ast

import pytest
import torch
from references import DEVICE, load

from kernelgen.backends import ascend, triton
from kernelgen.backends.triton import Printer
from kernelgen.families.line import LINE
from kernelgen.plan import Schedule
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed, used_names

M = ir.Axis("m", "rows", "row_mask", "BLOCK_M", "M")
N = ir.Axis("n", "cols", "col_mask", "BLOCK_N", "N")
K = ir.Axis("k", "ks", "k_mask", "BLOCK_K", "K")
ROWS, COLS = ir.Name("rows", (M,)), ir.Name("cols", (N,))
TILE, ROW, COL, ONE = ir.Name("tile", (M, N)), ir.Name("row", (M,)), ir.Name("col", (N,)), ir.Name("one")
TWO, FOUR = ir.Axis("n", "pair", "", "2", ""), ir.Axis("n", "quad", "", "4", "")
OUT = ir.Pointer("out", ((ROWS, "N"), (COLS, None)), (M, N))
SCHEDULE = Schedule.make("plain", BLOCK_M=4)


def kernel(*body: ir.Stmt, arguments: tuple[ir.Argument, ...] = ()) -> ir.Kernel:
    return ir.Kernel("some_kernel", SCHEDULE, arguments, (("BLOCK_M", None), ("BLOCK_N", "8")), body, ("M",))


def let(name: str, *read: ir.Name, comment: str = "") -> ir.Let:
    value: ir.Expr = ir.Number(1)
    for one in read:
        value = ir.Apply("add", (value, one), one.shape)
    return ir.Let((name,), value, comment)


def printed(expr: ir.Expr) -> str:
    return Printer(kernel(), {}).text(expr).text


def apply(op: str, *args: ir.Expr) -> ir.Apply:
    axes = {axis.name: axis for arg in args for axis in arg.shape}
    return ir.Apply(op, args, tuple(axis for axis in (M, N, K) if axis.name in axes))


# What is read


def names_assigned(statements: tuple[ir.Stmt, ...]) -> list[str]:
    found: list[str] = []
    for statement in statements:
        found += statement.names if isinstance(statement, ir.Let) else []
        found += names_assigned(statement.body) if isinstance(statement, ir.For) else []
    return found


def test_what_nothing_reads_is_left_out_with_what_it_alone_read() -> None:
    statements = (let("a"), let("b", ir.Name("a")), let("c"), let("d", ir.Name("c")), ir.Store(OUT, ir.Name("d"), None))
    assert names_assigned(trimmed(statements)) == ["c", "d"]
    assert names_assigned(trimmed(statements, frozenset({"b"}))) == ["a", "b", "c", "d"]


def test_of_several_names_one_is_enough() -> None:
    both = ir.Let(("tile_m", "tile_n"), ir.Call("tile_of", (ONE,)))
    assert trimmed((both, let("x", ir.Name("tile_n"))), frozenset({"x"}))[0] == both
    assert trimmed((both, let("x", ONE)), frozenset({"x"})) == (let("x", ONE),)


def test_a_name_assigned_again_is_read_where_it_was_read_before() -> None:
    again = (let("a"), let("a", ir.Name("a")), ir.Store(OUT, ir.Name("a"), None))
    assert trimmed(again) == again


def test_what_a_turn_of_a_loop_leaves_the_next_is_kept() -> None:
    body = (let("unread"), let("old", ir.Name("sum")), let("sum", ir.Name("old")), let("last", ir.Name("sum")))
    loop = ir.For("start", ir.Number(0), ir.Name("K"), ir.Name("BLOCK_K"), body)
    statements = (let("sum"), let("before"), loop, ir.Store(OUT, ir.Name("sum"), None))
    assert names_assigned(trimmed(statements)) == ["sum", "old", "sum"]
    assert names_assigned(trimmed((*statements, ir.Store(OUT, ir.Name("last"), None)))) == ["sum", "old", "sum", "last"]
    ahead = (let("now", ir.Name("next")), let("sum", ir.Name("sum"), ir.Name("now")), let("next", ir.Name("now")))
    fetched = (let("next"), let("sum"), ir.For("i", ONE, ONE, ONE, ahead), ir.Store(OUT, ir.Name("sum"), None))
    assert trimmed(fetched) == fetched


def test_what_a_loop_within_a_loop_makes_and_nobody_reads_goes() -> None:
    inner = ir.For("k", ONE, ONE, ONE, (let("ks", ONE), let("k_mask", ir.Name("ks")), let("sum", ir.Name("sum"))))
    outer = ir.For("tile", ONE, ONE, ONE, (let("sum"), inner, ir.Store(OUT, ir.Name("sum"), None)))
    assert names_assigned(trimmed((outer,))) == ["sum", "sum"]


def test_what_statements_read_has_its_name() -> None:
    """Arguments and constexprs too, those that a stride's text or a tile's extent mentions."""
    load_of = ir.Load(ir.Pointer("x", ((ROWS, "stride_x"), (COLS, "2 * H")), (M, N)), ir.Name("row_mask", (M,)))
    dot = ir.Dot(ir.Name("a", (M, K)), ir.Name("b", (K, N)), ir.Name("sums", (M, N)), "PRECISION")
    cases: dict[ir.Expr, set[str]] = {
        load_of: {"x_ptr", "rows", "stride_x", "cols", "H", "row_mask"},
        dot: {"a", "b", "sums", "PRECISION"},
        ir.Box("x_desc", (ir.Name("first_row"), ir.Number(0)), (M, N)): {"x_desc", "first_row"},
        ir.Cast(ONE, ir.ElementOf("out")): {"one", "out:type"},
        ir.Range(M, ir.Name("first_row")): {"first_row", "BLOCK_M"},
        ir.Call("tile_of", (ONE, ir.Name("M"))): {"one", "M"},
    }
    for expr, wanted in cases.items():
        assert wanted <= used_names((ir.Let(("y",), expr),)) <= wanted | {"BLOCK_M", "BLOCK_N", "BLOCK_K"}


# What is printed


EXPRESSIONS: dict[str, ir.Expr] = {
    "tile + row[:, None]": apply("add", TILE, ROW),
    "tile + col[None, :]": apply("add", TILE, COL),
    "row[:, None] * col[None, :]": apply("mul", ROW, COL),
    "tile * one": apply("mul", TILE, ONE),
    "row + one": apply("add", ROW, ONE),
    "row + 2.0": apply("add", ROW, ir.Number(2.0)),
    "(row + one)[:, None] * tile": apply("mul", apply("add", ROW, ONE), TILE),
    "(tile - row[:, None]) / col[None, :]": apply("div", apply("sub", TILE, ROW), COL),
    "tile - (row - one)[:, None]": apply("sub", TILE, apply("sub", ROW, ONE)),
    "row - (row - one)": apply("sub", ROW, apply("sub", ROW, ONE)),
    "row - one - one": apply("sub", apply("sub", ROW, ONE), ONE),
    "-(row + one)": apply("neg", apply("add", ROW, ONE)),
    "(row + one).to(tl.float16)": ir.Cast(apply("add", ROW, ONE), "float16"),
    "tl.cast(one, tl.int64)": ir.Cast(ONE, "int64"),
    "tl.cast(one + one, tl.int64)": ir.Cast(apply("add", ONE, ONE), "int64"),
    "(tile * one).T": ir.Transposed(apply("mul", TILE, ONE)),
    "tl.sum(tile, axis=1)": ir.Reduce("sum", TILE, N),
    "tl.sum(tile, axis=0)": ir.Reduce("sum", TILE, M),
    "_nan_max(tile, axis=1)[:, None] + tile": apply("add", ir.Reduce("max", TILE, N), TILE),
    "tl.reduce(tile, combine_fn=_multiply, axis=1)": ir.Reduce("prod", TILE, N),
    "tl.where(col_mask[None, :], tile, 0.0)": apply("where", ir.Name("col_mask", (N,)), TILE, ir.Number(0.0)),
    "(first + tl.arange(0, BLOCK_M)).to(tl.int64)": ir.Cast(ir.Range(M, ir.Name("first")), "int64"),
    "tl.zeros((BLOCK_M, BLOCK_N), tl.float32)": ir.Zeros((M, N)),
    "tl.zeros((BLOCK_M,), tl.float32)": ir.Zeros((M,)),
    "tl.dot(a, b, tile)": ir.Dot(ir.Name("a", (M, K)), ir.Name("b", (K, N)), TILE),
    "tl.dot(a, b.T, tile, input_precision=PRECISION)": ir.Dot(
        ir.Name("a", (M, K)), ir.Transposed(ir.Name("b", (N, K))), TILE, "PRECISION"
    ),
    "tl.load(out_ptr + rows[:, None] * N + cols[None, :])": ir.Load(OUT, None),
    "tl.load(x_ptr + rows * s, mask=row_mask, other=0.0)": ir.Load(
        ir.Pointer("x", ((ROWS, "s"),), (M,)), ir.Name("row_mask", (M,))
    ),
    "tl.load(x_ptr + (rows + one) * (H + 1) + one)": ir.Load(
        ir.Pointer("x", ((apply("add", ROWS, ONE), "H + 1"), (ONE, None)), (M,)), None
    ),
    'tl.load(x_ptr + cols, eviction_policy="evict_last")': ir.Load(
        ir.Pointer("x", ((COLS, None),), (N,)), None, policy="evict_last"
    ),
    "x_desc.load([first_row, 0])": ir.Box("x_desc", (ir.Name("first_row"), ir.Number(0)), (M, N)),
    "x_desc.load([one, first_row, 0]).reshape(BLOCK_M, BLOCK_N)": ir.Box(
        "x_desc", (ONE, ir.Name("first_row"), ir.Number(0)), (M, N)
    ),
    "tl.cdiv(M, BLOCK_M) * one": apply("mul", apply("cdiv", ir.Name("M"), ir.Name("BLOCK_M")), ONE),
    "min(one + one, M)": apply("whole_min", apply("add", ONE, ONE), ir.Name("M")),
    "one // (M * one) % M": apply("int_mod", apply("int_div", ONE, apply("mul", ir.Name("M"), ONE)), ir.Name("M")),
    "_tile_of(tl.program_id(0), M)": ir.Call("tile_of", (ir.Program(0), ir.Name("M"))),
    "x_at[:, None] - s + 2 * t - (H // 2) * s": ir.Pointer(
        "x", ((ir.Number(-1), "s"), (ir.Number(2), "t"), (apply("neg", ir.Size("H // 2")), "s")), (M, N),
        ir.Name("x_at", (M,)),
    ),
    "tl.load(out_ptr + rows[:, None] * N + cols[None, :], mask=tile & ((row < one) & (row > one))[:, None])": ir.Load(
        OUT, TILE, None, within=(apply("lt", ROW, ONE), apply("gt", ROW, ONE))
    ),
    "tl.split(pair)": ir.Split(ir.Name("pair", (M, TWO))),
    "_split_4(quad)": ir.Split(ir.Name("quad", (M, FOUR))),
    "tl.join(row, row)": ir.Join((ROW, ROW), (M, TWO)),
    "_join_4(row, row, row, row)": ir.Join((ROW, ROW, ROW, ROW), (M, FOUR)),
    "((row, one),)": ir.Tuple((ir.Tuple((ROW, ONE)),)),
    "lines[one + 1]": ir.Item(ir.Name("lines"), apply("add", ONE, ir.Number(1))),
    "_running_products(row, axis=0)": ir.Scan("cumprod", ROW, M, "float", in_pairs=True),
    "_growing_products(row, one, most, axis=0)": ir.Scan("cumprod", ROW, M, "float", after=(ONE, ir.Name("most"))),
}  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_is_printed_with_what_broadcasts_it_and_no_more_parentheses(text: str) -> None:
    assert printed(EXPRESSIONS[text]) == text
    ast.parse(text)


def test_a_statement_of_the_reference_stands_above_what_comes_of_it_unless_it_says_the_same() -> None:
    value = apply("mul", ROW, ONE)

    def lines(comment: str, name: str = "y") -> list[str]:
        return Printer(kernel(), {}).block([ir.Let((name,), value, comment)], 4)

    assert lines("y = row * one") == lines("return row * one") == lines("") == ["    y = row * one"]
    assert lines("y = torch.mul(row, one)") == ["    # y = torch.mul(row, one)", "    y = row * one"]
    long = lines(f"y = {' + '.join(['something'] * 20)}")
    assert len(long) > 2
    assert all(line.startswith("    # ") and len(line) <= LINE for line in long[:-1])


def test_loops_say_where_they_begin_end_and_how_far_they_step() -> None:
    def first(loop: ir.For) -> list[str]:
        return Printer(kernel(), {}).statement(loop, 0)

    zero, one, size, block = ir.Number(0), ir.Number(1), ir.Name("K"), ir.Name("BLOCK_K")
    body = (let("x"),)
    assert first(ir.For("i", zero, size, one, body)) == ["for i in range(K):", "    x = 1"]
    assert first(ir.For("i", zero, size, block, body))[0] == "for i in range(0, K, BLOCK_K):"
    flat = ir.For("i", ir.Program(0), size, one, body, flatten=True, comment="in turn")
    assert first(flat)[:2] == ["# in turn", "for i in tl.range(tl.program_id(0), K, flatten=True):"]


def test_values_are_stored_in_the_shape_and_the_order_of_memory() -> None:
    def line(statement: ir.Stmt) -> str:
        return " ".join(Printer(kernel(), {}).statement(statement, 0))

    spread = "tl.broadcast_to(row[:, None], (BLOCK_M, BLOCK_N))"
    assert spread in line(ir.Store(OUT, ROW, None))
    flat = ir.Box("out_desc", (ir.Name("first_row"), ir.Name("first_col")), (M, N))
    assert line(ir.StoreBox(flat, TILE)) == "out_desc.store([first_row, first_col], tile)"
    deep = ir.Box("out_desc", (ONE, ir.Name("first_row"), ir.Name("first_col")), (M, N))
    stored = line(ir.StoreBox(deep, apply("add", TILE, ONE)))
    assert stored == "out_desc.store([one, first_row, first_col], (tile + one).reshape(1, BLOCK_M, BLOCK_N))"


def test_the_element_type_is_that_of_the_argument_by_which_a_tensor_is_reached() -> None:
    cast = ir.Cast(TILE, ir.ElementOf("out"))
    pointer, descriptor = ir.Argument("out_ptr", "pointer", "out"), ir.Argument("out_desc", "descriptor", "out")
    assert Printer(kernel(arguments=(pointer,)), {}).text(cast).text == "tile.to(out_ptr.dtype.element_ty)"
    assert Printer(kernel(arguments=(descriptor,)), {}).text(cast).text == "tile.to(out_desc.dtype)"


def test_a_small_kernel_is_what_its_data_says() -> None:
    """Rows less their greatest element, halved in a loop: printed, and run."""
    one = ir.Number(1)
    loads = ir.Load(ir.Pointer("x", ((ROWS, "stride_xm"), (COLS, "stride_xn")), (M, N)), inside := apply(
        "and", ir.Name("row_mask", (M,)), ir.Name("col_mask", (N,))
    ))  # fmt: skip
    first = apply("mul", ir.Program(0), ir.Name("BLOCK_M"))
    masked = apply("where", ir.Name("col_mask", (N,)), TILE, ir.Number(float("-inf")))
    most = ir.Name("most", (M,))
    body = trimmed((
        ir.Let(("rows",), ir.Cast(ir.Range(M, first), "int64")), ir.Let(("cols",), ir.Range(N, ir.Number(0))),
        ir.Let(("row_mask",), apply("lt", ROWS, ir.Name("M"))), ir.Let(("col_mask",), apply("lt", COLS, ir.Name("N"))),
        ir.Let(("unread",), ROWS), ir.Let(("tile",), loads), ir.Let(("most",), ir.Reduce("max", masked, N)),
        ir.Let(("tile",), apply("sub", TILE, most), "x - x.amax(-1, keepdim=True)"),
        ir.For("i", ir.Number(0), ir.Name("HALVINGS"), one, (ir.Let(("tile",), apply("mul", TILE, ir.Number(0.5))),)),
        ir.Store(OUT, TILE, inside),
    ))  # fmt: skip
    names = ("x_ptr", "out_ptr", "M", "N", "stride_xm", "stride_xn")
    arguments = tuple(ir.Argument(n, "pointer" if n.endswith("ptr") else "number", n) for n in names)
    constexprs = (("BLOCK_M", None), ("BLOCK_N", None), ("HALVINGS", None))
    made = ir.Kernel("halved_kernel", SCHEDULE, arguments, constexprs, body, ("triton.cdiv(M, BLOCK_M)",))
    sources, helpers = triton.sources([made])
    assert "nan_max" in helpers
    text = sources["halved_kernel"]
    assert "unread" not in text
    assert used_names(body) >= {"x_ptr", "out_ptr", "stride_xm", "BLOCK_M"}
    module = load("\n\n".join(["import triton\nimport triton.language as tl", *_functions(helpers), text]) + "\n")
    x = torch.randn(5, 7, device=DEVICE).t()
    out = torch.empty(7, 5, device=DEVICE)
    module.halved_kernel[(2,)](x, out, 7, 5, *x.stride(), BLOCK_M=4, BLOCK_N=8, HALVINGS=3)
    torch.testing.assert_close(out, (x - x.amax(-1, keepdim=True)) / 8)


def _functions(helpers: tuple[str, ...]) -> list[str]:
    from kernelgen.render import environment

    texts = environment().get_template("helpers.py.jinja").module
    return [getattr(texts, helper)() for helper in helpers]


# What a line has no room for, what heads a part, what is asked of elements


def test_of_a_line_that_is_too_long_parts_get_lines_of_their_own_those_of_the_reference_first() -> None:
    def part(name: str, *, is_variable: bool = False, noun: str = "part") -> ir.Part:
        return ir.Part(apply("mul", ir.Name(f"{name}_{'x' * 30}"), ONE), name if is_variable else "", noun, is_variable)

    def lines(value: ir.Expr) -> list[str]:
        return Printer(kernel(), {}).block([ir.Let(("y",), value)], 4)

    assert lines(apply("add", part("a"), ONE)) == [f"    y = a_{'x' * 30} * one + one"]
    named, rest = part("shift", is_variable=True), part("the_rest", noun="product")
    assert lines(apply("add", rest, named)) == [
        f"    shift = shift_{'x' * 30} * one",
        f"    y = the_rest_{'x' * 30} * one + shift",
    ]
    assert lines(apply("add", rest, apply("mul", part("c", noun="product"), ir.Name("z" * 20))))[0].startswith(
        "    y_product = the_rest_"
    )


def test_remarks_stand_apart_from_what_comes_before_them_but_not_from_one_another() -> None:
    again = ir.Remark(("once more",))
    text = Printer(kernel(), {}).block([ir.Remark(("first",)), again, let("x"), again, ir.Update("x", "add", ONE)], 0)
    assert text == ["# first", "# once more", "x = 1", "", "# once more", "x += one"]


def test_a_value_that_is_assigned_anew_is_not_needed_before_unless_that_is_only_perhaps() -> None:
    end = ir.Store(OUT, ir.Name("a"), None)
    loop = ir.For("i", ir.Number(0), ONE, ir.Number(1), (let("a"),))
    assert names_assigned(trimmed((let("a"), let("a"), end))) == ["a"]
    assert names_assigned(trimmed((let("a"), loop, end))) == ["a", "a"]
    assert len(trimmed((let("a"), ir.If(ONE, (let("a"), let("b"))), end))) == 3
    assert trimmed((ir.Update("b", "add", ONE), end)) == (end,)


def test_what_a_while_loop_goes_by_is_needed_and_what_its_turns_alone_read_is_not() -> None:
    turn = (let("left", ir.Name("left")), let("seen", ir.Name("seen")))
    loop = ir.While(ir.Name("left"), turn)
    assert trimmed((let("left"), let("seen"), loop)) == (let("left"), ir.While(ir.Name("left"), turn[:1]))
    assert trimmed((let("left"), let("seen"), loop), frozenset({"seen"})) == (let("left"), let("seen"), loop)
    assert Printer(kernel(), {}).block([loop], 0)[0] == "while left:"


def test_several_values_are_assigned_at_once() -> None:
    moved = ir.Let(("x", "y"), ir.Tuple((ir.Name("y"), ir.Name("z"))))
    assert Printer(kernel(), {}).block([moved], 0) == ["x, y = y, z"]
    assert used_names((moved,)) == {"y", "z"}


def test_a_load_under_conditions_is_a_narrower_mask_on_a_gpu_and_a_choice_of_places_on_an_npu() -> None:
    mask, inside = ir.Name("mask", (M, N)), apply("lt", COLS, ir.Name("W"))
    loaded = ir.Let(("x",), ir.Load(OUT, mask, None, within=(inside,), fill=-1.0))
    on_gpu, on_npu = (" ".join(made(kernel(), {}).block([loaded], 0)) for made in (Printer, ascend.Printer))
    assert "mask=mask & (cols < W)[None, :]" in on_gpu
    assert "other=-1.0" in on_gpu
    assert "x_within = (cols < W)[None, :]" in on_npu
    assert "x_offsets = tl.where(x_within, rows[:, None] * N + cols[None, :], 0)" in on_npu
    assert on_npu.endswith("x = tl.load(out_ptr + x_offsets, mask=mask) x = tl.where(x_within, x, -1.0)")


def test_a_scan_from_the_end_turns_what_is_numbered_from_there() -> None:
    def text(**how: bool) -> str:
        return printed(ir.Scan("cumsum", TILE, N, "float", **how))

    assert text() == "tl.cumsum(tile, axis=1)"
    assert text(reverse=True) == "tl.cumsum(tile, axis=1, reverse=True)"
    assert text(reverse=True, is_turned=True) == "_turned(tl.cumsum(_turned(tile), axis=1))"
