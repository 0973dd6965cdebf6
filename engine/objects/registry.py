"""The registry of serialisable objects, and the form in which configs are written: Keras's own.

Every object is ``{"module", "class_name", "config", "registered_name"}``. Built-in classes are found by the Keras
module that their package announced with `register_builtins`; users' own by the name that `register_keras_serializable`
gave them, or in `custom_objects`. No code is imported because a file asks for it, but for anabranch's own. What else a
file is refused: `trust`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np

from ..common.dtypes import as_dtype, name_of
from ..common.keywords import nearest_name
from ..graph.state.variable import Variable
from ..graph.tensor import Tensor
from ..graph.value import Value
from .lambdas import lambda_from_config, lambda_to_config
from .trust import reads_a_file, refuses_code, safe_mode_scope

T = TypeVar("T")

_objects_by_name: dict[str, Any] = {}
_names_by_object: dict[Any, str] = {}
_registered_to_come: dict[str, str] = {}  # the modules that register names, which may not be imported yet
_builtins: dict[str, dict[str, Any]] = {}
_builtin_modules: dict[Any, str] = {}
_modules_to_come: dict[tuple[str, str], str] = {}  # the same by the module and name of what may not be imported yet

_scoped_objects: ContextVar[dict[str, Any] | None] = ContextVar("custom_objects", default=None)
# Apart, because objects may be written while others are read (a wrapper copies its layer), and their numbers differ.
_numbers_written: ContextVar[dict[int, tuple[int, Any]] | None] = ContextVar("numbers_written", default=None)
_own_names: ContextVar[dict[str, Any] | None] = ContextVar("own_names", default=None)
_objects_read: ContextVar[dict[int, Any] | None] = ContextVar("objects_read", default=None)


# --- names ----------------------------------------------------------------------------------------------------------


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[T], T]:
    """Make a class or function known by name, so that files that mention it can be loaded.

    Args:
        package: a prefix that keeps your names apart from others'.
        name: the name; by default that of the class or function.

    Raises:
        ValueError: a class has no `get_config`.

    >>> @register_keras_serializable(package="doctest")
    ... def halve(x):
    ...     return x / 2
    >>> get_registered_name(halve), get_registered_object("doctest>halve") is halve
    ('doctest>halve', True)
    """

    def register(item: T) -> T:
        if isinstance(item, type) and not callable(getattr(item, "get_config", None)):
            raise ValueError(f"{item.__name__} can't be registered: it has no get_config() method to save it with.")
        full_name = f"{package}>{name or getattr(item, '__name__', type(item).__name__)}"
        _objects_by_name[full_name] = item
        _names_by_object[item] = full_name
        return item

    return register


def register_builtins(module: str, objects: Mapping[str, Any]) -> None:
    """Announce classes and functions of anabranch under the Keras module that names them in files.

    Args:
        module: for instance ``"keras.layers"``.
        objects: public name to class or function.
    """
    _builtins.setdefault(module, {}).update(objects)
    for item in objects.values():
        _builtin_modules.setdefault(item, module)


def register_to_come(package: str, places: Mapping[str, str]) -> None:
    """Announce classes of anabranch that are registered by name, and imported when a file names them.

    Args:
        package: see `register_keras_serializable`.
        places: name of the class to the module that registers it.
    """
    _registered_to_come.update({f"{package}>{name}": place for name, place in places.items()})


class _ToCome:
    """Stands for what is imported when a file names it."""

    def __init__(self, module: str) -> None:
        self.module = module


def register_builtins_to_come(module: str, places: Mapping[str, str]) -> None:
    """Announce classes and functions of anabranch that are imported when a file names them.

    Args:
        module: the Keras module that names them in files, for instance ``"keras.layers"``.
        places: public name to the module that defines it.
    """
    _builtins.setdefault(module, {}).update({name: _ToCome(place) for name, place in places.items()})
    _modules_to_come.update({(place, name): module for name, place in places.items()})


def _keras_module(item: Any) -> str | None:
    """Return the Keras module that names a class or function of anabranch; None for others."""
    found = _builtin_modules.get(item)
    if found is None:
        found = _modules_to_come.get((getattr(item, "__module__", ""), getattr(item, "__qualname__", "")))
    return found


def get_registered_name(obj: Any) -> str:
    """Return the name under which `obj` is registered, or else its own name."""
    return _names_by_object.get(obj) or obj.__name__


def get_registered_object(
    name: str, custom_objects: Mapping[str, Any] | None = None, module_objects: Mapping[str, Any] | None = None
) -> Any:
    """Return the class or function registered as `name`; None if there is none."""
    for table in (custom_objects, _scoped_objects.get(), _objects_by_name, module_objects):
        if table is not None and name in table:
            return table[name]
    if name not in _registered_to_come:
        return None
    importlib.import_module(_registered_to_come[name])
    return _objects_by_name.get(name)


def get_custom_objects() -> dict[str, Any]:
    """Return all registered classes and functions by name. Adding to it registers, too."""
    return _objects_by_name


@contextmanager
def custom_object_scope(custom_objects: Mapping[str, Any] | None) -> Generator[None]:
    """Make names known inside the block: ``with custom_object_scope({"MyCell": MyCell}):``. None adds no name."""
    token = _scoped_objects.set({**(_scoped_objects.get() or {}), **(custom_objects or {})})
    try:
        yield
    finally:
        _scoped_objects.reset(token)


@contextmanager
def shared_writing_scope() -> Generator[None]:
    """Write an object inside of the block with the same number each time."""
    token = _numbers_written.set({})
    try:
        yield
    finally:
        _numbers_written.reset(token)


@contextmanager
def own_names_scope() -> Generator[dict[str, Any]]:
    """Write classes and functions that are not anabranch's under names of their own, inside of the block.

    The dict holds them by these names: as `custom_objects` it reads what was written, whoever registered them, and
    also if nobody did.
    """
    objects: dict[str, Any] = {}
    token = _own_names.set(objects)
    try:
        yield objects
    finally:
        _own_names.reset(token)


def _name_in_file(item: Any) -> str:
    """Return the name under which a class or function that is not anabranch's is written."""
    objects = _own_names.get()
    if objects is None:
        return get_registered_name(item)
    name = base = f"{item.__module__}>{item.__qualname__}"
    while objects.setdefault(name, item) is not item:
        name = f"{base}_{len(objects)}"
    return name


