"""scaled_add in PyTorch: what it means, and the same input checks as the Triton wrapper."""


def reference(x, bias, scale):
    return x + scale * bias


def scaled_add(x, bias, scale):
    if x.ndim < 1 or bias.shape != x.shape[-1:] or scale.shape != bias.shape:
        shapes = [list(t.shape) for t in (x, bias, scale)]
        raise ValueError(f"scaled_add: bias and scale must have the last size of x, not shapes {shapes}")
    if not all(t.is_contiguous() for t in (x, bias, scale)):
        raise ValueError("scaled_add: x, bias and scale must be contiguous")
    return reference(x, bias, scale)
