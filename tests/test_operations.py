"""One record an operation: that the tables which follow from it leave nothing out."""

from __future__ import annotations

import math

import pytest

from kernelgen.backends.triton_text import Text, number, operation
from kernelgen.families.helpers import DEVICE_FUNCTIONS, HELPERS, with_called
from kernelgen.families.npu.budget import HELPER_BYTES
from kernelgen.families.npu.held import WHILE_BYTES
from kernelgen.families.padding import identity
from kernelgen.frontend.graph import REDUCTIONS, SCANS, SELECTIONS
from kernelgen.frontend.operations import OPERATIONS, evaluate, of_kind

COMBINED = {name: OPERATIONS[name].repeats for name in (*of_kind("reduction"), *SCANS)}


@pytest.mark.parametrize("name", of_kind("map"))
def test_every_operation_has_a_text_whose_device_functions_exist(name: str) -> None:
    text, helpers = operation(name, (Text("a"), Text("b"), number(0.5)))
    assert "a" in text.text
    assert set(with_called(helpers)) <= set(HELPERS)
    assert not helpers or text.text.startswith("_")


@pytest.mark.parametrize("name", [n for n in COMBINED if n != "logcumsumexp"])
@pytest.mark.parametrize("element", [-2.5, 0.0, 7.0])
def test_an_identity_changes_nothing(name: str, element: float) -> None:
    assert evaluate(COMBINED[name], (identity(name, "float"), element)) == element


@pytest.mark.parametrize("name", [*REDUCTIONS, *SCANS])
def test_identities_of_integers_are_their_own(name: str) -> None:
    of_floats = float(identity(name, "float"))
    # NaN is above all floats, as the largest integer is above all integers
    whole = 127 if math.isnan(of_floats) else {0.0: 0, 1.0: 1, -math.inf: -128, math.inf: 127}[of_floats]
    assert identity(name, "int8") == whole
    assert identity(name, "uint8") == {-128: 0, 127: 255}.get(whole, whole)


def test_device_functions_bring_what_they_call_in_the_order_of_their_definitions() -> None:
    assert with_called(["erfc"]) == ("erf", "precise_exp", "erfc")
    assert with_called(["sigmoid"]) == ("exp", "sigmoid")
    assert with_called(["cumprod"])[-1] == "cumprod"
    assert "frexp" in with_called(["cumprod"])
    assert with_called(["precise_exp"]) == ("precise_exp",)  # whose comment mentions _exp
    assert {"_is_above", "_power_of_two"} <= DEVICE_FUNCTIONS


def test_tables_beside_the_records_name_operations() -> None:
    assert set(HELPER_BYTES) | set(WHILE_BYTES) <= set(OPERATIONS)
    assert set(SELECTIONS) <= set(REDUCTIONS)
    assert all(OPERATIONS[s].repeats in OPERATIONS for s in SCANS)
