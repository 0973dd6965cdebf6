"""Dtype policies: which dtype a layer computes in, and which one it keeps its weights in."""

from __future__ import annotations

from typing import Any, cast

from .floats import floatx, is_mixed, layer_dtype
from .registry import deserialize_keras_object, register_builtins, serialize_keras_object

_MODES = ("int8", "int4", "float8", "gptq", "awq")


class DTypePolicy:
    """The dtypes of a layer.

    Args:
        name: a dtype such as ``"float32"``, for both computation and weights; or ``"mixed_float16"`` or
            ``"mixed_bfloat16"``: compute in half precision, with weights in float32. None: the global policy's name.

    Raises:
        TypeError: `name` is no string, or no dtype is called so.
        ValueError: it names a policy of quantisation.

    Source of mixed precision: Micikevicius et al., "Mixed Precision Training", 2018.

    >>> policy = DTypePolicy("mixed_float16")
    >>> policy.compute_dtype, policy.variable_dtype
    ('float16', 'float32')
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = dtype_policy().name
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"DTypePolicy takes a name, such as 'float32' or 'mixed_float16'; got {name!r} of type "
                f"{type(name).__name__}."
            )
        if name.startswith(_MODES) and "_from_" in name:
            raise ValueError(
                f"The dtype policy {name!r} is one of quantisation, which is not available here. Expected a dtype "
                "such as 'float32', 'mixed_float16' or 'mixed_bfloat16'."
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
    def quantization_mode(self) -> None:
        """None: nothing is quantised."""
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


FloatDTypePolicy = DTypePolicy
register_builtins("keras", {"DTypePolicy": DTypePolicy, "FloatDTypePolicy": DTypePolicy})

_global: DTypePolicy | None = None


def dtype_policy() -> DTypePolicy:
    """The policy of layers that are given none: that of `set_dtype_policy`, or else `floatx()`."""
    return DTypePolicy(floatx()) if _global is None else _global


def set_dtype_policy(policy: Any) -> None:
    """Choose the policy of layers made from now on.

    Args:
        policy: a `DTypePolicy`, its name, or its config; None goes back to `floatx()`.

    Raises:
        TypeError: it is none of these.
    """
    global _global
    _global = None if policy is None else get(policy)


def get(identifier: Any) -> DTypePolicy:
    """The policy that a name, a dtype, a config or a policy stands for; None stands for the global one.

    Raises:
        TypeError: it stands for none.
    """
    if identifier is None:
        return dtype_policy()
    if isinstance(identifier, DTypePolicy):
        return identifier
    if isinstance(identifier, dict):
        config = cast("dict[str, Any]", identifier)
        return DTypePolicy(config.get("config", {}).get("name"))
    return DTypePolicy(identifier if isinstance(identifier, str) else layer_dtype(identifier))


def serialize(dtype_policy: DTypePolicy) -> Any:
    """The config of a policy."""
    return serialize_keras_object(dtype_policy)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """The policy that a config describes."""
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "DTypePolicy",
    "FloatDTypePolicy",
    "deserialize",
    "dtype_policy",
    "get",
    "serialize",
    "set_dtype_policy",
]
