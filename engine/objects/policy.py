"""A dtype policy: which dtype a layer computes in, and which one it keeps its weights in; and the global one."""

from __future__ import annotations

from typing import Any

from ..common.nest import is_text
from .floats import floatx, is_mixed, layer_dtype

QUANTIZED_MODES = ("int8", "int4", "float8", "gptq", "awq")
"""The words with which names of policies of quantisation begin."""


class DTypePolicy:
    """The dtypes of a layer.

    Args:
        name: a dtype such as ``"float32"``, for both computation and weights; or ``"mixed_float16"`` or
            ``"mixed_bfloat16"``: compute in half precision, with weights in float32. None: the global policy's name.

    Raises:
        TypeError: `name` is not a string.
        ValueError: no dtype has this name, or it is that of a policy of quantisation.

    Source of mixed precision: Micikevicius et al., "Mixed Precision Training", 2018.

    >>> policy = DTypePolicy("mixed_float16")
    >>> policy.compute_dtype, policy.variable_dtype
    ('float16', 'float32')
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = dtype_policy().name
        if not is_text(name):
            raise TypeError(
                f"DTypePolicy takes a name, such as 'float32' or 'mixed_float16'; got {name!r} of type "
                f"{type(name).__name__}."
            )
        if name.startswith(QUANTIZED_MODES) and "_from_" in name:
            raise ValueError(
                f"The dtype policy {name!r} is one of quantisation: ab.dtype_policies.get({name!r}) makes it. "
                "DTypePolicy takes a dtype such as 'float32', 'mixed_float16' or 'mixed_bfloat16'."
            )
        self._compute_dtype = layer_dtype(name)
        self._variable_dtype = "float32" if is_mixed(name) else self._compute_dtype
        self._name = name if is_mixed(name) else self._compute_dtype

    @property
    def name(self) -> str:
        """The policy's name."""
        return self._name

    @property
    def compute_dtype(self) -> str:
        """The dtype that layers cast their inputs and weights to, and compute in."""
        return self._compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of weights."""
        return self._variable_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The name of the way in which weights are quantised; None if they are not."""
        return None

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DTypePolicy:
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DTypePolicy) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f'<DTypePolicy "{self.name}">'


_global: DTypePolicy | None = None


def dtype_policy() -> DTypePolicy:
    """Return the policy of layers that are given none: that of `set_dtype_policy`, or else `floatx()`."""
    return DTypePolicy(floatx()) if _global is None else _global


def set_global(policy: DTypePolicy | None) -> None:
    """Make a policy that of layers made from now on; None goes back to `floatx()`."""
    global _global
    _global = policy
