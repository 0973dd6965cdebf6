"""Kernels of fused elementwise groups and of their rows, for sizes known before and when they run."""
