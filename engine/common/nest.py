"""Nested structures: tuples, lists, dicts, named tuples and None around leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np

Leaf = TypeVar("Leaf")

Nest: TypeAlias = "Leaf | Sequence[Nest[Leaf]] | Mapping[str, Nest[Leaf]]"
"""A leaf, or lists, tuples and dicts of leaves, nested as deep as need be."""


def is_sequence(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Test whether `value` is a list or a tuple."""
    return isinstance(value, (list, tuple))


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Test whether `value` is a tuple."""
    return isinstance(value, tuple)


def is_text(value: object) -> TypeGuard[str]:
    """Test whether `value` is a string: an argument may be something else than its annotation says."""
    return isinstance(value, str)


def is_mapping(value: Any) -> TypeGuard[dict[Any, Any]]:
    """Test whether `value` is a dict."""
    return isinstance(value, dict)


def is_integer(value: Any) -> TypeGuard[int]:
    """Test whether `value` is a Python or NumPy integer."""
    return isinstance(value, (int, np.integer))


def is_nested(structure: Any) -> bool:
    """Test whether `structure` is a container that `flatten` opens."""
    return isinstance(structure, (tuple, list, dict))


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of `structure`, depth first; dicts in the order of their sorted keys. None is not a leaf.

    >>> flatten({"b": (1, None, [2]), "a": 3})
    [3, 1, 2]
    """
    leaves: list[Any] = []
    _gather(structure, leaves)
    return leaves


def _gather(structure: Any, leaves: list[Any]) -> None:
    if is_sequence(structure):
        for item in structure:
            _gather(item, leaves)
    elif is_mapping(structure):
        for key in sorted_keys(structure):
            _gather(structure[key], leaves)
    elif structure is not None:
        leaves.append(structure)


def flatten_with_path(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves with the way to each, as it is written in Python: ``[0]['h']``."""
    if structure is None:
        return
    if is_mapping(structure):
        for key in sorted_keys(structure):
            yield from flatten_with_path(structure[key], f"{path}[{key!r}]")
    elif is_sequence(structure):
        names = getattr(structure, "_fields", None)
        for position, item in enumerate(structure):
            step = f"[{position}]" if names is None else f".{names[position]}"
            yield from flatten_with_path(item, path + step)
    else:
        yield path, structure


def pack_as(structure: Any, leaves: list[Any]) -> Any:
    """Return `structure` with its leaves replaced, in order, by `leaves`.

    Raises:
        ValueError: there are more or fewer leaves than `structure` has.
    """
    remaining = iter(leaves)
    try:
        packed = _pack(structure, remaining)
    except StopIteration:
        raise ValueError(f"{len(leaves)} leaves are too few for the structure {structure!r}.") from None
    if next(remaining, remaining) is not remaining:
        raise ValueError(f"{len(leaves)} leaves are too many for the structure {structure!r}.")
    return packed


def map_structure(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Map `function` over the leaves of structures of one form; the result has that form too."""
    columns = [flatten(structure), *(flatten(other) for other in others)]
    return pack_as(structure, [function(*leaves) for leaves in zip(*columns, strict=True)])


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return None
    if is_mapping(structure):
        packed = {key: _pack(structure[key], leaves) for key in sorted_keys(structure)}
        return _mapping_like(structure, packed)
    if is_sequence(structure):
        # `next` may raise StopIteration: a generator expression would turn it into a RuntimeError.
        items: list[Any] = []
        for item in structure:
            items.append(_pack(item, leaves))
        if hasattr(structure, "_fields"):
            return type(structure)(*items)
        return tuple(items) if isinstance(structure, tuple) else items
    return next(leaves)


def _mapping_like(structure: dict[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """Return a mapping of the kind and order of `structure`: an OrderedDict, a defaultdict with its factory."""
    if type(structure) is dict:
        return {key: values[key] for key in structure}
    mapping = copy(structure)
    for key in structure:
        mapping[key] = values[key]
    return mapping


def sorted_keys(mapping: dict[Any, Any]) -> list[Any]:
    """Return the keys of a dict in the order in which `flatten` visits them."""
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)
