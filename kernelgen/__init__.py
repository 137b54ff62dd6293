"""kernelgen: from an operator spec to a readable, verified and measured Triton kernel."""

__version__ = "0.1.0"
