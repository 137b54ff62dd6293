"""The processes that compile and run kernels: `python -m kernelgen.worker ROLE`.

The parent talks to them through `client.Worker`; messages are JSON lines (`protocol`). Everything that
imports torch or triton, or runs a candidate, happens in here and never in the parent.
"""
