"""The compiler's functions as the strategies see them."""

from __future__ import annotations

from kernelgen.strategies import Compiler


def families_compiler() -> Compiler:
    """The real ones."""
    from kernelgen import families
    from kernelgen.render import triton_source

    return Compiler(
        families.space, families.variants, families.legal, families.key_bytes, families.row_of, triton_source
    )
