"""Find the objects of a model that save weights, and their paths: Keras's rules, so that files go both ways.

A model is walked depth first, each object counted once, at its first path:

- A Sequential or functional model begins with its `layers`; then come attributes by name, private ones last, without
  those that any layer has.
- An attribute's path is its name; inside a list or dict it is the class's name in snake case, with ``_1``, ``_2`` for
  repeats, and ``container`` for a list in a list. Keras before 3.15 did not look into the latter: a model's layers in
  there were saved under its ``layers``, those of other layers not at all.

Matching a file with a model looks at everything before anything is assigned, and takes back what was assigned if an
object's own `load_own_variables` fails after all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeVar

import numpy as np

from ...engine.common.dtypes import DType, is_floating
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph.state.sharded import ShardedVariable
from ...engine.graph.state.variable import Variable
from ...engine.objects.names import to_snake_case
from ...layers.core.layer import Layer
from ...layers.core.layer_state import assign_values
from ...layers.quantizers.quantizable import QuantizableLayer, become_like_file
from ...optim.optimizer import Optimizer
from ..models.model import Model
from ..models.sequential import Sequential
from .archive import SavedFileError
from .old_keras import with_learning_rate
from .weights_file import Array, Group, Stored, WeightsReader

Saveable = Layer | Optimizer
_Held = TypeVar("_Held")
_SHOWN = 12
_IN_CONTAINER = re.compile(r"(^|/)container(_\d+)?(/|$)")


def walk(root: Saveable, left_out: Iterable[object] = (), nested: bool = True) -> Iterator[tuple[str, Saveable]]:
    """Yield every object below `root` that saves weights, `root` first, with its path.

    Args:
        root: a layer, a model or an optimizer.
        left_out: objects that are not given, nor what only they hold.
        nested: look into lists in lists, as Keras does from 3.15 on.
    """
    yield from _walk(root, "", {id(item) for item in left_out}, nested)


def _walk(item: Saveable, path: str, visited: set[int], nested: bool) -> Iterator[tuple[str, Saveable]]:
    if id(item) in visited:
        return
    visited.add(id(item))
    yield path, item
    for name, child in _attributes(item):
        yield from _walk_value(child, f"{path}/{name}" if path else name, visited, nested, frozenset())


def _walk_value(
    value: object, path: str, visited: set[int], nested: bool, above: frozenset[int]
) -> Iterator[tuple[str, Saveable]]:
    """Yield an attribute or an element: an object that saves, a container of them, or something else."""
    if isinstance(value, Saveable):
        yield from _walk(value, path, visited, nested)
    if not isinstance(value, (list, tuple, dict)) or id(value) in above:
        return
    counts: dict[str, int] = {}
    for child in list(value.values()) if isinstance(value, dict) else value:
        name = _name_in_container(child)
        if name is None or (name == "container" and not nested and not isinstance(child, Saveable)):
            continue
        count = counts.get(name, 0)
        counts[name] = count + 1
        inner = f"{path}/{name}_{count}" if count else f"{path}/{name}"
        yield from _walk_value(child, inner, visited, nested, above | {id(value)})


def _name_in_container(child: object) -> str | None:
    if isinstance(child, Saveable):
        return to_snake_case(type(child).__name__)
    return "container" if isinstance(child, (list, tuple, dict)) else None


def _attributes(item: Saveable) -> Iterator[tuple[str, object]]:
    """Yield the attributes to look into, in Keras's order."""
    # A name that all layers have is not skipped where it is an attribute of this one: of a user's class, then.
    skipped = _names_to_skip(_kind(item)) - {name for name in vars(item) if name in _class_names(_kind(item))}
    skipped |= type(item).untracked - {"optimizer"} if isinstance(item, Layer) else set()
    layers = _computed_layers(item)
    if layers is not None:
        yield "layers", layers
        skipped = skipped | {"layers"}
    names = [name for name in dir(item) if not name.startswith("__") and name not in skipped]
    for name in sorted(names, key=lambda name: f"~{name}" if name.startswith("_") else name):
        try:
            yield name, getattr(item, name)
        except Exception:
            continue  # a property that has no value yet; weights are not behind it


def _computed_layers(item: Saveable) -> Sequence[Layer] | None:
    """Return the layers that a Sequential or functional model is made of, without those that are mere attributes."""
    if isinstance(item, Sequential):
        return item.layers
    graph = item._layer_graph if isinstance(item, Model) else None
    return None if graph is None else graph.layers


def _kind(item: Saveable) -> type:
    return next(kind for kind in (Model, Layer, Optimizer) if isinstance(item, kind))


