"""What device code may name: the words of triton.language that compute, move data or shape it, and nothing else."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DTYPES = _words(
    "float16 bfloat16 float32 float64 float8e4nv float8e5 int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
)
"""No pointer types: a number that becomes a pointer could point anywhere."""

MATH = _words(
    "abs ceil clamp cos div_rn erf exp exp2 fdiv floor fma log log2 maximum minimum rsqrt sin sqrt sqrt_rn umulhi"
)

CALLS = MATH | _words("""
    advance arange argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor broadcast broadcast_to cast cat cdiv constexpr cumprod cumsum debug_barrier dot expand_dims
    flip full gather histogram interleave join load make_block_ptr max max_constancy max_contiguous min multiple_of
    num_programs permute program_id ravel reduce reduce_or reshape sigmoid softmax sort split static_assert store sum
    swizzle2d trans view where xor_sum zeros zeros_like
""")
"""Functions of triton.language. Not here: inline assembly, external functions, printing, descriptors, pointer types."""

METHODS = _words("abs broadcast_to cast exp expand_dims flip max min permute reshape sqrt sum to trans view")
"""Methods of a value."""

LOOPS = _words("range static_range")
"""Of triton.language; `range` is Python's as well."""

BUILTINS = _words("range min max abs float")
"""Python's functions that Triton takes; `float` of a text such as "inf" only."""

COMBINING = _words("reduce associative_scan")
"""Calls that take a function of the module."""

RESERVED = BUILTINS | _words("""
    tl triton torch check_inputs pick_schedule SCHEDULES reference kernel options grid print exec eval open
    compile getattr setattr vars globals locals type object super
""")
"""Names that device code may not give a meaning of its own."""

NOT_ALLOWED = {
    "inline_asm_elementwise": "inline assembly",
    "extra": "external functions",
    "device_print": "printing",
    "static_print": "printing",
    "device_assert": "device assertions",
    "pointer_type": "pointer types",
    "make_tensor_descriptor": "tensor descriptors",
}
"""Words of triton.language that are refused by what they are for."""
