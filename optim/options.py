"""The options that every optimizer has beside its own hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ..engine.common.keywords import keywords_of, unexpected_keywords


class OptimizerOptions(TypedDict, total=False):
    """The options of every optimizer, beside its own hyperparameters. See `Optimizer`."""

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None


def check_option_names(cls: type, options: Mapping[str, Any], others: Sequence[str] = ("learning_rate",)) -> None:
    """Check that optimizers have options of these names, or that they are among `others`.

    Raises:
        TypeError: there is one that none has.
    """
    unknown = set(options) - OptimizerOptions.__annotations__.keys() - {*others}
    if unknown:
        raise unexpected_keywords(cls.__name__, unknown, [*keywords_of(cls), *OptimizerOptions.__annotations__])


__all__ = ["OptimizerOptions", "check_option_names"]
