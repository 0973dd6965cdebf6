"""Callbacks that report progress, and one that puts averaged weights in place."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...engine.queues.writing import writing_together
from .base import Callback, Logs
from .progress import Progress, make_progress, resolve_verbose

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..structures import Array

_TIMEOUT = 10.0  # seconds


class RemoteMonitor(Callback):
    """Sends the logs of each epoch to a server, as a POST request.

    Args:
        root: the server.
        path: the path on it.
        field: the name of the field of the form that holds the JSON text.
        headers: further HTTP headers.
        send_as_json: send the JSON text as it is, with content type ``application/json``.

    A server that does not answer is no reason to stop: the first failure is a warning, later ones are silent.

    Raises:
        ValueError: the address is not an HTTP address.

    >>> RemoteMonitor("http://localhost:9000", send_as_json=True).address
    'http://localhost:9000/publish/epoch/end/'
    """

    uses_optimizer = False

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: Mapping[str, str] | None = None,
        send_as_json: bool = False,
    ) -> None:
        super().__init__()
        if not root.startswith(("http://", "https://")):
            raise ValueError(f"RemoteMonitor: root must begin with http:// or https://, got {root!r}.")
        self.root = root
        self.path = path
        self.field = field
        self.headers = headers
        self.send_as_json = send_as_json
        self._has_warned = False

    @property
    def address(self) -> str:
        """The address to which logs are sent."""
        return self.root + self.path

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        import http.client
        import urllib.error
        import urllib.parse
        import urllib.request  # these are slow to import

        written = {"epoch": epoch, **{name: _plain(value) for name, value in (logs or {}).items()}}
        text = json.dumps(written)
        kind = "application/json" if self.send_as_json else "application/x-www-form-urlencoded"
        body = text if self.send_as_json else urllib.parse.urlencode({self.field: text})
        headers = {"Content-Type": kind, **(self.headers or {})}
        request = urllib.request.Request(self.address, body.encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                answer.read()
        except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the connection
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"RemoteMonitor could not reach {self.address!r} ({error}); training goes on. Check root and path, and "
            "that the server runs. Further failures are not reported.",
            stacklevel=3,
        )


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


class ProgbarLogger(Callback):
    """Prints the progress bar, or lines, that ``verbose`` asks for. `fit` does so by itself, unless it is given one.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1, kernel_initializer="zeros")])
    >>> model.compile("sgd", "mse")
    >>> _ = model.fit([[1.0]], [[0.0]], verbose=2, callbacks=ProgbarLogger())
    Epoch 1/1 - 1/1 - ... - loss: 0.0000
    """

    uses_optimizer = False

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._in_fit = False
        self._logs: Logs = {}
        self._done = 0

    def _begin(self, title: str) -> None:
        verbose = resolve_verbose(self.params.get("verbose", "auto"))
        self._logs, self._done = {}, 0
        self._progress = make_progress(verbose, title, self.params.get("steps"), lambda: self._logs)

    def _show(self, batch: int, logs: Logs | None) -> None:
        self._done, self._logs = batch + 1, logs or {}
        if self._progress is not None and self._progress.is_due():
            self._progress.redraw(self._done)

    def _end(self, logs: Logs | None) -> None:
        if self._progress is not None:
            self._progress.close(self._done or self.params.get("steps") or 0, logs or {})
        self._progress = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._in_fit = True  # validation is silent

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._in_fit = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._begin(f"Epoch {epoch + 1}/{self.params.get('epochs', 1)}")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._end(logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._show(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._begin("")

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._show(batch, logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._end(logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._begin("")

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._show(batch, None)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._end(None)


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
