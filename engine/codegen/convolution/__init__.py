"""Kernels of convolutions, correlations and pooling."""
