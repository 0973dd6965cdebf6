"""Packages whose files are imported when one of their public names is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def modules_by_name(package: str, names_in: Mapping[str, str]) -> dict[str, str]:
    """Public names to the modules that define them.

    Args:
        package: the name of the package.
        names_in: a file of it to the names that it defines, with spaces between.

    >>> modules_by_name("layers", {"gru": "GRU GRUCell"})
    {'GRU': 'layers.gru', 'GRUCell': 'layers.gru'}
    """
    return {name: f"{package}.{file}" for file, names in names_in.items() for name in names.split()}


def on_demand(own: dict[str, Any], modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        own: its globals.
        modules: its public names to the modules that define them.
    """

    def get(name: str) -> Any:
        if name not in modules:
            package = own["__name__"]
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = own[name] = getattr(import_module(modules[name]), name)
        return value

    def list_names() -> list[str]:
        imported = [name for name in own if name.startswith("__")]
        return sorted({*imported, *own.get("__all__", modules)})

    return get, list_names
