"""The registry of all ops. An op is registered when its module is imported, and some modules are imported late."""

import importlib
import pkgutil

from anabranch.engine import checkpoint, control_flow, ops, queues, readers
from anabranch.engine.graph.op import Op
from anabranch.engine.graph.op import registered_ops as _registered_ops


def registered_ops() -> dict[str, type[Op]]:
    """Every op class by its `type_name`, whatever was imported before."""
    for package in (ops, control_flow, queues, readers, checkpoint):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return _registered_ops()
