"""Kernels for GPUs: expressions and row kernels, printed as CUDA C++ for NVRTC."""
