"""`ExportServable`: a callback of `fit` that exports the model as it gets better."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...callbacks.monitor import MonitorCallback
from ...training.base_callback import Logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...structures import Arrays, InputSpecs


class ExportServable(MonitorCallback):
    """Exports the model after epochs, each time as the next version: a running server takes it over.

    Args:
        filepath: the folder of all versions, which `python -m anabranch serve` serves.
        monitor: the quantity that says which model is best; None for none.
        save_best_only: export only when the quantity improves.
        mode: "min", "max" or "auto", as of `MonitorCallback`.
        every: the number of epochs between two exports.
        input_signature, warmup, pad, images: see `Model.export`.

    Raises:
        ValueError: `save_best_only` without a quantity, or `every` is not at least 1.

    >>> import tempfile
    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,), name="x"), ab.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export = ab.callbacks.ExportServable(folder, monitor="loss", save_best_only=True)
    ...     history = model.fit([[1.0]], [[2.0]], epochs=3, verbose=0, callbacks=export)
    ...     ab.serving.load(folder).version
    3
    """

    kept_attributes = ("best",)

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str | None = None,
        save_best_only: bool = False,
        mode: str = "auto",
        *,
        every: int = 1,
        input_signature: InputSpecs | None = None,
        warmup: Arrays | None = None,
        pad: Mapping[str, object] | None = None,
        images: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        super().__init__(monitor or "", mode)
        if save_best_only and not monitor:
            raise ValueError("ExportServable(save_best_only=True): give monitor, such as 'val_loss'.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"ExportServable(every={every!r}): expected a number of epochs from 1 on.")
        self.filepath = os.fspath(filepath)
        self.save_best_only = save_best_only
        self.every = every
        self._options = {"input_signature": input_signature, "warmup": warmup, "pad": pad, "images": images}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if (epoch + 1) % self.every:
            return
        if self.save_best_only:
            value = self.monitored(logs)
            if value is not None:
                if not self.improves(float(value), self.best):
                    return
                self.best = float(value)
        self.model.export(self.filepath, verbose=False, **self._options)
