"""Searching a space of configurations with few measurements, whatever these are: nothing here knows kernels."""
