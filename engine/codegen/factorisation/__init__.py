"""Kernels for factorisations of matrices."""
