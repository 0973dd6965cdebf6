"""Values of op attributes as JSON, and back: what a saved graph says of an operation besides its inputs.

JSON's own values stand for themselves, and lists for tuples; everything else is an object with one telling key:
``{"dtype": "float32"}``, ``{"array": 3}``. Classes are named, never imported: a name is looked up in the module of the
op's own class, so that a file can't ask for anything else.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from types import EllipsisType
from typing import Any, TypeGuard

import numpy as np

from ..common.dtypes import as_dtype, is_dtype, name_of
from ..common.nest import is_mapping, is_sequence
from ..graph.op import Op, as_scalar_or_array
from ..graph.region import Region
from ..graph.spec import ArraySpec, FrameSpec, Spec, StoreSpec, TensorSpec
from ..graph.state.resource import NamedResource
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..ops.base import is_numpy
from ..ops.containers.record_value import RecordSpec
from ..ops.random.keys import SeedGenerator
from ..ops.registered import RegisteredFunction


class SavedGraphError(ValueError):
    """A graph can't be saved, or a file can't be read as one. The message names the operation and the file."""

    is_located = False  # whether it names the operation already


# --- attributes -----------------------------------------------------------------------------------------------------


_field_names: weakref.WeakKeyDictionary[type[Op], list[str]] = weakref.WeakKeyDictionary()


def field_names(cls: type[Op]) -> list[str]:
    """Return the attributes that make an op again: the fields of a dataclass, else the constructor's parameters."""
    found = _field_names.get(cls)
    if found is None:
        found = _field_names[cls] = _found_field_names(cls)
    return found


def _found_field_names(cls: type[Op]) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    if cls.__init__ is object.__init__:
        return []
    return list(inspect.signature(cls).parameters)


def _class_in_module_of(cls: type[Op], name: str) -> Any:
    """Return the dataclass or enumeration called `name` in the module of an op's class."""
    found = vars(sys.modules[cls.__module__]).get(name)
    if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, Enum)):
        return found
    raise SavedGraphError(f"module {cls.__module__!r} has no dataclass or enumeration {name!r}")


def _is_slice(value: Any) -> TypeGuard[Any]:
    return isinstance(value, slice)


# --- writing --------------------------------------------------------------------------------------------------------


