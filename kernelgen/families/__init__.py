"""The families: what each can express, how it is scheduled, and which schedules are legal.

A family is a module with a `FAMILY` (`families/family.py`), named in `spec.model.FAMILIES`. What other packages ask is
imported from here: `planning.py` makes the plan of a graph, `registry.py` answers what is asked of a plan.
"""

from kernelgen.families.kernel import elements
from kernelgen.families.planning import check_names, joined, lower
from kernelgen.families.registry import (
    FAMILIES,
    RETARGET,
    columns,
    family_of,
    has_room,
    independent_dims,
    itemsize,
    kept_inputs,
    legal,
    legality,
    limits,
    multiplied_dtype,
    named_sizes,
    problem_of,
    products,
    retarget,
    row_of,
    rows,
    sets,
    space,
    stored_dtype,
    uniform_outputs,
    unknown,
    variants,
)

__all__ = [
    "FAMILIES",
    "RETARGET",
    "check_names",
    "columns",
    "elements",
    "family_of",
    "has_room",
    "independent_dims",
    "itemsize",
    "joined",
    "kept_inputs",
    "legal",
    "legality",
    "limits",
    "lower",
    "multiplied_dtype",
    "named_sizes",
    "problem_of",
    "products",
    "retarget",
    "row_of",
    "rows",
    "sets",
    "space",
    "stored_dtype",
    "uniform_outputs",
    "unknown",
    "variants",
]
