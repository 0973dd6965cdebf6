"""The dataflow engine: graph, ops, autodiff, control flow, passes, runtime and sessions."""

import os

# OpenBLAS's threads look for work for 30 ms after each product, on the cores that kernels of ours want next; now for
# some 60 microseconds (2 ** 17 cycles). It is read when NumPy is loaded, which is not before this package.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "17")
