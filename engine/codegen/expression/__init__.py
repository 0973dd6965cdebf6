"""The expression IR, and its printing as LLVM IR and CUDA."""
