"""The builder of expressions: instructions, and the functions that are made of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from .expression import Expression, InstructionBuilder, UnsupportedError

FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "sigmoid", "erf", "erfc", "erfinv"),
    *("arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"),
    *("cbrt", "hypot", "logaddexp", "logaddexp2", "ldexp"),
)


class ExpressionBuilder(InstructionBuilder):
    """Records instructions; has the names that ops use in their expressions.

    Args:
        dtypes: see `InstructionBuilder`.
    """

    def _function(self, name: str, *inputs: Expression) -> Expression:
        """Return a function that `functions` or `functions64` has, by the type of the inputs."""
        from . import angles, functions, functions64, inverses, powers

        places = {"float": (functions,), "double": (functions64, angles, inverses, powers)}.get(inputs[0].type, ())
        for place in places:
            if name in FUNCTIONS and hasattr(place, name):
                return getattr(place, name)(self, *inputs)
        raise UnsupportedError(f"{name} of {inputs[0].type}")

    def exp(self, x: Expression) -> Expression:
        return self._function("exp", x)

    def log(self, x: Expression) -> Expression:
        return self._function("log", x)

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return partial(self._function, name)
        raise UnsupportedError(name)
