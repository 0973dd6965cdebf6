"""Kernels for fused elementwise operations: one expression IR, printed as LLVM IR."""
