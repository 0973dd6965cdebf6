"""Machine code as built-in functions of Python: a call takes some 40 nanoseconds, through ctypes almost a microsecond.

Such a function is CPython's own kind (`PyCFunction`, called by the protocol `METH_FASTCALL`): Python hands it the
addresses of its arguments, and no argument is converted. What it is bound to is its `__self__`: an array of int64,
such as the table of a kernel. Both are part of CPython's stable interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..host import lock
from .entry import DATA_OFFSET, TYPE_OFFSET

_FASTCALL = 0x80  # METH_FASTCALL
PYTHON = "PyErr_Occurred", "PyBool_FromLong", "PyLong_AsLongLong", "PyLong_FromLongLong", "Py_IncRef"
CALLS = "anabranch_call", "anabranch_call_endable"  # of a kernel; the second one may be ended early
REGION, RUN, EMPTY = "anabranch_region", "anabranch_run", "anabranch_empty"
_SHOWN = {**dict.fromkeys(CALLS, "kernel"), REGION: "native", RUN: "kernel_of_numbers", EMPTY: "empty"}  # to profilers


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
    begin, end = f"  call void @{lock.BEGIN_ENDABLE}()\n", f"  call void @{lock.END_ENDABLE}()\n"
    refused, code = "PyBool_FromLong", "PyLong_FromLongLong"
    calls = _print_call(CALLS[0], refused) + _print_call(CALLS[1], refused, begin, end) + _print_call(REGION, code)
    return _OTHERS + calls


def _print_call(name: str, returned: str, begin: str = "", end: str = "") -> str:
    """Print the call of a kernel or a region: the address of its entry is in front of its table."""
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
  %answer = zext i32 %code to i64
  %result = call ptr @{returned}(i64 %answer)
  ret ptr %result
bad: ; a step that has to end, or an interrupt
  ret ptr null
}}
"""


_OTHERS = f"""
declare ptr @PyErr_Occurred()
declare ptr @PyBool_FromLong(i64)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare void @Py_IncRef(ptr)

; Call a function of the address of numbers: of arrays the addresses of their data, and integers. Returns the last
; number, which the function may have changed. The memory: the function's address, then that of the type of arrays.
define ptr @{RUN}(ptr %self, ptr %objects, i64 %count) {{
entry:
  %memory_at = getelementptr i8, ptr %self, i64 {DATA_OFFSET}
  %memory = load ptr, ptr %memory_at
  %function = load ptr, ptr %memory
  %array_at = getelementptr i64, ptr %memory, i64 1
  %array = load i64, ptr %array_at
  %numbers = alloca i64, i64 %count
  br label %next
next:
  %k = phi i64 [0, %entry], [%more, %put]
  %object_at = getelementptr ptr, ptr %objects, i64 %k
  %object = load ptr, ptr %object_at
  %type_at = getelementptr i8, ptr %object, i64 {TYPE_OFFSET}
  %type = load i64, ptr %type_at
  %is_array = icmp eq i64 %type, %array
  br i1 %is_array, label %data, label %integer
data:
  %data_at = getelementptr i8, ptr %object, i64 {DATA_OFFSET}
  %address = load i64, ptr %data_at
  br label %put
integer:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  br label %put
put:
  %number = phi i64 [%address, %data], [%value, %integer]
  %number_at = getelementptr i64, ptr %numbers, i64 %k
  store i64 %number, ptr %number_at
  %more = add i64 %k, 1
  %goes_on = icmp slt i64 %more, %count
  br i1 %goes_on, label %next, label %look
look:
  %wrong = call ptr @PyErr_Occurred()
  %is_right = icmp eq ptr %wrong, null
  br i1 %is_right, label %run, label %bad
run:
  call void %function(ptr %numbers)
  %error = call ptr @PyErr_Occurred()
  %is_good = icmp eq ptr %error, null
  br i1 %is_good, label %good, label %bad
good:
  %last = load i64, ptr %number_at
  %result = call ptr @PyLong_FromLongLong(i64 %last)
  ret ptr %result
bad:
  ret ptr null
}}

; Return a new array. The memory: NumPy's function, the types of arrays and of elements, the rank, and the shape.
define ptr @{EMPTY}(ptr %self, ptr %objects, i64 %count) {{
  %memory_at = getelementptr i8, ptr %self, i64 {DATA_OFFSET}
  %memory = load ptr, ptr %memory_at
  %new = load ptr, ptr %memory
  %array_at = getelementptr i64, ptr %memory, i64 1
  %array = load ptr, ptr %array_at
  %dtype_at = getelementptr i64, ptr %memory, i64 2
  %dtype = load ptr, ptr %dtype_at
  %rank_at = getelementptr i64, ptr %memory, i64 3
  %rank = load i32, ptr %rank_at
  %shape = getelementptr i64, ptr %memory, i64 4
  call void @Py_IncRef(ptr %dtype) ; which NumPy's function takes over
  %made = call ptr %new(ptr %array, ptr %dtype, i32 %rank, ptr %shape, ptr null, ptr null, i32 0, ptr null)
  ret ptr %made
}}
"""


@cache
def _definition(name: str, address: int) -> _Definition:
    """Return the definition of a function of machine code, which has to stay where it is."""
    return _Definition(_SHOWN[name].encode(), address, _FASTCALL, None)


@cache
def _maker() -> Any:
    """Return the function of Python's C interface; other Pythons than CPython have none, and no kernels."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make


def bound(name: str, address: int, memory: np.ndarray[Any, Any]) -> Callable[..., Any]:
    """Return a built-in function.

    Args:
        name: `REGION`, `RUN`, `EMPTY` or one of `CALLS`.
        address: of its machine code.
        memory: int64: what it is bound to.
    """
    made: Callable[..., Any] = _maker()(ctypes.addressof(_definition(name, address)), memory, None)
    return made


def entry_of(function: Any) -> int:
    """Return the address of the kernel's entry that a function calls; 0 if it calls none."""
    memory: Any = getattr(function, "__self__", None)
    return int(memory[0]) if type(memory) is np.ndarray and function.__name__ == _SHOWN[CALLS[0]] else 0


__all__ = ["CALLS", "EMPTY", "PYTHON", "REGION", "RUN", "bound", "entry_of", "print_functions"]
