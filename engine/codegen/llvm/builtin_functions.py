"""Machine code as built-in functions of Python: a call takes some 40 nanoseconds, through ctypes almost a microsecond.

Such a function is CPython's own kind (`PyCFunction`, called by the protocol `METH_FASTCALL`): Python hands it the
addresses of its arguments, and no argument is converted. What it is bound to, here the table of a kernel, is its
`__self__`. Both are part of CPython's stable interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..host import lock
from .entry import DATA_OFFSET

_FASTCALL = 0x80  # METH_FASTCALL
_NAME = b"kernel"
PYTHON = "PyErr_Occurred", "PyBool_FromLong"
CALLS = "anabranch_call", "anabranch_call_endable"  # of a kernel; the second one may be ended early


class _Definition(ctypes.Structure):
    """A `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def print_functions() -> str:
    """Print the LLVM IR of the functions that Python calls; `lock` has the functions that they call."""
    declared = "declare ptr @PyErr_Occurred()\ndeclare ptr @PyBool_FromLong(i64)\n"
    begin, end = f"  call void @{lock.BEGIN_ENDABLE}()\n", f"  call void @{lock.END_ENDABLE}()\n"
    return declared + _print_call(CALLS[0]) + _print_call(CALLS[1], begin, end)


def _print_call(name: str, begin: str = "", end: str = "") -> str:
    """Print the call of a kernel: the table's memory begins with the address of its entry."""
    return f"""
define ptr @{name}(ptr %self, ptr %objects, i64 %count) {{
  %memory_at = getelementptr i8, ptr %self, i64 {DATA_OFFSET}
  %memory = load ptr, ptr %memory_at
  %entry = load ptr, ptr %memory
  %table_at = getelementptr i64, ptr %memory, i64 1
  %table = ptrtoint ptr %table_at to i64
{begin}  %code = call i32 %entry(i64 %table, ptr %objects)
{end}  %error = call ptr @PyErr_Occurred()
  %is_good = icmp eq ptr %error, null
  br i1 %is_good, label %good, label %bad
good:
  %refused = zext i32 %code to i64
  %result = call ptr @PyBool_FromLong(i64 %refused)
  ret ptr %result
bad: ; a step that has to end, or an interrupt
  ret ptr null
}}
"""


@cache
def _definition(address: int) -> _Definition:
    """Return the definition of a function of machine code, which has to stay where it is."""
    return _Definition(_NAME, address, _FASTCALL, None)


_make = ctypes.pythonapi.PyCFunction_NewEx
_make.restype, _make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]


def kernel_function(memory: np.ndarray[Any, Any], address: int) -> Callable[..., bool]:
    """Return a built-in function that calls a kernel with its arguments; it returns True if the kernel refuses them.

    Args:
        memory: int64, which the function holds: the address of the kernel's entry, then the table.
        address: that of one of `CALLS`.
    """
    made: Callable[..., bool] = _make(ctypes.addressof(_definition(address)), memory, None)
    return made


def entry_of(function: Any) -> int:
    """Return the address of the kernel's entry that a function calls; 0 if it is no `kernel_function`."""
    memory: Any = getattr(function, "__self__", None)
    return int(memory[0]) if type(memory) is np.ndarray and function.__name__ == _NAME.decode() else 0


__all__ = ["CALLS", "PYTHON", "entry_of", "kernel_function", "print_functions"]
