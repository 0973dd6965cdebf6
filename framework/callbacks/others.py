"""Callbacks made of functions, one that stops at NaN, and one that puts averaged weights in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...engine.queues.writing import writing_together
from ...engine.runtime import numerics
from ..models.fit_callbacks import Callback
from ..training.base_callback import Logs
from ..training.limits import show

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..structures import Array


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
        on_epoch_begin, on_epoch_end: functions of (epoch, logs).
        on_train_begin, on_train_end: functions of (logs).
        on_train_batch_begin, on_train_batch_end: functions of (batch, logs).
        **kwargs: any other method of `Callback`, or a method of the caller's own, which becomes an attribute.

    >>> losses = []
    >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., object] | None = None,
        on_epoch_end: Callable[..., object] | None = None,
        on_train_begin: Callable[..., object] | None = None,
        on_train_end: Callable[..., object] | None = None,
        on_train_batch_begin: Callable[..., object] | None = None,
        on_train_batch_end: Callable[..., object] | None = None,
        **kwargs: Callable[..., object],
    ) -> None:
        super().__init__()
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end,
            **kwargs,
        }
        for name, function in given.items():
            if name.startswith("on_") and not callable(getattr(Callback, name, None)):
                raise TypeError(f"LambdaCallback: {name!r} is no method of Callback.")
            if function is not None:
                setattr(self, name, function)


class TerminateOnNaN(Callback):
    """Stops training when the loss is NaN or infinite.

    Args:
        locate: check the results of every operation while training, as `ab.debugging.check_numerics` does. Then the
            first that makes a NaN or an infinity ends `fit` with a FloatingPointError that names layer, operation,
            step and batch. Steps are slower meanwhile.
        raise_error: end `fit` with a RuntimeError. `on_train_end` of callbacks is not called then, so that
            `BackupAndRestore` keeps its backup.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1, name="roots"), ab.layers.Activation(ab.ops.log)])
    >>> model.compile("sgd", "mse")
    >>> model.fit([[0.0]], [[1.0]], verbose=0, callbacks=TerminateOnNaN(locate=True))
    Traceback (most recent call last):
    FloatingPointError: ...
    """

    uses_optimizer = False

    def __init__(self, raise_error: bool = False, *, locate: bool = False) -> None:
        super().__init__()
        self.raise_error = raise_error
        self.locate = locate

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self.locate:
            numerics.enable_check_numerics()  # `fit` turns it off again, whatever happens

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        if self.raise_error:
            raise RuntimeError(
                f"Batch {batch}: the loss is {loss}. TerminateOnNaN(locate=True) reports which operation of which "
                "layer it comes from."
            )
        remedy = "TerminateOnNaN(locate=True) reports which operation of which layer it comes from."
        show(f"Batch {batch}: the loss is {loss}, terminating training. {remedy}")
        self.model.stop_training = True


class SwapEMAWeights(Callback):
    """Puts the moving averages of the weights in their places for evaluation and prediction, and takes them back.

    Args:
        swap_on_epoch: also between the end of an epoch and the beginning of the next, so that callbacks that save the
            model then save the averages. Put this callback before them.

    Raises:
        ValueError: at its first use, the model's optimizer keeps no averages.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile(ab.optimizers.SGD(0.1, use_ema=True), "mse")
    >>> history = model.fit([[1.0]], [[2.0]], verbose=0, validation_data=([[1.0]], [[2.0]]), callbacks=SwapEMAWeights())
    """

    kept_attributes = ("_weights",)

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = swap_on_epoch
        self._weights: list[Array] | None = None  # aside, while their averages are in place

    def _needs_whole_optimizer(self) -> bool:
        return True

    def _pairs(self) -> list[tuple[Variable, Variable]]:
        """Return the weights, each with its average."""
        optimizer = getattr(self.model, "optimizer", None)
        kept = [] if optimizer is None else [each for each in optimizer.makers if each.use_ema]
        if not kept:
            raise ValueError(
                "SwapEMAWeights needs an optimizer that keeps moving averages of the weights: compile the model with "
                f"an optimizer that has use_ema=True. It has {optimizer!r}."
            )
        pairs = [zip(each._trainable_variables, each._averages, strict=True) for each in kept if each.built]
        return [pair for of_one in pairs for pair in of_one]

    def _swap(self, wanted: bool) -> None:
        """Put the averages in the places of the weights if `wanted`, else the weights back. The averages stay."""
        if (self._weights is not None) == wanted:
            return
        weights = [weight for weight, _ in self._pairs()]
        before = [weight.numpy() for weight in weights]
        values = [average.numpy() for _, average in self._pairs()] if self._weights is None else self._weights
        with writing_together(weights):
            for weight, value in zip(weights, values, strict=True):
                weight.assign(value)
            self._weights = before if wanted else None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self.swap_on_epoch:
            self._swap(False)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.swap_on_epoch:
            self._swap(True)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._weights = None  # `fit` has put the averages in place for good

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._swap(True)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._swap(False)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._swap(True)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._swap(False)
