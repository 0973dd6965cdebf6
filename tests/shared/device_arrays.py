"""Arrays that behave like CuPy's, on NumPy: they never turn into NumPy arrays by themselves, nor mix with these.

`xp` stands for the module ``cupy``; NumPy's own functions accept the arrays, too, by NumPy's protocols, as with CuPy.
What CuPy has not, or takes other arguments for, is refused by the table of its signatures (`cupy_names`).
"""

import types
from typing import Any

import numpy as np
from shared.cupy_limits import check_operands
from shared.cupy_names import check_call, check_name

_METHODS = (".at", ".reduce", ".accumulate", ".outer")  # of ufuncs
_UPLOADS = {"array", "asarray", "ascontiguousarray", "asanyarray"}


class DeviceArray:
    """An array whose memory the host can't reach."""

    allocate: Any = None  # gives `data` for the memory of an array, where a device accounts for it

    def __init__(self, held: Any) -> None:
        self._held: Any = np.asarray(held)
        self.data = self.allocate(self._held) if self.allocate is not None else None

    def __getattr__(self, name: str) -> Any:
        check_name(f"ndarray.{name}")
        found = getattr(self._held, name)
        return _called(found, f"ndarray.{name}", strict=False, kept=self) if callable(found) else to_device(found)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self._held.shape, "typestr": self._held.dtype.str, "version": 3}

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = function.__name__ if method == "__call__" else f"{function.__name__}.{method}"
        return _called(getattr(function, method), name)(*inputs, **options)

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, options: Any) -> Any:
        path = f"{function.__module__}.{function.__name__}".partition(".")[2]
        return _called(function, path)(*arguments, **options)

    @property
    def real(self) -> Any:
        return to_device(self._held.real, always=True)

    @real.setter
    def real(self, value: Any) -> None:
        self._held.real = _to_host(value)

    @property
    def imag(self) -> Any:
        return to_device(self._held.imag, always=True)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._held.imag = _to_host(value)

    def get(self, stream: Any = None) -> Any:
        """A copy in the host's memory."""
        return self._held.copy()

    def __getitem__(self, key: Any) -> Any:
        return to_device(self._held[_to_host(key, strict=False)], always=True)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._held[_to_host(key, strict=False)] = _to_host(value)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Any:
        return (self[position] for position in range(len(self)))

    def __float__(self) -> float:
        return float(self._held)

    def __int__(self) -> int:
        return int(self._held)

    def __index__(self) -> int:
        return self._held.__index__()

    def __bool__(self) -> bool:
        return bool(self._held)

    def __complex__(self) -> complex:
        return complex(self._held)


def _operator(name: str) -> Any:
    def apply(self: DeviceArray, *others: Any) -> Any:
        return _called(getattr(self._held, name))(*others)

    return apply


_IN_PLACE = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
_BINARY = [*_IN_PLACE, "divmod", "matmul", "lshift", "rshift"]
for _name in (*_BINARY, *[f"r{name}" for name in _BINARY], *[f"i{name}" for name in _IN_PLACE]):
    setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))
DeviceArray.__hash__ = object.__hash__  # pyright: ignore[reportAttributeAccessIssue]


def to_device(value: Any, always: bool = False) -> Any:
    """Arrays, and arrays inside tuples and lists, moved to the device; of scalars, with `always`, arrays of rank 0."""
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and always):
        return DeviceArray(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[to_device(item, always) for item in value])
    if isinstance(value, (tuple, list)):
        return type(value)([to_device(item, always) for item in value])
    return value


def to_host(value: Any) -> Any:
    """The NumPy array behind a device's array; anything else as it is."""
    return value._held if isinstance(value, DeviceArray) else value


def _to_host(value: Any, strict: bool = True) -> Any:
    if isinstance(value, DeviceArray):
        return value._held
    if isinstance(value, np.ndarray) and strict:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, (tuple, list)):
        return type(value)([_to_host(item, strict) for item in value])
    if isinstance(value, dict):
        return {key: _to_host(item, strict) for key, item in value.items()}
    return value


def _called(function: Any, name: str = "", strict: bool = True, kept: Any = None) -> Any:
    """`function` over device arrays; `kept`, whose method it may be, is there as long as that.

    Args:
        function: NumPy's.
        name: of CuPy's, if there is to be one; of methods as ``ndarray.sum`` or ``add.at``.
        strict: whether NumPy's arrays are refused.
        kept: an array.
    """
    bound = (None,) if kept is not None or name.endswith(_METHODS) else ()

    def call(*arguments: Any, _kept: Any = kept, **options: Any) -> Any:
        if name:
            check_call(name, *bound, *arguments, **options)
            check_operands(name, *arguments)
        found = function(*_to_host(arguments, strict), **_to_host(options, strict))
        return to_device(found, always=True)

    return call


class _Module:
    """NumPy's functions over device arrays."""

    def __init__(self, module: types.ModuleType, prefix: str = "") -> None:
        self._module = module
        self._prefix = prefix

    def asnumpy(self, array: Any) -> Any:
        return np.array(to_host(array))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return _Module(found, f"{self._prefix}{name}.")
        if name == "ndarray":
            return DeviceArray
        path = self._prefix + name
        check_name(path)
        if isinstance(found, type) or not callable(found):
            return found
        called = _called(found, path, strict=name not in _UPLOADS)
        for method in _METHODS:
            if isinstance(found, np.ufunc):
                setattr(called, method[1:], _called(getattr(found, method[1:]), path + method))
        return called


xp: Any = _Module(np)
