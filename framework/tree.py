"""Nested structures: what ``anabranch.tree`` is, with the names of ``keras.tree``.

Lists, tuples, named tuples, deques and dicts are structures, everything else is a leaf, None too. Dicts are gone
through in the order of their sorted keys, an `OrderedDict` in its own order.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..engine.common.names_elsewhere import TREE_MODULE
from ..engine.objects.on_demand import on_demand

Path = tuple[Any, ...]


class MAP_TO_NONE:  # noqa: N801 - Keras's name
    """The value that a function returns to `traverse` to put None in a part's place, as None itself leaves it there.

    >>> import anabranch as ab
    >>> ab.tree.traverse(lambda part: ab.tree.MAP_TO_NONE if part == 3 else None, [(1, 2), 3])
    [(1, 2), None]
    """


def is_nested(structure: object) -> bool:
    """Test whether `structure` is a container, an empty one too.

    >>> is_nested([]), is_nested("a"), is_nested({"a": 1})
    (True, False, True)
    """
    return isinstance(structure, (tuple, list, dict, deque))


def flatten(structure: object) -> list[Any]:
    """Return the leaves in order.

    >>> flatten({"b": [1, (2,)], "a": None})
    [None, 1, 2]
    """
    return [leaf for _, leaf in flatten_with_path(structure)]


def flatten_with_path(structure: object) -> list[tuple[Path, Any]]:
    """Return the leaves in order, each with the keys and positions that lead to it.

    >>> flatten_with_path([{"a": 42}, 7])
    [((0, 'a'), 42), ((1,), 7)]
    """
    if not is_nested(structure):
        return [((), structure)]
    return [((key, *path), leaf) for key, item in _items(structure) for path, leaf in flatten_with_path(item)]


def map_structure(func: Callable[..., object], *structures: object, none_is_leaf: bool = True) -> Any:
    """Apply `func` to the leaves of structures of one form, and return the results in that form.

    Args:
        func: a function of as many arguments as there are structures.
        *structures: at least one.
        none_is_leaf: whether `func` is given None; otherwise None stays None.

    Raises:
        TypeError: `func` can't be called. ValueError: there is no structure, or the forms differ.

    >>> map_structure(lambda a, b: a + b, {"x": [1, 2]}, {"x": [3, 4]})
    {'x': [4, 6]}
    """
    _check_arguments("map_structure", func, structures)
    for other in structures[1:]:
        assert_same_structure(structures[0], other)

    def mapped(*leaves: object) -> object:
        return None if not none_is_leaf and all(leaf is None for leaf in leaves) else func(*leaves)

    return map_structure_up_to(structures[0], mapped, *structures)


def map_structure_up_to(shallow_structure: object, func: Callable[..., object], *structures: object) -> Any:
    """Apply `func` to what structures have in the places of the leaves of `shallow_structure`, in its form.

    Args:
        shallow_structure: the form down to which the structures are opened.
        func: a function of as many arguments as there are structures.
        *structures: structures of that form, whose leaves may be structures themselves.

    Raises:
        TypeError: `func` can't be called. ValueError: there is no structure, or the forms differ.

    >>> map_structure_up_to([None, None], len, [[1, 1], [2, 2, 2]])
    [2, 3]
    """
    _check_arguments("map_structure_up_to", func, structures)
    for structure in structures:
        _check_form(shallow_structure, structure, (), deeper=True)
    return _map_up_to(shallow_structure, func, structures)


def _map_up_to(shallow: object, func: Callable[..., object], structures: tuple[object, ...]) -> object:
    if not is_nested(shallow):
        return func(*structures)
    return _like(shallow, {key: _map_up_to(item, func, _parts(structures, key)) for key, item in _items(shallow)})


def _parts(structures: tuple[Any, ...], key: object) -> tuple[object, ...]:
    return tuple([structure[key] for structure in structures])


def pack_sequence_as(structure: object, flat_sequence: Iterable[object]) -> Any:
    """Return `structure` with its leaves replaced, in order, by those of `flat_sequence`.

    Raises:
        TypeError: `flat_sequence` is not a sequence. ValueError: it has more or fewer elements than there are leaves.

    >>> pack_sequence_as({"b": [0, 0], "a": 0}, [1, 2, 3])
    {'b': [2, 3], 'a': 1}
    """
    if isinstance(flat_sequence, str) or not isinstance(flat_sequence, Iterable):
        raise TypeError(f"pack_sequence_as: flat_sequence must be a sequence, got {flat_sequence!r}.")
    leaves = list(flat_sequence)
    count = len(flatten(structure))
    if len(leaves) != count:
        raise ValueError(
            f"pack_sequence_as: the structure has {count} leaves, but flat_sequence has {len(leaves)} elements. "
            f"Structure: {structure!r}."
        )
    remaining = iter(leaves)
    return map_structure_up_to(structure, lambda _: next(remaining), structure)


def assert_same_structure(a: object, b: object, check_types: object = None) -> None:
    """Check that two structures have one form: the same kinds of containers with the same keys and sizes.

    Args:
        a, b: the structures. All sorts of dicts count as one kind.
        check_types: accepted as in Keras, and of no effect.

    Raises:
        ValueError: they differ; the message says where.

    >>> assert_same_structure([(0, 1)], [(2, 3)])
    """
    _check_form(a, b, (), deeper=False)


def assert_same_paths(a: object, b: object) -> None:
    """Check that the same keys and positions lead to the leaves of two structures, whatever their containers.

    Raises:
        ValueError: they differ; the message says which do.

    >>> assert_same_paths([0, (1, 2)], (2, [3, 4]))
    """
    own, others = [{path for path, _ in flatten_with_path(structure)} for structure in (a, b)]
    if own != others:
        raise ValueError(
            "The structures don't have the same paths. Only the first has "
            f"{sorted(own - others, key=str)}, only the second {sorted(others - own, key=str)}."
        )


def traverse(func: Callable[[Any], object], structure: object, top_down: bool = True) -> Any:
    """Call `func` on a structure and all its parts; what it returns, unless None, takes the place of the part.

    Args:
        func: a function of one part. `MAP_TO_NONE` as its result stands for None.
        structure: the structure.
        top_down: call it on a part before its own parts, which are left out where it returns something; otherwise
            after them.

    Raises:
        TypeError: `func` can't be called.

    >>> traverse(lambda part: part + 1 if isinstance(part, int) else None, [1, (2, "a")])
    [2, (3, 'a')]
    """
    if not callable(func):
        raise TypeError(f"traverse: func must be callable, got {func!r}.")
    if top_down:
        found = func(structure)
        if found is not None or not is_nested(structure):
            return _found(found, structure)
        return _like(structure, {key: traverse(func, item, top_down) for key, item in _items(structure)})
    if is_nested(structure):
        structure = _like(structure, {key: traverse(func, item, top_down) for key, item in _items(structure)})
    return _found(func(structure), structure)


def _found(found: object, otherwise: object) -> object:
    if found is MAP_TO_NONE or isinstance(found, MAP_TO_NONE):
        return None
    return otherwise if found is None else found


def lists_to_tuples(structure: object) -> Any:
    """Return `structure` with tuples instead of lists.

    >>> lists_to_tuples([1, {"a": [2]}])
    (1, {'a': (2,)})
    """
    if not is_nested(structure):
        return structure
    made = _like(structure, {key: lists_to_tuples(item) for key, item in _items(structure)})
    return tuple(cast("list[object]", made)) if isinstance(made, list) else made


def map_shape_structure(func: Callable[[Any], object], structure: object) -> Any:
    """Apply `func` to the shapes in a structure: tuples and lists of integers and None count as leaves.

    >>> map_shape_structure(len, {"a": (None, 3), "b": [(1,), ()]})
    {'a': 2, 'b': [1, 0]}
    """
    if not callable(func):
        raise TypeError(f"map_shape_structure: func must be callable, got {func!r}.")
    if not is_nested(structure) or _is_shape(structure):
        return func(structure)
    return _like(structure, {key: map_shape_structure(func, item) for key, item in _items(structure)})


def _is_shape(structure: object) -> bool:
    return isinstance(structure, (list, tuple)) and all(
        item is None or isinstance(item, int) for item in cast("Iterable[object]", structure)
    )


# --- containers -----------------------------------------------------------------------------------------------------


def _items(structure: object) -> Iterator[tuple[object, object]]:
    """Yield the parts of a container, with their keys or positions."""
    if not isinstance(structure, dict):
        yield from enumerate(cast("Iterable[object]", structure))
        return
    mapping = cast("dict[str, object]", structure)
    keys = list(mapping) if isinstance(structure, OrderedDict) else sorted(mapping)
    for key in keys:
        yield key, mapping[key]


def _like(container: object, parts: Mapping[object, object]) -> object:
    """Return a container of the kind of `container`, with other parts."""
    if isinstance(container, dict):
        made = {key: parts[key] for key in cast("dict[object, object]", container)}
        if isinstance(container, defaultdict):
            return defaultdict(cast("defaultdict[object, object]", container).default_factory, made)
        return OrderedDict(made) if isinstance(container, OrderedDict) else made
    items = list(parts.values())
    if hasattr(container, "_fields"):
        return type(container)(*items)
    if isinstance(container, deque):
        return deque(items, cast("deque[Any]", container).maxlen)
    return tuple(items) if isinstance(container, tuple) else items


def _kind(structure: object) -> object:
    """Return the key that two containers share if they count as equal; None for a leaf."""
    return None if not is_nested(structure) else dict if isinstance(structure, dict) else type(structure)


def _check_arguments(name: str, func: object, structures: tuple[object, ...]) -> None:
    if not callable(func):
        raise TypeError(f"{name}: func must be callable, got {func!r}.")
    if not structures:
        raise ValueError(f"{name}: at least one structure is needed.")


def _check_form(a: object, b: Any, path: Path, deeper: bool) -> None:
    if deeper and not is_nested(a):
        return
    place = "".join(f"[{key!r}]" for key in path) or "the top"
    if _kind(a) is not _kind(b):
        raise ValueError(
            f"The structures don't have the same form: at {place} the first is of type {type(a).__name__}, the second "
            f"of type {type(b).__name__}."
        )
    if not is_nested(a):
        return
    own, others = [key for key, _ in _items(a)], [key for key, _ in _items(b)]
    if set(own) != set(others):
        raise ValueError(
            f"The structures don't have the same form: at {place} the first has the parts {own}, the second {others}."
        )
    for key, item in _items(a):
        _check_form(item, b[key], (*path, key), deeper)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=TREE_MODULE)


__all__ = [
    "MAP_TO_NONE",
    "assert_same_paths",
    "assert_same_structure",
    "flatten",
    "flatten_with_path",
    "is_nested",
    "lists_to_tuples",
    "map_shape_structure",
    "map_structure",
    "map_structure_up_to",
    "pack_sequence_as",
    "traverse",
]
