"""Passes that join operations into kernels, and lay operands out for them."""
