"""What follows from the sums of products that a family says its kernels compute: operations, floors, what is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelgen import families, frontend, render
from kernelgen.analysis import floor_seconds, work
from kernelgen.devices.facts import H200
from kernelgen.plan import Plan, Product
from kernelgen.spec import load_spec
from kernelgen.spec.model import Case

SPECS = Path(__file__).parent.parent / "specs"
SPEC = """\
name: scaled_rows
summary: A pointwise operator that stands in for one that multiplies.
inputs:
  - {name: x, shape: [..., K], dtype: T}
  - {name: y, shape: [..., K], dtype: T}
outputs:
  - {name: out, shape: [..., K], dtype: T}
dtypes: {T: [float16, bfloat16, float32]}
reference: |
  def scaled_rows(x, y):
      return x * y
accuracy: {shapes: [{...: [2], K: 3}]}
performance: {shapes: [{...: [64, 4096], K: 4096}]}
"""
PRODUCT = Product("out", (), ("...",), ("K", 2), ("K",), "T")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    path = tmp_path / "scaled_rows.yaml"
    path.write_text(SPEC)
    spec = load_spec(path)
    made = families.lower(spec, *frontend.trace(spec))
    multiplying = replace(families.FAMILIES[made.family], products=lambda spec, body: (PRODUCT,))
    monkeypatch.setitem(families.FAMILIES, made.family, multiplying)
    return made


def case(dtype: str) -> Case:
    return Case((("...", (64, 4096)), ("K", 4096)), (("T", dtype),))


def test_a_product_is_two_m_n_k_operations_at_the_peak_of_its_dtype(plan: Plan) -> None:
    m, n, k = 64 * 4096, 2 * 4096, 4096
    for dtype, peak in (("float16", H200.fp16_tensor_flops), ("float32", H200.fp32_flops)):
        found = work(plan, case(dtype))
        (product,) = found.products
        assert product.flops == 2 * m * n * k
        assert found.all_flops == product.flops + m * k
        assert floor_seconds(found, H200) == pytest.approx(product.flops / peak, rel=1e-3)


def test_files_say_how_products_are_priced_and_judged(plan: Plan) -> None:
    files = render.quartet(plan)
    definition = files["definition.md"]
    assert "float16 at 990 TFLOP/s, bfloat16 at 990 TFLOP/s, float32 at 67 TFLOP/s" in definition
    assert "`torch.backends.cuda.matmul.fp32_precision`" in definition
    assert "bound by arithmetic" in definition
    assert '    multiplied="T",' in files["scaled_rows_accuracy.py"]


def test_files_without_products_say_nothing_of_them(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.FAMILIES, plan.family, replace(families.FAMILIES[plan.family], products=lambda *_: ()))
    files = render.quartet(plan)
    assert "product" not in files["definition.md"]
    assert "multiplied" not in files["scaled_rows_accuracy.py"]


def test_the_matmul_family_says_what_it_multiplies() -> None:
    spec = load_spec(SPECS / "linear_softmax.yaml")
    made = families.lower(spec, *frontend.trace(spec))
    found = work(made, Case((("...", (64, 2)), ("K", 4096)), (("T", "bfloat16"),)))
    (product,) = found.products
    assert (product.batch, product.rows, product.columns, product.summed) == (1, 128, 256, 4096)
    assert found.bytes_read == 2 * (128 * 4096 + 256 * 4096 + 256)
    assert found.flops < 20 * 128 * 256
    files = render.quartet(made)
    assert 'multiplied="T"' in files["linear_softmax_accuracy.py"]
    assert "| time | O(M × N × K)" in files["definition.md"]
    assert "`weight` is read once per tile of rows" in files["definition.md"]
    assert "`bias` is read once per tile" in files["definition.md"]
