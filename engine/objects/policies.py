"""Dtype policies by path, name and config (see `policy`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import Any, cast

from ..common.nest import is_mapping
from .floats import layer_dtype
from .policy import QUANTIZED_MODES, DTypePolicy, dtype_policy, set_global
from .registry import (
    deserialize_keras_object,
    register_builtins,
    register_builtins_to_come,
    serialize_keras_object,
)

_QUANTIZED = (
    "AWQDTypePolicy",
    "GPTQDTypePolicy",
    "Int4DTypePolicy",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
)  # in quantized_policies, which is imported when one of them is asked for


class DTypePolicyMap(DTypePolicy, MutableMapping[str, DTypePolicy]):
    """Policies by the paths of layers.

    Args:
        default_policy: for layers that no key fits: a policy, its name, or None for the global one.
        policy_map: a dict of policies (or names). A key is a path, or a pattern that a whole path matches.

    As the `dtype` of a layer, it gives that layer the policy for its path. The layer's `dtype_policy` is the map, and
    layers that it makes inside are given that: those of `MultiHeadAttention` are found by their own paths. A path that
    is a key itself gets that key's policy, whatever patterns match it.

    Raises:
        TypeError: the map is not a dict.
        ValueError: the default is a map itself, a key is there already, several patterns match a path.

    >>> policies = DTypePolicyMap("float32", {"encoder/.*": "mixed_float16"})
    >>> policies["encoder/dense"].name, policies["head"].name
    ('mixed_float16', 'float32')
    """

    def __init__(self, default_policy: Any = None, policy_map: dict[str, Any] | None = None) -> None:
        if isinstance(default_policy, DTypePolicyMap):
            raise ValueError("DTypePolicyMap: default_policy must be a single policy, got a DTypePolicyMap.")
        if policy_map is not None and not is_mapping(policy_map):
            raise TypeError(f"DTypePolicyMap: policy_map must be a dict of policies, got {policy_map!r}.")
        self._given = default_policy
        self._policies: dict[str, DTypePolicy] = {}
        self.update(policy_map or {})

    @property
    def default_policy(self) -> DTypePolicy:
        """The policy of layers that no key fits."""
        return get(self._given)

    @property
    def name(self) -> str:
        return f"map_{self.default_policy.name}"

    @property
    def compute_dtype(self) -> str:
        return self.default_policy.compute_dtype

    @property
    def variable_dtype(self) -> str:
        return self.default_policy.variable_dtype

    def __getitem__(self, key: str) -> DTypePolicy:
        if key in self._policies:
            return self._policies[key]
        found = [pattern for pattern in self._policies if re.fullmatch(pattern, key)]
        if len(found) > 1:
            raise ValueError(
                f"DTypePolicyMap: several patterns match the path {key!r}: {', '.join(map(repr, found))}. Make them "
                "exclude each other, or give the path a key of its own."
            )
        return self._policies[found[0]] if found else self.default_policy

    def __setitem__(self, key: str, policy: Any) -> None:
        if key in self._policies:
            raise ValueError(
                f"DTypePolicyMap: there is a policy for {key!r} already, {self._policies[key]!r}. Delete it first."
            )
        self._policies[key] = get(policy)

    def __delitem__(self, key: str) -> None:
        del self._policies[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __contains__(self, key: object) -> bool:
        return key in self._policies

    def get_config(self) -> dict[str, Any]:
        default = None if self._given is None else serialize_keras_object(self.default_policy)
        return {"default_policy": default, "policy_map": serialize_keras_object(self._policies)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DTypePolicyMap:
        return cls(config["default_policy"], config["policy_map"])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DTypePolicyMap)
            and other.default_policy == self.default_policy
            and other._policies == self._policies
        )

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<DTypePolicyMap default_policy={self.default_policy.name!r}, {self._policies}>"


FloatDTypePolicy = DTypePolicy
register_builtins("keras", {"DTypePolicy": DTypePolicy, "FloatDTypePolicy": DTypePolicy})
register_builtins("keras.dtype_policies", {"DTypePolicyMap": DTypePolicyMap})
register_builtins_to_come("keras.dtype_policies", dict.fromkeys(_QUANTIZED, f"{__package__}.quantized_policies"))


def _quantized(name: str) -> Any:
    from . import quantized_policies

    return quantized_policies.CLASSES[name]


def __getattr__(name: str) -> Any:
    if name in _QUANTIZED:
        return _quantized(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_dtype_policy(policy: Any) -> None:
    """Choose the policy of layers made from now on.

    Args:
        policy: a `DTypePolicy`, its name, or its config; None goes back to `floatx()`.

    Raises:
        TypeError: it is not one of these.
    """
    set_global(None if policy is None else get(policy))


def get(identifier: Any) -> DTypePolicy:
    """Return the policy that a name, a dtype, a config or a policy stands for; None stands for the global one.

    Raises:
        TypeError: it stands for no policy.
    """
    if identifier is None:
        return dtype_policy()
    if isinstance(identifier, DTypePolicy):
        return identifier
    if isinstance(identifier, dict):
        config = cast("dict[str, Any]", identifier)
        if config.get("class_name") == "DTypePolicyMap":
            return DTypePolicyMap.from_config(config["config"])
        if str(config.get("class_name")) in _QUANTIZED:
            return _quantized(config["class_name"])(**config["config"])
        return DTypePolicy(config.get("config", {}).get("name"))
    if isinstance(identifier, str) and identifier.startswith(QUANTIZED_MODES) and identifier not in QUANTIZED_MODES:
        from .quantized_policies import policy_by_name

        return policy_by_name(identifier)
    return DTypePolicy(identifier if isinstance(identifier, str) else layer_dtype(identifier))


def set_in_map(held: DTypePolicy, path: str, value: Any) -> bool:
    """Put a policy of floats into the map that a layer holds, for one path; return False if it holds none."""
    policy = get(value)
    if not isinstance(held, DTypePolicyMap) or isinstance(policy, DTypePolicyMap) or policy.quantization_mode:
        return False
    if path in held:
        del held[path]
    held[path] = policy
    return True


def serialize(dtype_policy: DTypePolicy) -> Any:
    """Return the config of a policy."""
    return serialize_keras_object(dtype_policy)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the policy that a config describes."""
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "DTypePolicy",
    "DTypePolicyMap",
    "FloatDTypePolicy",
    "deserialize",
    "dtype_policy",
    "get",
    "serialize",
    "set_dtype_policy",
]
