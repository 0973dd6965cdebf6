"""`check_callback`: what every callback has to satisfy."""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import numpy as np

from ...engine.testing.comparing import fail_unless
from ...layers import Dense
from ..models.api import Sequential
from ..models.fit_callbacks import Callback
from ..utils import set_random_seed
from .findings import Findings

if TYPE_CHECKING:
    from ..structures import Array

HOOKS = {
    **{f"on_{mode}_{end}": ("logs",) for mode in ("train", "test", "predict") for end in ("begin", "end")},
    **{
        f"on_{mode}_batch_{end}": ("batch", "logs") for mode in ("train", "test", "predict") for end in ("begin", "end")
    },
    **{f"on_epoch_{end}": ("epoch", "logs") for end in ("begin", "end")},
}


def check_callback(
    make: Callable[[], Callback], *, changes_training: bool = False, verbose: bool = True
) -> dict[str, int]:
    """Run the checks that every callback has to pass.

    Its methods take what `fit` hands them, and work without logs; `fit` with validation, `evaluate` and `predict` run
    with it, the same callback twice; weights and histories are those of a run without it.

    Args:
        make: makes a callback. It runs in an empty folder, which is removed.
        changes_training: the callback is there to change weights, learning rate or the number of epochs.
        verbose: print the counts.

    Returns:
        How many cases each check compared.

    Raises:
        AssertionError: something is wrong. All that is, is listed.
        TypeError: `make` makes no callback.

    >>> import anabranch as ab
    >>> ab.testing.check_callback(lambda: ab.callbacks.CSVLogger("log.csv"), verbose=False)["training"]
    3
    """
    findings = Findings("")
    with _empty_folder():
        callback = make()
        if not isinstance(callback, Callback):
            raise TypeError(f"check_callback takes a function that makes a callback; it made {callback!r}.")
        findings.subject = type(callback).__name__
        findings.run("signatures", lambda: _signatures(callback))
        findings.run("training", lambda: _training(make(), changes_training))
        findings.run("other calls", lambda: _other_calls(make()))
    return findings.finish(verbose)


def _signatures(callback: Callback) -> int:
    """Bind each method to the arguments that it is called with."""
    for name, arguments in HOOKS.items():
        method = getattr(callback, name)
        given = [0] if len(arguments) == 2 else []
        try:
            inspect.signature(method).bind(*given, logs={})
            inspect.signature(method).bind(*given)
        except TypeError as error:
            wanted = ", ".join(["self", *arguments[:-1], "logs=None"])
            raise AssertionError(f"{name}: {error}; it is called as {name}({wanted})") from error
    return len(HOOKS)


def _training(callback: Callback, changes_training: bool) -> int:
    """Compare two runs of `fit` with the callback with runs without it."""
    plain = _fitted([], 2)
    found = _fitted([callback], 2)
    if changes_training:
        return 1
    fail_unless(
        found[1] == plain[1],
        "histories differ from those without the callback; if it is there to change them: changes_training=True; got "
        f"{found[1]}, expected {plain[1]}",
    )
    same = all(np.array_equal(a, b) for a, b in zip(found[0], plain[0], strict=True))
    fail_unless(
        same, "weights differ from those without the callback; if it is there to change them: changes_training=True"
    )
    return 3


def _other_calls(callback: Callback) -> int:
    """Run `evaluate` and `predict` with the callback."""
    model, x, y = _model()
    model.evaluate(x, y, callbacks=[callback], verbose=0)
    model.predict(x, callbacks=[callback], verbose=0)
    return 2


def _fitted(callbacks: list[Callback], times: int) -> tuple[list[Array], list[dict[str, list[float]]]]:
    model, x, y = _model()
    histories = [
        model.fit(x, y, batch_size=8, epochs=3, validation_split=0.25, callbacks=callbacks, verbose=0).history
        for _ in range(times)
    ]
    return model.get_weights(), [dict(history) for history in histories]


def _model() -> tuple[Sequential, Array, Array]:
    set_random_seed(0)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(32, 4)).astype("float32")
    model = Sequential([Dense(8, "tanh"), Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model, x, x.sum(axis=1, keepdims=True)


@contextlib.contextmanager
def _empty_folder() -> Generator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
