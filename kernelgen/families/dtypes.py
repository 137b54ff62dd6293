"""What the families know of dtypes."""

ITEMSIZE = {
    "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4,
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip
"""Bytes an element."""