@contextmanager
def shared_reading_scope() -> Generator[None]:
    """Read objects that have the same number as one, inside of the block."""
    token = _objects_read.set({})
    try:
        yield
    finally:
        _objects_read.reset(token)


def find_by_name(kind: str, identifier: str, known: Mapping[str, Any]) -> Any:
    """Return the class or function that a string such as ``"relu"`` or ``"glorot_uniform"`` stands for.

    Args:
        kind: what is looked for, in words, for the error.
        identifier: the string.
        known: the built-in ones by name.

    Raises:
        ValueError: nothing has that name.
    """
    found = get_registered_object(identifier)
    if found is None:
        found = known.get(identifier)
    if found is not None:
        return found
    meant = nearest_name(identifier, known)
    hint = f" Did you mean {meant!r}?" if meant else ""
    names = ", ".join(sorted(name for name in known if name.islower()))
    raise ValueError(
        f"Unknown {kind} {identifier!r}.{hint} Expected one of: {names}; or a callable, or a name registered with "
        "ab.saving.register_keras_serializable."
    )


def get_instance(kind: str, identifier: Any, known: Mapping[str, Any]) -> Any:
    """Return the object that `identifier` stands for: None, a name, a config, a class, or the object itself.

    Raises:
        ValueError: it stands for nothing.
    """
    if identifier is None:
        return None
    found, given = identifier, cast("object", identifier)
    if isinstance(identifier, dict):
        found = deserialize_keras_object(cast("dict[str, Any]", identifier))
    elif isinstance(identifier, str):
        found = find_by_name(kind, identifier, known)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        size = " Layers are given no size of their input: it comes from the first call." if type(given) is int else ""
        raise ValueError(
            f"{given!r} of type {type(given).__name__} is no {kind}: expected a name, a config dict (with 'class_name' "
            f"and 'config') or a callable.{size}"
        )
    return found


# --- writing --------------------------------------------------------------------------------------------------------


def serialize_keras_object(obj: Any) -> Any:
    """Return `obj` in a form that JSON can hold and `deserialize_keras_object` reads.

    Raises:
        TypeError, ValueError: it can't be written: a tensor without a value, an object without `get_config`.

    >>> serialize_keras_object({"units": 3, "shape": (2, None), "dtype": np.dtype("float32")})
    {'units': 3, 'shape': [2, None], 'dtype': 'float32'}
    """
    if obj is None or (isinstance(obj, (bool, int, float, str)) and not isinstance(obj, np.generic)):
        return obj
    if isinstance(obj, (list, tuple)):
        return [serialize_keras_object(item) for item in cast("Sequence[Any]", obj)]
    if isinstance(obj, dict):
        return {key: serialize_keras_object(value) for key, value in cast("dict[str, Any]", obj).items()}
    special = _serialize_special(obj)
    if special is not None:
        return special
    if isinstance(obj, types.FunctionType):
        return _serialize_function(obj)
    if isinstance(obj, type):
        return _serialize_class(obj)
    if not callable(getattr(obj, "get_config", None)):
        raise TypeError(
            f"{obj!r} of type {type(obj).__name__} can't be written to a config: it has no get_config(). Expected "
            "numbers, strings, lists, dicts, arrays, registered functions, or objects with get_config()."
        )
    return _serialize_object(obj)