@functools.cache
def _names_to_skip(kind: type) -> frozenset[str]:
    """Return the names that every layer, model or optimizer has, without those that a user added."""
    if kind is Optimizer:
        return frozenset(dir(Optimizer(learning_rate=0.0, name="bare")))
    names = set(dir(Layer(name="bare")))
    if kind is Model:
        names = (names | set(dir(Model))) - {"layers", "optimizer"}
    return frozenset(names)


@functools.cache
def _class_names(kind: type) -> frozenset[str]:
    """Return the public names of methods and defaults of all layers, models or optimizers."""
    return frozenset(name for name in dir(kind) if not name.startswith("_"))


def collect(root: Saveable, left_out: Iterable[object] = ()) -> Iterator[Group]:
    """Yield what is to be saved, object by object, but for `left_out` (see `walk`)."""
    for path, item in walk(root, left_out):
        yield Group(path, item.name, _arrays_of(item))


def _as_array(value: object) -> Array:
    return value.stored_value() if isinstance(value, (Variable, ShardedVariable)) else np.asarray(value)


@dataclass
class Match:
    """The match of a file with a model: what will be assigned, and every difference in words."""

    found: list[tuple[str, Saveable]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    optimizer_differences: list[str] = field(default_factory=list)


def match(root: Saveable, reader: WeightsReader, is_new: bool = False, left_out: Collection[object] = ()) -> Match:
    """Compare a model with a file. Nothing is read but shapes, and nothing is assigned.

    A file without an optimizer's state, or a model without the optimizer, are no difference: weights go to models
    that are trained otherwise, or not at all.

    Args:
        root: the model.
        reader: the file.
        is_new: whether the model was just made, so that its optimizer's slots are what they start with. Then they
            need not be in the file, which may have been saved before the first step.
        left_out: objects that keep their weights, whatever the file has of them (see `walk`).
    """
    result = Match()
    claimed: set[str] = set()
    wanted = {id(item) for _, item in walk(root, left_out)}
    for path, item in _places_in(reader.index, root):
        claimed.add(path)
        if id(item) not in wanted:
            continue
        stored = reader.index.get(path, {})
        if isinstance(item, Optimizer):
            if stored:
                _build_like(item, root, stored)
                stored = _with_slots(item, stored, _present(item)) if is_new else stored
                stored = with_learning_rate(stored, _present(item))
                _compare(result, result.optimizer_differences, path, item, stored)
            continue
        if is_new and isinstance(item, QuantizableLayer):
            become_like_file(item, stored)
        _compare(result, result.differences, path, item, stored)
    for path in reader.index.keys() - claimed:
        if "optimizer" not in path.split("/") and not path.startswith("metrics/"):  # Keras 2 saved metrics, too
            shapes = ", ".join(str(one.shape) for one in reader.index[path].values())
            result.differences.append(f"{path}: the model has nothing here, the file has weights of shape {shapes}")
    return result


def _places_in(paths: Collection[str], root: Saveable) -> list[tuple[str, Saveable]]:
    """Return every object below `root` with its path in a file that has `paths`.

    A file that has nothing in lists in lists, though the model has weights there, is of Keras before 3.15.
    """
    places = list(walk(root))
    inside = [(path, item) for path, item in places if _IN_CONTAINER.search(path) and _store_of(item)]
    if not inside or any(_IN_CONTAINER.search(path) for path in paths):
        return places
    elsewhere = list(walk(root, nested=False))
    found = {id(item) for _, item in elsewhere}
    return [*elsewhere, *[place for place in inside if id(place[1]) not in found]]  # the last of them were not saved


def _build_like(optimizer: Optimizer, root: Saveable, stored: dict[str, Stored]) -> None:
    """Make the slots that the file has and an optimizer that made no step yet has not. New slots change no result."""
    if not optimizer.built and len(stored) > len(_store_of(optimizer)) and isinstance(root, Layer):
        optimizer.build(root.trainable_variables)


def _with_slots(optimizer: Optimizer, stored: dict[str, _Held], present: dict[str, _Held]) -> dict[str, _Held]:
    """Return what is stored, with what is present where the file was saved before the first step.

    Such a file has the counts of steps and the learning rates only, of all optimizers that the saved one was made of.
    """
    names = [variable.name.rsplit("/", 1)[-1] for variable in optimizer.saved_variables]
    initial = [str(place) for place, name in enumerate(names) if name in ("iteration", "learning_rate")]
    if stored.keys() != {str(position) for position in range(len(initial))}:
        return stored
    return present | {key: stored[str(position)] for position, key in enumerate(initial)}


def _present(optimizer: Optimizer) -> dict[str, Stored]:
    """Return what the optimizer holds, in the terms of a file."""
    return {key: Stored(array.shape, array.dtype) for key, array in _arrays_of(optimizer).items()}


def _store_of(item: Saveable) -> dict[str, object]:
    store: dict[str, object] = {}
    item.save_own_variables(store)
    return store


def _arrays_of(item: Saveable) -> dict[str, Array]:
    return {key: _as_array(value) for key, value in _store_of(item).items()}


def _compare(result: Match, differences: list[str], path: str, item: Saveable, stored: dict[str, Stored]) -> None:
    """Add `item` to what fits, or say why it does not."""
    expected = _store_of(item)
    if not _loads_itself(item):
        unlike = _differences(item, expected, stored)
        if unlike:
            differences.append(f"{_label(path, item)}: {'; '.join(unlike)}")
            return
    if expected or stored or _loads_itself(item):  # which may have more to do than to read
        result.found.append((path, item))


def _loads_itself(item: Saveable) -> bool:
    """Test whether the class has its own way to load, so that only it can say what fits."""
    own = type(item).load_own_variables
    return own is not Layer.load_own_variables and own is not Optimizer.load_own_variables


def _label(path: str, item: Saveable) -> str:
    kind = "optimizer" if isinstance(item, Optimizer) else "layer"
    return f"{kind} {item.name!r} ({path or 'the model itself'})"


def _differences(item: Saveable, expected: dict[str, object], stored: dict[str, Stored]) -> list[str]:
    if not expected and stored:
        state = "none" if item.built else "none because it is not built (call it on data first)"
        return [f"the file has {len(stored)} weights, the model {state}"]
    if len(expected) != len(stored):
        return [f"the model has {len(expected)} weights, the file {len(stored)}"]
    words: list[str] = []
    for key, value in expected.items():
        words += _difference(_title(key, value), value, stored.get(key))
    return words


def _title(key: str, value: object) -> str:
    return f"weight {key} {value.name!r}" if isinstance(value, (Variable, ShardedVariable)) else f"weight {key}"


def _difference(title: str, value: object, stored: Stored | None) -> list[str]:
    array = _as_array(value)
    if stored is None:
        return [f"{title} is not in the file"]
    if tuple(array.shape) != stored.shape:
        return [f"{title} has shape {tuple(array.shape)} in the model, {stored.shape} in the file"]
    if _rank(stored.dtype) > _rank(array.dtype):
        return [f"{title} is {array.dtype} in the model, {stored.dtype} in the file"]
    return []


def _rank(dtype: DType) -> int:
    """Return a dtype's rank: booleans fit integers, these floating-point, these complex numbers; not vice versa."""
    return 2 if is_floating(dtype) else {"b": 0, "i": 1, "u": 1}.get(dtype.kind, 3)


def describe(differences: list[str]) -> str:
    """Return differences as lines of a message."""
    lines = differences[:_SHOWN]
    if len(differences) > _SHOWN:
        lines.append(f"... and {len(differences) - _SHOWN} more")
    return "".join(f"\n  {line}" for line in lines)


def _load(item: Saveable, arrays: dict[str, Array]) -> None:
    if isinstance(item, Optimizer) and not _loads_itself(item):
        # As layers do: `assign` would only add to a graph, where one is being built.
        assign_values(item.name, item.saved_variables, [arrays[str(position)] for position in range(len(arrays))])
        return
    item.load_own_variables(arrays)


def _load_from(reader: WeightsReader, item: Saveable, arrays: dict[str, Array]) -> None:
    try:
        _load(item, arrays)
    except ValueError as error:
        if type(error) is not ValueError:  # an error of a user's own
            raise
        raise SavedFileError(f"{str(reader.path)!r}: {error}") from error


def _arrays_for(item: Saveable, path: str, reader: WeightsReader) -> dict[str, Array]:
    """Return a file's arrays for an object; the slots of an optimizer saved before its first step stay as they are."""
    arrays = reader.read(path)
    if not isinstance(item, Optimizer):
        return arrays
    present = _arrays_of(item)
    return {**present, **with_learning_rate(_with_slots(item, arrays, present), present)}


def assign(found: list[tuple[str, Saveable]], reader: WeightsReader) -> None:
    """Read everything, then give each object its arrays. After an error all variables are what they were.

    Objects with their own `load_own_variables` come first: they alone can still refuse.

    Raises:
        SavedFileError: an object refused its arrays by a ValueError.
    """
    arrays = {path: _arrays_for(item, path, reader) for path, item in found}
    variables = [variable for _, item in found for variable in item.variables]
    before = [variable.stored_value() for variable in variables]
    try:
        for path, item in sorted(found, key=lambda pair: not _loads_itself(pair[1])):
            _load_from(reader, item, arrays.pop(path))
    except BaseException:
        for variable, value in zip(variables, before, strict=True):
            variable.write_value(value)
        raise
