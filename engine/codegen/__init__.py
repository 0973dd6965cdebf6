"""Code generation: kernels and native regions, printed as LLVM IR or CUDA, and compiled."""
