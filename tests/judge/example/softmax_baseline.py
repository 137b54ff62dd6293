"""softmax in PyTorch: what it means, and the same input checks as the Triton wrapper."""

import torch


def reference(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def softmax(x):
    if x.ndim < 1:
        raise ValueError(f"softmax: x must have at least one dimension, not shape {list(x.shape)}")
    return reference(x)
