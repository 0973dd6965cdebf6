"""LLVM: the builder of code, the compiler, object files, and the library of shared functions."""
