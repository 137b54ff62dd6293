"""What prints kernels of the IR: one package or module a language."""
