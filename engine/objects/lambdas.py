"""Lambdas in configs. Their code is Python bytecode: only the same Python version can read it back."""

from __future__ import annotations

import base64
import marshal
import types
import warnings
from collections.abc import Sequence
from typing import Any, cast


def lambda_to_config(function: types.FunctionType) -> dict[str, Any]:
    """Return a lambda as Keras writes it: its bytecode in base64, defaults and the values that it closes over."""
    warnings.warn(
        "A lambda is saved as Python bytecode: the file loads with safe_mode=False only, and in this Python version "
        "only. Use a named function registered with ab.saving.register_keras_serializable instead.",
        stacklevel=4,
    )
    closure = [cell.cell_contents for cell in function.__closure__] if function.__closure__ else None
    code = base64.b64encode(marshal.dumps(function.__code__)).decode("ascii")
    return {"code": code, "defaults": list(function.__defaults__ or ()) or None, "closure": closure}


def lambda_from_config(config: Any) -> types.FunctionType:
    """Return the lambda again. This makes code out of data: the caller has asked whether the data are trusted.

    Raises:
        ValueError: the bytecode is not of this Python version.
    """
    fields: Sequence[Any] = config  # older files hold a list of the three
    if isinstance(config, dict):
        named = cast("dict[str, Any]", config)
        fields = [named["code"], named["defaults"], named["closure"]]
    raw, defaults, closure = fields
    try:
        code = marshal.loads(base64.b64decode(raw))
    except (ValueError, EOFError, TypeError) as error:
        raise ValueError(
            f"A lambda in the config can't be read: it was saved by another Python version. ({error})"
        ) from error
    cells = None if closure is None else tuple(types.CellType(value) for value in closure)
    scope = {"__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(code, scope, "<lambda>", None if defaults is None else tuple(defaults), cells)
