"""Packages whose files are imported when one of their public names is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..common.names_elsewhere import module_error


def modules_by_name(package: str, names_in: Mapping[str, str]) -> dict[str, str]:
    """Map public names to the modules that define them.

    Args:
        package: the name of the package.
        names_in: a file of it to the names that it defines, with spaces between.

    >>> modules_by_name("layers", {"gru": "GRU GRUCell"})
    {'GRU': 'layers.gru', 'GRUCell': 'layers.gru'}
    """
    return {name: f"{package}.{file}" for file, names in names_in.items() for name in names.split()}


def no_attribute(
    module: str,
    name: str,
    instead: Mapping[str, str] | None = None,
    source: str = "Keras",
    elsewhere: Mapping[str, str] | None = None,
) -> AttributeError:
    """Return the error for a name that a public module does not have.

    Args:
        module: its name.
        name: the name that was asked for.
        instead: names that another framework has and what to use in place of each.
        source: that framework.
        elsewhere: the same as `instead` for names of other frameworks.
    """
    remedy = (instead or {}).get(name)
    if remedy is not None:
        return AttributeError(f"module {module!r} does not have {source}'s {name}. {remedy}", name=name)
    return module_error(module, name, elsewhere or {})


def on_demand(
    own: dict[str, Any],
    modules: Mapping[str, str],
    instead: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        own: its globals.
        modules: its public names to the modules that define them.
        instead: names that Keras has and the package has not, and what to use in place of each.
        elsewhere: the same for names of other frameworks.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise no_attribute(own["__name__"], name, instead, elsewhere=elsewhere)
        value = own[name] = getattr(import_module(modules[name]), name)
        return value

    def list_names() -> list[str]:
        imported = [name for name in own if name.startswith("__")]
        return sorted({*imported, *own.get("__all__", modules)})

    return get, list_names
