"""scale in PyTorch."""


def reference(x):
    return x * 2


def scale(x):
    if not x.is_contiguous():
        raise ValueError(f"x must be contiguous, got strides {x.stride()}")
    return reference(x)
