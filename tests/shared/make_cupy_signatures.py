"""Writes the table of cupy's names and parameters by which `device_arrays` refuses what cupy would refuse.

It needs no GPU. Run it with an environment in which a cupy is installed (``pip install cupy-cuda13x``):

    python tests/shared/make_cupy_signatures.py > tests/shared/cupy_signatures.txt

A line is a name, with its parameters if it is called; defaults are left out.
"""

import inspect
import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any

MODULES = ("", "fft.", "linalg.", "lib.stride_tricks.", "random.")
METHODS = ("accumulate", "at", "outer", "reduce")


class _Default:
    def __repr__(self) -> str:
        return "?"


def parameters_of(called: Any) -> str:
    """The parameters as text, without defaults. Functions of Cython say them in the first line of their docs."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return _documented(called)
    plain = [
        parameter.replace(annotation=parameter.empty)
        if parameter.default is parameter.empty
        else parameter.replace(annotation=parameter.empty, default=_Default())
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))


def _documented(called: Any) -> str:
    """``add(x1, x2, /, out=None, *, dtype=None)`` and ``from_dlpack(array, *, int copy=1) -> array``."""
    head = re.match(r"[\w.]+\((.*)\)", (called.__doc__ or "").partition("\n")[0].replace("\\*", "*"))
    if head is None:
        return "(*args, **kwargs)"
    names = [each.partition("=") for each in head[1].split(", ") if each]
    return "(" + ", ".join([name.split()[-1] + ("=?" if equals else "") for name, equals, _ in names]) + ")"


def lines(cupy: Any) -> Iterable[str]:
    """The lines of the table, for a module."""
    for prefix in MODULES:
        module = cupy
        for part in prefix.split(".")[:-1]:
            module = getattr(module, part)
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or inspect.ismodule(value):
                continue
            yield f"{prefix}{name}{'' if isinstance(value, type) else described(value)}"
            if isinstance(value, cupy.ufunc):
                yield from (
                    f"{prefix}{name}.{method}{described(getattr(value, method))}" for method in methods_of(value)
                )
    yield f"RawModule.__init__{parameters_of(cupy.RawModule)}"
    yield f"RawModule.get_function{parameters_of(cupy.RawModule.get_function)}"
    yield f"RawKernel.__call__{parameters_of(cupy.RawKernel.__call__)}"
    for name in dir(cupy.ndarray):
        if not name.startswith("_"):
            yield f"ndarray.{name}{described(getattr(cupy.ndarray, name))}"


def described(value: Any) -> str:
    return parameters_of(value) if callable(value) else ""


def methods_of(ufunc: Any) -> Iterable[str]:
    """Those that there are; of few ufuncs `at` does more than raise."""
    return [method for method in METHODS if method != "at" or ufunc._scatter_op is not None]


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU
        import cupy  # pyright: ignore[reportMissingImports]

        table = sorted(set(lines(cupy)))
    sys.stdout.write(f"# cupy {cupy.__version__}\n" + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
