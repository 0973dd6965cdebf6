"""A `dataclass` that costs little to define: there are hundreds of ops, and a process uses a few dozen of them.

The standard one prints and compiles half a dozen methods for each class, which was a quarter of the time in which a
process gets to its first step. Here `__init__` is compiled when the first instance is made, and the other methods are
closures. A class whose fields are more than names with types, defaults and factories goes to the standard one.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

__all__ = ["dataclass"]

_Field = dataclasses.Field[Any]
_Methods = dict[str, Any]


def _decorate(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False) -> Any:
    """Decorate a class as `dataclasses.dataclass` does: instances, fields and inheritance are the same."""

    def define(cls: Any) -> Any:
        return _define(cls, frozen, eq, slots)

    return define if cls is None else define(cls)


def _define(cls: Any, frozen: bool, eq: bool, slots: bool) -> Any:
    fields = _find_fields(cls, frozen)
    if fields is None or (slots and "__slots__" in vars(cls)):
        return dataclasses.dataclass(frozen=frozen, eq=eq, slots=slots)(cls)
    for name in [name for name in fields if isinstance(cls.__dict__.get(name), dataclasses.Field)]:
        if fields[name].default is dataclasses.MISSING:
            delattr(cls, name)  # the class has no value
        else:
            setattr(cls, name, fields[name].default)
    names = tuple(fields)
    if slots:
        cls = _with_slots(cls, names, frozen)
    # What the functions of the standard module look at, and dataclasses that inherit from this one.
    cls.__dataclass_fields__ = fields
    cls.__dataclass_params__ = _parameters(frozen, eq)
    cls.__match_args__ = names
    methods = _starting(cls, tuple(fields.values()), frozen) | _showing(names)
    methods |= _comparing(cls, names, frozen) if eq else {}
    methods |= _refusing(cls, names) if frozen else {}
    for name, method in methods.items():
        if name == "__hash__" or name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _find_fields(cls: type, frozen: bool) -> dict[str, _Field] | None:
    """Return the fields by name, those of the bases first; None if the standard module has to look at them."""
    own = vars(cls)
    annotations: dict[str, Any] = own.get("__annotations__", {})
    if "__init__" in own or not all(map(_is_plain_type, annotations.values())):
        return None
    found: dict[str, _Field] = {}
    for base in cls.__mro__[:0:-1]:
        if dataclasses.is_dataclass(base) and _is_frozen(base) != frozen:
            return None  # which is an error, unless a base has no fields of its own
        found.update(_known_fields(base))
    for name, annotation in annotations.items():
        if not annotation.startswith("ClassVar"):
            found[name] = _field(name, annotation, own.get(name, dataclasses.MISSING))
    return found if all(map(_is_plain, found.values())) and _are_ordered(found.values()) else None


def _is_frozen(cls: Any) -> bool:
    return cls.__dataclass_params__.frozen


def _are_ordered(fields: Iterable[_Field]) -> bool:
    """Test whether no field without a default follows one that has one."""
    given = [_has_default(field) for field in fields]
    return given == sorted(given)


def _has_default(field: _Field) -> bool:
    return field.default is not dataclasses.MISSING or _has_factory(field)


def _has_factory(field: _Field) -> bool:
    return field.default_factory is not dataclasses.MISSING


def _is_plain_type(annotation: object) -> bool:
    return isinstance(annotation, str) and "InitVar" not in annotation and "KW_ONLY" not in annotation


def _is_plain(field: _Field) -> bool:
    """Test whether it takes part in everything, and its default is a value that instances may share."""
    ordinary = field.init and field.repr and field.compare and field.hash is None
    return ordinary and not field.kw_only and _may_be_shared(field)


def _may_be_shared(field: Any) -> bool:
    return type(field.default).__hash__ is not None


def _known_fields(base: Any) -> dict[str, _Field]:
    return {field.name: field for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else {}


@dataclasses.dataclass
class _Template:
    any: Any


_FIELD_TYPE: Any = dataclasses.fields(_Template)[0]._field_type  # pyrefly: ignore[missing-attribute] - no public name


def _field(name: str, annotation: str, default: Any) -> _Field:
    given: Any = default
    field: Any = given if isinstance(default, dataclasses.Field) else dataclasses.field(default=given)
    field.name, field.type, field.kw_only = name, annotation, field.kw_only is True
    field._field_type = _FIELD_TYPE
    return field


@cache
def _parameters(frozen: bool, eq: bool) -> Any:
    """Return what the standard module notes of such a class."""
    empty: Any = dataclasses.dataclass(frozen=frozen, eq=eq)(type("_Empty", (), {}))
    return empty.__dataclass_params__


def _with_slots(cls: Any, names: Sequence[str], frozen: bool) -> Any:
    """Return the class with slots for its fields, a new one: slots can't be added to a class."""
    bases: Sequence[Any] = cls.__mro__[1:-1]
    inherited: set[str] = {slot for base in bases for slot in base.__dict__.get("__slots__", ())}
    own: dict[str, Any] = cls.__dict__
    namespace = {name: value for name, value in own.items() if name not in {*names, "__dict__", "__weakref__"}}
    namespace["__slots__"] = tuple([name for name in names if name not in inherited])
    if frozen:
        namespace = _copying(names) | namespace
    made: Any = type(cls)(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


def _copying(names: Sequence[str]) -> _Methods:
    """Return the methods by which instances whose attributes can't be set are copied and pickled."""

    def get_state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def set_state(self: Any, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": get_state, "__setstate__": set_state}


def _starting(cls: Any, fields: Sequence[_Field], frozen: bool) -> _Methods:
    """Return an `__init__` that is replaced by the compiled one when it is called."""

    def initialise(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = compiled = _compiled(cls, fields, frozen)
        compiled(self, *values, **named)

    return {"__init__": initialise}


def _compiled(cls: Any, fields: Iterable[_Field], frozen: bool) -> Any:
    namespace: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters, body = ["self"], ["pass"]
    for field in fields:
        name, value = field.name, field.name
        if _has_factory(field):
            namespace[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}"
        if _has_default(field):
            namespace[f"_default_{name}"] = field.default  # missing where there is a factory
        parameters.append(f"{name}=_default_{name}" if _has_default(field) else name)
        # Frozen classes refuse to be set in any other way.
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(body)}", namespace)
    compiled: Any = namespace["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


def _showing(names: Iterable[str]) -> _Methods:
    def show(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return {"__repr__": show}


def _comparing(cls: type[object], names: Sequence[str], frozen: bool) -> _Methods:
    # Instances of classes with equal fields have hashes of their own: there are dozens of ops without any field. The
    # name's checksum is the same in each process, so that orders of sets do not depend on addresses.
    own_digest = crc32(f"{cls.__module__}.{cls.__qualname__}".encode())
    values = _getter(names)

    def equal(self: Any, other: Any) -> Any:
        # pyrefly: ignore[unknown-argument-type] - `other` is unknown once its type is compared
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def equal_class(self: Any, other: Any) -> Any:
        return type(other) is type(self) or NotImplemented

    def digest(self: Any) -> int:
        return hash(values(self)) ^ own_digest

    def digest_of_class(_: Any) -> int:
        return own_digest

    # Python puts None for the hash of a class that has an `__eq__` of its own.
    own_hash = cls.__dict__.get("__hash__") or ((digest if names else digest_of_class) if frozen else None)
    return {"__eq__": equal if names else equal_class, "__hash__": own_hash}


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the values of some attributes as a tuple."""
    if not names:
        return lambda _: ()
    get: Any = operator.attrgetter(*names)
    return get if len(names) > 1 else lambda instance: (get(instance),)


def _refusing(cls: Any, names: Sequence[str]) -> _Methods:
    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        above: Any = super(cls, self)
        above.__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        above: Any = super(cls, self)
        above.__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # which type checkers understand
else:
    dataclass = _decorate