class ValueWriter:
    """Writes attributes. What is more than a value is left to the functions that it is given.

    Args:
        tensor, region, resource: what stands in the file for a tensor, a region, and state: a variable, a generator or
            a named resource.
        array: keeps an array and gives its number.
    """

    def __init__(
        self,
        tensor: Callable[[Symbol], Any],
        region: Callable[[Region], int],
        resource: Callable[[Any], int],
        array: Callable[[Any], int],
    ) -> None:
        self._tensor = tensor
        self._region = region
        self._resource = resource
        self._array = array

    def write(self, value: Any, cls: type[Op], where: str) -> Any:
        """Return `value`, found at `where` in an op of class `cls`, as JSON.

        Raises:
            SavedGraphError: it is of a kind that can't be written, such as a function.
        """
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if is_sequence(value) and type(value) is tuple:
            items: Sequence[Any] = value
            return [self.write(item, cls, f"{where}[{position}]") for position, item in enumerate(items)]
        written = self._number(value)
        if written is None:
            written = self._object(value)
        if written is None:
            written = self._container(value, cls, where)
        if written is None:
            raise SavedGraphError(
                f"its attribute {where!r} holds {_kind(value)}, of which nothing that runs again can be kept or sent. "
                f"{_ADVICE if callable(value) else 'Compute it with ops of the graph instead'}"
            )
        return written

    def _number(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return None
        if is_numpy(value):
            return {"array": self._array(value)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, complex):
            return {"complex": [str(value.real), str(value.imag)]}
        return None

    def _object(self, value: Any) -> Any:
        if is_dtype(value):
            return {"dtype": name_of(value)}
        if isinstance(value, (TensorSpec, ArraySpec, FrameSpec)):
            return {"spec": write_spec(value)}
        if isinstance(value, Symbol):
            return {"tensor": self._tensor(value)}
        if isinstance(value, Region):
            return {"region": self._region(value)}
        is_named = isinstance(value, NamedResource) and "kind" in vars(type(value))  # no subclass is taken for its base
        if is_named or isinstance(value, (Variable, SeedGenerator)):
            return {"resource": self._resource(value)}
        if isinstance(value, RegisteredFunction):
            return {"function": value.name}
        return {"ellipsis": True} if isinstance(value, EllipsisType) else None

    def _container(self, value: Any, cls: type[Op], where: str) -> Any:
        if _is_slice(value):
            bounds = (value.start, value.stop, value.step)
            return {"slice": [self.write(bound, cls, where) for bound in bounds]}
        if is_sequence(value) and type(value) is list:
            return {"list": [self.write(item, cls, f"{where}[{position}]") for position, item in enumerate(value)]}
        if is_mapping(value):
            items = value.items()
            return {"dict": [[self.write(k, cls, where), self.write(v, cls, f"{where}[{k!r}]")] for k, v in items]}
        name = type(value).__name__
        if isinstance(value, Enum):
            _class_in_module_of(cls, name)
            return {"enum": name, "member": value.name}
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return None
        _class_in_module_of(cls, name)
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {
            "class": name,
            "fields": {field: self.write(getattr(value, field), cls, f"{where}.{field}") for field in fields},
        }


_ADVICE = (
    "Compute it with ops of the graph instead; or register the function by name, "
    "@ab.distribute.register_function('name'), here and in the process that is to call it"
)


def _kind(value: Any) -> str:
    return "a function" if callable(value) else f"a value of type {type(value).__name__}"


def write_spec(spec: Spec) -> Any:
    """Return a spec as JSON: ``["float32", [2, null]]``, ``{"element": ...}`` for an array (with its key
    for a store), ``"frame"``, ``"record"``."""
    if isinstance(spec, TensorSpec):
        return [name_of(spec.dtype), None if spec.shape is None else list(spec.shape)]
    if isinstance(spec, ArraySpec):
        written = {"element": write_spec(spec.element), "size": spec.size, "empty": spec.empty}
        return written | ({"key": write_spec(spec.key)} if isinstance(spec, StoreSpec) else {})
    return "record" if isinstance(spec, RecordSpec) else "frame"


# --- reading --------------------------------------------------------------------------------------------------------


class ValueReader:
    """Reads what `ValueWriter` wrote.

    Args:
        tensor, region, resource, array: from what stands in the file to the thing itself.
    """

    def __init__(
        self,
        tensor: Callable[[Any], Symbol],
        region: Callable[[int], Region],
        resource: Callable[[int], Any],
        array: Callable[[int], Any],
    ) -> None:
        self._by_key: dict[str, Callable[[Any], Any]] = {
            "array": lambda number: as_scalar_or_array(array(number)),
            "float": float,
            "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
            "dtype": as_dtype,
            "spec": read_spec,
            "tensor": tensor,
            "region": region,
            "resource": resource,
            "ellipsis": lambda _: ...,
            "function": RegisteredFunction,
        }

    def read(self, value: Any, cls: type[Op]) -> Any:
        """Return a value of an op of class `cls`.

        Raises:
            SavedGraphError: it is not a value that is known here.
        """
        if is_sequence(value):
            return tuple([self.read(item, cls) for item in value])
        if not is_mapping(value):
            return value
        key = next(iter(value), "")
        if key in self._by_key:
            return self._by_key[key](value[key])
        if key == "slice":
            return slice(*self.read(value[key], cls))
        if key == "list":
            return list(self.read(value[key], cls))
        if key == "dict":
            return dict(self.read(value[key], cls))
        if key == "enum":
            return _class_in_module_of(cls, value[key])[value["member"]]
        if key != "class":
            raise SavedGraphError(f"values of the kind {key!r} are not known in this version")
        fields = {name: self.read(item, cls) for name, item in value["fields"].items()}
        return _class_in_module_of(cls, value[key])(**fields)


def read_spec(value: Any) -> Any:
    """Read a spec from JSON: the reverse of `write_spec`."""
    if value in ("frame", "record"):
        return FrameSpec() if value == "frame" else RecordSpec()
    if is_mapping(value):
        known = (read_spec(value["element"]), value["size"], value["empty"])
        return StoreSpec(*known, read_spec(value["key"])) if "key" in value else ArraySpec(*known)
    dtype, shape = value
    return TensorSpec(None if shape is None else tuple(shape), as_dtype(dtype))


# --- arrays ---------------------------------------------------------------------------------------------------------


def storable(array: Any) -> Any:
    """Return an array as one that every NumPy can keep: in C order, other numbers than NumPy's own as their bits."""
    array = np.asarray(array, order="C")
    if array.dtype.isbuiltin == 1 or array.dtype.kind == "T":
        return array
    if array.dtype.kind in "biufc":  # of the other byte order
        return array.astype(array.dtype.newbyteorder("="))
    return array.view(f"uint{8 * array.dtype.itemsize}")


def restored(array: Any, dtype: str) -> Any:
    """Read an array: the reverse of `storable`."""
    wanted = as_dtype(dtype)
    return array if array.dtype == wanted else array.view(wanted)
