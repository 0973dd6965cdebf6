"""The dataflow engine: graph, ops, autodiff, control flow, passes, runtime and sessions."""

import os

# OpenBLAS's threads look for work for 30 ms after each product, on the cores that kernels of ours want next; now for
# some 60 microseconds (2 ** 17 cycles). It is read when NumPy is loaded, so it helps where that comes later: products
# between steps. While a step runs OpenBLAS has one thread, whatever was loaded first: `graph.blas`.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "17")

from .common.operator_table import load_operators_by


def _load_operator(name: str) -> None:
    from .methods import load

    load(name)


load_operators_by(_load_operator)
