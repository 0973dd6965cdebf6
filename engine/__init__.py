"""The dataflow engine: graph, ops, autodiff, control flow, passes, runtime and sessions."""

from .common.operator_table import load_operators_by


def _load_operator(name: str) -> None:
    from .methods import load

    load(name)


load_operators_by(_load_operator)
