"""Types of arguments that say which activation, initializer, regularizer or constraint is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..common.dtypes import DTypeLike
from ..graph import Tensor, Value

if TYPE_CHECKING:
    from .policies import DTypePolicy

Config: TypeAlias = Mapping[str, Any]
"""What `serialize` gives: a class or function by its name, and its arguments."""

ActivationLike: TypeAlias = str | Callable[..., Any] | Config | None
"""A name such as "relu", a function of a tensor, a config, or None for the identity; see `activations.get`."""

InitializerLike: TypeAlias = (
    str | Callable[..., Any] | Config | np.ndarray[Any, Any] | np.generic | float | Tensor | Value | None
)
"""A name such as "he_normal", an `Initializer`, a function of shape and dtype, a config, or the first values."""

RegularizerLike: TypeAlias = str | Callable[..., Any] | Config | None
"""A name such as "l2", a `Regularizer` or another function of a weight, a config, or None; see `regularizers.get`."""

ConstraintLike: TypeAlias = str | Callable[..., Any] | Config | None
"""A name such as "non_neg", a function of a weight, a config, or None; see `constraints.get`."""

PolicyLike: TypeAlias = "DTypeLike | DTypePolicy | Config"
"""The dtype of a layer: a dtype, a policy or its name, or a config; see `policies.get`."""
