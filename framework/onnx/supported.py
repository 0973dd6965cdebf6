"""`supported_ops`: which ops of the engine can be written as ONNX, and why others can't."""

from __future__ import annotations

import importlib
import pkgutil

from ...engine import control_flow, graph, ops, queues, readers
from ...engine.graph.op import registered_ops
from .export import model  # noqa: F401 - registers the rules
from .export.refused import reason_for
from .export.registry import LOWEST, RULES

_WRITTEN_BY_THE_EXPORT = {"constant", "read_variable", "placeholder", "parameter"}


def supported_ops() -> dict[str, int | str]:
    """Return for each op of the engine the lowest opset in which it is written as ONNX, or why it is not.

    Returns:
        By the op's name, as `Graph.dump` prints it, an int or a text.

    >>> import anabranch as ab
    >>> found = ab.onnx.supported_ops()
    >>> found["matmul"], found["numpy_function"]
    (18, 'it calls a Python function, which no other runtime has')
    """
    for package in (graph, ops, control_flow, queues, readers):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found: dict[str, int | str] = {}
    for name, op in sorted(registered_ops().items()):
        if not op.__module__.startswith(f"{graph.__package__}".rsplit(".", 1)[0]):
            continue  # an op that a user defined
        rule = RULES.get(name)
        if rule is not None:
            found[name] = rule.lowest
        else:
            found[name] = LOWEST if name in _WRITTEN_BY_THE_EXPORT else reason_for(op)
    return found
