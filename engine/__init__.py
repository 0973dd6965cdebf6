"""The dataflow engine: graph, ops, autodiff, control flow, passes, runtime and sessions."""

import os
import sys

# OpenBLAS's threads look for work for 30 ms after each product, on the cores that kernels of ours want next; now for
# some 60 microseconds (2 ** 17 cycles). It is read when NumPy is loaded; what is done if that was before: `graph.blas`.
NUMPY_CAME_FIRST = "numpy" in sys.modules and "OPENBLAS_THREAD_TIMEOUT" not in os.environ
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "17")
