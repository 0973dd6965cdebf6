"""Load what is above tensors, graphs and ops where it is reached from them: at the first look-up of its name."""

from __future__ import annotations

import importlib
from typing import Any

from .common.operator_table import define_operators
from .graph.graph import Graph
from .graph.tensor import Symbol

# Functions that keras.ops has among its ops, and that are above them here: the module of each.
_MODULES = {
    "associative_scan": "control_flow.associative_scan",
    "cond": "control_flow.cond",
    "ctc_loss": "control_flow.ctc",
    "custom_gradient": "autodiff.custom_gradient",
    "fori_loop": "control_flow.scan",
    "jvp": "autodiff.derivatives",
    "map": "control_flow.scan",
    "scan": "control_flow.scan",
    "switch": "control_flow.cond",
    "vectorize": "control_flow.vectorized_map",
    "vectorized_map": "control_flow.vectorized_map",
    "while_loop": "control_flow.while_loop",
}


def load(name: str) -> None:
    """Load what defines an entry of the table of operators."""
    if name in _MODULES:
        module = importlib.import_module(f".{_MODULES[name]}", __package__)
        define_operators({name: getattr(module, "map_fn" if name == "map" else name)})
    elif name in _METHODS:
        define_operators(_METHODS)
    elif name in ("initializer", "first_value"):
        from .objects import initializers as initializers
    else:
        from . import ops as ops


def _eval(tensor: Symbol, feed_dict: dict[Any, Any] | None) -> Any:
    from .session.session import Session

    return Session(tensor.graph).run(tensor, feed_dict)


def _staged(function: Any, *args: Any) -> Any:
    from .session.staged import staged

    return staged(function, *args)


def _save_graph(graph: Graph, path: Any) -> None:
    from .saving.files import save_graph

    save_graph(graph, path)


def _dump_lowered(fetches: Any) -> str:
    from .session.lowered import dump_lowered

    return dump_lowered(fetches)


def _check_device(asking: str, name: str) -> bool:
    from .devices.cuda import check_gpus
    from .place.constraints import declared_for

    meant = declared_for(asking, name)
    if all(device.kind == "gpu" for device in meant):
        check_gpus(meant[:1])  # as a step is refused: on the CPU it would run unnoticed
    return bool(meant)


_METHODS = {
    "check_device": _check_device,
    "dump_lowered": _dump_lowered,
    "eval": _eval,
    "save_graph": _save_graph,
    "staged": _staged,
}
