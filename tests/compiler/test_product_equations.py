"""Products, however they are written, as one kind of node: an equation that says what the call computes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from references import sample

from kernelgen import frontend
from kernelgen.frontend.graph import CALL, DOT, Graph, Ref
from kernelgen.frontend.products import with_products

INPUTS = {
    "k": "K", "n": "N", "m": "M", "row": "1 N", "mk": "M K", "kn": "K N", "nk": "N K", "mn": "M N", "kk": "K K",
    "bmk": "B M K", "bkn": "B K N", "bmn": "B M N", "abmk": "A B M K", "akn": "A K N",
    "abkn": "A B K N",
}  # fmt: skip
SIZES = {"A": 2, "B": 3, "M": 4, "N": 5, "K": 6}
PRODUCTS = [
    "mk @ kn", "k @ kn", "mk @ k", "k @ k", "bmk @ kn", "mk @ bkn", "bmk @ bkn", "abmk @ bkn", "bmk @ k", "k @ bkn",
    "torch.mm(mk, kn)", "torch.bmm(bmk, bkn)", "torch.matmul(abmk, kn)", "bmk @ abkn", "mk @ abkn",
    "torch.addmm(mn, mk, kn)", "torch.addmm(n, mk, kn)", "torch.addmm(row, mk, kn)", "torch.baddbmm(bmn, bmk, bkn)",
    "F.linear(k, nk)", "F.linear(mk, nk)", "F.linear(mk, nk, n)", "F.linear(abmk, nk, n)",
    "torch.einsum('ij,jk->ik', mk, kn)", "torch.einsum('ij,jk->ki', mk, kn)", "torch.einsum('mk,kn', mk, kn)",
    "torch.einsum('zk,ka', mk, kn)", "torch.einsum('Kz,zA', mk, kn)", "torch.einsum('bij, bjk -> bki', bmk, bkn)",
    "torch.einsum('bij,jk->kbi', bmk, kn)", "torch.einsum('ij,j->i', mk, k)",
    "torch.einsum('abij,bjk->abik', abmk, bkn)", "torch.einsum('bij,ajk->abik', bmk, akn)",
    "torch.addmm(mn, mk, kn, alpha=2)", "torch.addmm(mn, mk, kn, beta=0.5)", "torch.baddbmm(bmn, bmk, bkn, beta=0)",
]  # fmt: skip
OTHERS = [
    "torch.einsum('ij,jk->i', mk, kn)", "torch.einsum('ij,jk->', mk, kn)", "torch.einsum('ij,jk,ik->ik', mk, kn, mn)",
    "F.linear(mk, k)",
]  # fmt: skip
"""Sums of products that are no product of two operands: these stay calls."""
WRITTEN_OUT = [
    "torch.einsum('ij,ij->', mk, mk)", "torch.einsum('i,j->ij', m, k)", "torch.einsum('ii,ij->ij', kk, kn)",
    "torch.einsum('ij,kk->ij', mk, kk)", "torch.einsum('ij,kl->jl', mk, mn)", "torch.einsum('ij->ji', mk)",
    "torch.einsum('ij->i', mk)",
]  # fmt: skip
"""Without a product of matrices: multiplied element by element, and summed."""


def traced(calls: list[str]) -> Graph:
    """The calls in one reference, each a statement."""
    lines = [f"y{i} = {call}" for i, call in enumerate(calls)]
    total = " + ".join(f"y{i}.sum()" for i in range(len(calls)))
    return trace([*lines, f"return {total}"], {"out": ": float32"})


def trace(lines: list[str], outputs: dict[str, str]) -> Graph:
    """In float32 alone, for one trace says all then."""
    used = {n: f"{shape}: float32" for n, shape in INPUTS.items() if re.search(rf"\b{n}\b", "\n".join(lines))}
    return frontend.trace(sample("\n".join(lines), used, outputs, dtypes=()).spec())[0]


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn([SIZES.get(s) or int(s) for s in shape.split()], generator=generator, dtype=torch.float64)
        for name, shape in INPUTS.items()
    }


@pytest.fixture(scope="module")
def products() -> Graph:
    return with_products(traced(PRODUCTS))


@pytest.mark.parametrize("number", range(len(PRODUCTS)), ids=PRODUCTS)
def test_an_equation_says_what_a_call_computes(number: int, products: Graph, tensors: dict[str, torch.Tensor]) -> None:
    """What is added to a product is a node of its own."""
    nodes = products.nodes

    def value(ref: Ref) -> torch.Tensor:
        node = nodes[ref.node]
        args: list[Any] = [value(a) if isinstance(a, Ref) else a for a in node.args]
        match node.op:
            case "input":
                return tensors[str(node.attrs[0])]
            case "dot":
                return torch.einsum(node.equation, *args)
            case "add":
                return args[0] + args[1]
            case "mul":
                return args[0] * args[1]
            case "reshape" if node.shape == nodes[ref.node - 1].shape:  # an addend of no weight leaves the product
                return args[0]
        raise AssertionError(node.op)

    (at,) = (i for i, node in enumerate(nodes) if node.name == f"y{number}")
    assert nodes[at].op in (DOT, "add", "reshape")
    wanted = eval(PRODUCTS[number], {"torch": torch, "F": torch.nn.functional, **tensors})
    torch.testing.assert_close(value(Ref(at)), wanted)


def test_what_is_no_product_of_two_stays_a_call() -> None:
    graph = traced(OTHERS)
    calls = [node for node in graph.nodes if node.op == CALL]
    assert [node.equation for node in calls] == [""] * len(OTHERS)
    assert with_products(graph) == graph


@pytest.mark.parametrize("call", WRITTEN_OUT)
def test_an_einsum_without_a_product_of_matrices_is_written_out(call: str) -> None:
    found = {node.op for node in with_products(traced([call])).nodes}
    assert found <= {"input", "index", "mul", "sum", "reshape"}


def test_what_is_noted_of_nodes_and_returned_follows_them() -> None:
    """Their numbers are those of the new graph."""
    normed = ["y = torch.addmm(mn, mk, kn)", "z = F.layer_norm(y, (y.shape[-1],))", "return torch.softmax(z, -1)"]
    before = trace(normed, {"out": "M N: float32"})
    after = with_products(before)
    for graph in (before, after):
        assert [graph.nodes[i].op for i in sorted(graph.held)] == ["max"]
        assert [graph.nodes[i].op for i in sorted(graph.deviations)] == ["sub"]
    shortcuts = [[(g.nodes[i].op, what, [g.nodes[r.node].op for r in refs]) for i, what, refs in g.shortcuts]
                 for g in (before, after)]  # fmt: skip
    assert shortcuts[0] == shortcuts[1]
    lines = ["y = torch.addmm(mn, mk, kn)", "z = F.linear(mk, nk)", "return torch.relu(y), z"]
    graph = with_products(trace(lines, {"y": "M N: float32", "z": "M N: float32"}))
    returned = [graph.nodes[o.node] for o in graph.outputs]
    assert [node.op for node in returned][1] == DOT
    (relu,) = [a.node for a in returned[0].args if isinstance(a, Ref)]
    assert (graph.nodes[relu].op, graph.nodes[relu].name) == ("add", "y")