def _special(class_name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": config}


def _serialize_special(obj: Any) -> Any:
    """Return the config of bytes, arrays, slices, dtypes and the like; None for everything else."""
    if isinstance(obj, (complex, np.complexfloating)) or getattr(getattr(obj, "dtype", None), "kind", "") == "c":
        return _serialize_complex(obj)
    if isinstance(obj, np.generic):
        return cast("np.generic[Any]", obj).item()
    if isinstance(obj, bytes):
        return _special("__bytes__", value=obj.decode("latin-1"))
    if isinstance(obj, np.ndarray):
        array = cast("np.ndarray[Any, Any]", obj)
        return _special("__numpy__", value=array.tolist(), dtype=array.dtype.name)
    if isinstance(obj, (Variable, Value)):
        return _special("__tensor__", value=np.asarray(obj).tolist(), dtype=name_of(obj.dtype))
    if isinstance(obj, Tensor):
        raise TypeError(f"{obj!r} can't be written to a config: it has no value. Use a NumPy array.")
    if isinstance(obj, np.dtype):
        return cast("np.dtype[Any]", obj).name
    if isinstance(obj, slice):
        parts = cast("slice[Any, Any, Any]", obj)
        bounds = [serialize_keras_object(bound) for bound in (parts.start, parts.stop, parts.step)]
        return _special("__slice__", start=bounds[0], stop=bounds[1], step=bounds[2])
    if obj is Ellipsis:
        return _special("__ellipsis__")
    if isinstance(obj, types.FunctionType) and obj.__name__ == "<lambda>" and _own_names.get() is None:
        return _special("__lambda__", value=lambda_to_config(obj))
    return None


def _serialize_complex(obj: Any) -> dict[str, Any]:
    """Return complex numbers, which JSON lacks, as pairs; Keras can't write them at all."""
    if isinstance(obj, Tensor) and not isinstance(obj, (Variable, Value)):
        raise TypeError(f"{obj!r} can't be written to a config: it has no value. Use a NumPy array.")
    array: Any = np.asarray(obj)
    pairs: Any = np.stack([array.real, array.imag], -1)
    return _special("__complex__", value=pairs.tolist(), dtype=array.dtype.name)


def _serialize_function(function: Any) -> dict[str, Any]:
    module = _keras_module(function)
    if module is not None:
        name = get_registered_name(function)
        return {"module": module, "class_name": "function", "config": name, "registered_name": name}
    name = _name_in_file(function)
    return {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}


def _serialize_class(cls: type) -> dict[str, Any]:
    module = _keras_module(cls)
    name = get_registered_name(cls) if module else _name_in_file(cls)
    return {"class_name": "__typespec__", "module": module or cls.__module__, "config": name, "registered_name": None}


def _serialize_object(obj: Any) -> dict[str, Any]:
    cls = cast("type[Any]", type(obj))
    builtin = _keras_module(cls)
    config: dict[str, Any] = {
        "module": builtin or (None if cls.__module__ == "builtins" else cls.__module__),
        "class_name": cls.__name__,
        "config": _config_of(obj),
        "registered_name": None if builtin else _name_in_file(cls),
    }
    for key, method in (("build_config", "get_build_config"), ("compile_config", "get_compile_config")):
        getter = getattr(obj, method, None)
        value: Any = getter() if callable(getter) else None
        if value:
            config[key] = serialize_keras_object(value)
    written = _numbers_written.get()
    if written is not None:  # the object is kept, so that no other one gets its id
        config["shared_object_id"] = written.setdefault(id(obj), (len(written) + 1, obj))[0]
    return config


def _config_of(obj: Any) -> Any:
    try:
        return {key: serialize_keras_object(value) for key, value in obj.get_config().items()}
    except Exception as error:
        error.add_note(f"In the config of {type(obj).__name__} {getattr(obj, 'name', '')!r}.")
        raise


# --- reading --------------------------------------------------------------------------------------------------------


def is_serialized(value: Any) -> bool:
    """Test whether `value` is a dict that `serialize_keras_object` made out of an object."""
    return isinstance(value, dict) and {"class_name", "config"} <= cast("dict[str, Any]", value).keys()


def deserialize_keras_object(
    config: Any,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool | None = None,
    module_objects: Mapping[str, Any] | None = None,
    printable_module_name: str = "object",
) -> Any:
    """Return the object that `config` describes.

    Args:
        config: what `serialize_keras_object` gave, perhaps read from JSON; or a name among `module_objects`.
        custom_objects: classes and functions by name, beside the registered ones.
        safe_mode: refuse what could do harm: code (lambdas), names of other files, and classes that are neither
            registered nor anabranch's. By default as around, which is True.
        module_objects: more classes and functions by name. Of a name alone an object or the function is returned.
        printable_module_name: an argument of Keras 2, without effect here: errors give the name in the config.

    Raises:
        TypeError: it names a class or function that is not known, or whose constructor refuses the config.
        ValueError: it holds code, in safe mode.
    """
    if module_objects is not None:
        if isinstance(config, str):
            found = get_registered_object(config, custom_objects, module_objects)
            return config if found is None else found() if isinstance(found, type) else found
        custom_objects = {**module_objects, **(custom_objects or {})}
    if custom_objects:
        with custom_object_scope(custom_objects):
            return deserialize_keras_object(config, None, safe_mode)
    if safe_mode is not None or not reads_a_file():
        with safe_mode_scope(safe_mode is not False):
            return deserialize_keras_object(config)
    if isinstance(config, list):
        return [deserialize_keras_object(item) for item in cast("list[Any]", config)]
    if not isinstance(config, dict):
        return config
    if not is_serialized(config):
        return {key: deserialize_keras_object(value) for key, value in cast("dict[str, Any]", config).items()}
    return _deserialize_object(cast("dict[str, Any]", config))


def _deserialize_object(config: dict[str, Any]) -> Any:
    class_name = config["class_name"]
    if not isinstance(class_name, str):
        raise ValueError(f"A config has class_name={class_name!r}; expected text. It is damaged.")
    if class_name == "__keras_tensor__":
        return config  # the functional model that holds it records which tensor it is
    if class_name.startswith("__"):
        return _deserialize_special(class_name, config)
    if class_name == "function":
        return _find_function(config)
    shared, key = _objects_read.get(), config.get("shared_object_id")
    if shared is not None and key is not None and key in shared:
        return shared[key]
    cls = _find_class(config)
    if not isinstance(config["config"], dict):
        raise ValueError(
            f"{class_name!r} has config={_short(config['config'])}; expected a dict, as get_config() gives. "
            "It is damaged."
        )
    around_parts = getattr(cls, "around_parts", None)
    with nullcontext() if around_parts is None else around_parts(config["config"]):
        instance = _construct(cls, config)
    if config.get("build_config") and not instance.built:
        instance.build_from_config(config["build_config"])
    if config.get("compile_config"):
        instance.compile_from_config(config["compile_config"])
    if shared is not None and key is not None:
        shared[key] = instance
    return instance


def _construct(cls: Any, config: dict[str, Any]) -> Any:
    if not callable(getattr(cls, "from_config", None)):
        raise TypeError(f"{config['class_name']!r} can't be loaded: {cls!r} has no from_config() method.")
    try:
        return cls.from_config(_understood(cls, config["config"]))
    except TypeError as error:
        is_outermost = "could not make the object" not in str(error)  # an object inside may have said it already
        if not is_outermost or ("unexpected keyword" not in str(error) and "required" not in str(error)):
            raise
        raise TypeError(
            f"{cls.__name__}.from_config could not make the object from config {_short(config['config'])}: "
            f"{str(error).removesuffix('.')}. Expected get_config() to return what the constructor takes."
        ) from error


def _short(config: Any) -> str:
    text = repr(config)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _understood(cls: Any, config: Any) -> Any:
    """Return the config of a built-in class without what is None and not known: options of a newer Keras, not used."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    if _keras_module(cls) is None or any(p.kind == p.VAR_KEYWORD for p in parameters) or not isinstance(config, dict):
        return config
    names = {parameter.name for parameter in parameters}
    settings = cast("dict[str, Any]", config)
    return {name: value for name, value in settings.items() if value is not None or name in names}


def _deserialize_special(class_name: str, config: dict[str, Any]) -> Any:
    inner = config["config"]
    if class_name == "__ellipsis__":
        return Ellipsis
    if class_name == "__typespec__":
        return _find_class({**config, "class_name": inner})
    if class_name == "__slice__":
        return slice(*(deserialize_keras_object(_entry(config, bound)) for bound in ("start", "stop", "step")))
    if class_name in ("__numpy__", "__tensor__"):
        return np.array(_entry(config, "value"), dtype=as_dtype(_entry(config, "dtype")))
    if class_name == "__complex__":
        pairs = np.array(_entry(config, "value"), "float64")
        return (pairs[..., 0] + 1j * pairs[..., 1]).astype(as_dtype(_entry(config, "dtype")))
    if class_name == "__bytes__":
        return str(_entry(config, "value")).encode("latin-1")
    if class_name == "__lambda__":
        return _deserialize_lambda(_entry(config, "value"))
    raise TypeError(f"Unknown kind of value {class_name!r} in a config.")


def _entry(config: dict[str, Any], name: str) -> Any:
    """Return an entry of the config inside; a ValueError says which one is missing."""
    inner = config["config"]
    if not isinstance(inner, dict) or name not in inner:
        raise ValueError(
            f"A config holds a value of kind {config['class_name']!r} without {name!r}: got {_short(inner)}. "
            "It is damaged; expected what serialize_keras_object() gave."
        )
    return cast("dict[str, Any]", inner)[name]


def _deserialize_lambda(value: Any) -> Any:
    if refuses_code():
        raise ValueError(
            "The config holds a Python lambda: loading it runs code from the file. If you trust where it comes from, "
            "pass safe_mode=False; better, save a function registered with ab.saving.register_keras_serializable."
        )
    return lambda_from_config(value)


class UnknownObjectError(TypeError):
    """A config names a class or function that is not known in this process.

    Attributes:
        object_name: the name, with that of its package where it was registered with one.
        module: the module in which it was defined when the config was written, if that is known.
    """

    def __init__(self, message: str, object_name: str, module: str | None) -> None:
        super().__init__(message)
        self.object_name, self.module = object_name, module


def _find_class(config: dict[str, Any]) -> Any:
    """Return the class that a config names.

    Raises:
        UnknownObjectError: none is known by that name.
    """
    name, module, registered = config["class_name"], config.get("module"), config.get("registered_name")
    found = get_registered_object(registered) if registered else None
    if found is None:
        found = get_registered_object(name)
    if found is None:
        found = _find_builtin(module, name)
    if found is None and module in sys.modules and not refuses_code():
        # A class of a module that the program itself imported; nothing is imported here. Its from_config() would be
        # run on what the file says, so a file that is not trusted names registered classes only.
        candidate = getattr(sys.modules[module], name, None)
        found = candidate if inspect.isclass(candidate) and callable(getattr(candidate, "from_config", None)) else None
    if found is None:
        trust = " A file that you trust may name any imported class: safe_mode=False." if refuses_code() else ""
        raise UnknownObjectError(
            f"The config names class {registered or name!r} (of module {module!r}), which is not known here. Import "
            "the module that defines it and decorate the class with @ab.saving.register_keras_serializable(), or pass "
            f"custom_objects={{{name!r}: {name}}}, with its new class where it was renamed.{trust}",
            registered or name,
            module,
        )
    return found


def _find_builtin(module: str | None, name: str) -> Any:
    """Return a class or function of anabranch by its Keras module, where older Keras versions wrote other paths."""
    if module is not None and name in _builtins.get(module, {}):
        return _builtin(module, name)
    if module is not None and not module.startswith(("keras", "tensorflow", "tf_keras", "builtins")):
        return None
    segments = (module or "").split(".")
    found = [module for module, objects in _builtins.items() if name in objects]
    holders = sorted(found, key=lambda module: module.rpartition(".")[2] not in segments)
    return _builtin(holders[0], name) if holders else None


def _builtin(module: str, name: str) -> Any:
    """Return a class or function that was announced."""
    found = _builtins[module][name]
    return getattr(importlib.import_module(found.module), name) if isinstance(found, _ToCome) else found


def _find_function(config: dict[str, Any]) -> Any:
    name, module = config["config"], config.get("module")
    for candidate in (name, config.get("registered_name")):
        found = get_registered_object(candidate) if candidate and candidate != "function" else None
        if found is not None:
            return found
    found = _find_builtin(module, name)
    if found is None and module == "builtins":  # Keras up to 3.6 left out the package: of one such function it is that
        known = {**_objects_by_name, **(_scoped_objects.get() or {})}
        named = [item for key, item in known.items() if key.endswith(f">{name}")]
        found = named[0] if len(named) == 1 and not isinstance(named[0], type) else None
    if found is None:
        short = name.rpartition(">")[2]
        raise UnknownObjectError(
            f"The config names function {name!r}, which is not known here. Decorate it with "
            f"@ab.saving.register_keras_serializable(), or pass custom_objects={{{name!r}: {short}}}.",
            name,
            module,
        )
    return found
