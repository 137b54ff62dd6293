"""Kernels that no family wrote: device code with a declarative launch, checked, and wrapped by us.

What comes from outside is data: the text of `@triton.jit` functions, held against an allow-list of Python's syntax
(`syntax`), and expressions over sizes (`expressions`). No statement of it ever runs on the host as it stands.
"""

from __future__ import annotations

from kernelgen.custom.form import Answer, Refused, parse, schema
from kernelgen.custom.schedule import (
    ADOPTED,
    FOREIGN,
    PROPOSED,
    adopted_source,
    adopted_table,
    answer_of,
    is_foreign,
    misshapen,
    plan_of,
    schedule_of,
    table_of,
)
from kernelgen.custom.text import check_file, file_context

__all__ = [
    "ADOPTED",
    "FOREIGN",
    "PROPOSED",
    "Answer",
    "Refused",
    "adopted_source",
    "adopted_table",
    "answer_of",
    "check_file",
    "file_context",
    "is_foreign",
    "misshapen",
    "parse",
    "plan_of",
    "schedule_of",
    "schema",
    "table_of",
]
