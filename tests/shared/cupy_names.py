"""Names of cupy, by the table that `make_cupy_signatures` wrote: calls that it would refuse are refused without it."""

import functools
import inspect
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("cupy_signatures.txt")
used: set[str] = set()  # what was called so far


@functools.cache
def _names() -> dict[str, str]:
    """Names as in ``linalg.svd`` and ``ndarray.sum``, with parameters as text; of what is not called, with none."""
    names: dict[str, str] = {}
    for line in TABLE.read_text("utf-8").splitlines()[1:]:
        name, paren, rest = line.partition("(")
        names[name] = paren + rest
    return names


@functools.cache
def _signature(name: str) -> inspect.Signature | None:
    parameters = _names()[name]
    if not parameters:
        return None
    namespace: dict[str, Any] = {}
    exec(f"def called{parameters.replace('=?', '=None')}: ...", namespace)
    return inspect.signature(namespace["called"])


def check_name(name: str) -> None:
    """Raises AttributeError: cupy has nothing of the name."""
    if name not in _names():
        raise AttributeError(f"cupy has no {name!r}")


def check_call(name: str, *arguments: Any, **options: Any) -> None:
    """Raises AttributeError, TypeError: cupy has nothing of the name, or it takes other arguments."""
    check_name(name)
    used.add(name)
    signature = _signature(name)
    if signature is not None:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"cupy.{name}{signature}: {error}") from None
