"""Switches for the whole process: how much `fit` does at most, and whether progress is printed or logged."""

from __future__ import annotations

import operator
import warnings


class _Limits:
    epochs: int | None = None
    steps_per_epoch: int | None = None
    interactive: bool = True


def max_epochs() -> int | None:
    """Return how many epochs a `fit` makes at most; None for no limit."""
    return _Limits.epochs


def set_max_epochs(max_epochs: int | None) -> None:
    """Limit the epochs that each `fit` makes, for instance to try a script out; None for no limit.

    Raises:
        ValueError: it is neither a positive integer nor None.

    >>> set_max_epochs(2)
    >>> max_epochs()
    2
    >>> set_max_epochs(None)
    """
    _Limits.epochs = _checked("max_epochs", max_epochs)


def max_steps_per_epoch() -> int | None:
    """Return how many steps an epoch of `fit`, `evaluate` and `predict` has at most; None for no limit."""
    return _Limits.steps_per_epoch


def set_max_steps_per_epoch(max_steps_per_epoch: int | None) -> None:
    """Limit the steps of each epoch of `fit`, `evaluate` and `predict`; None for no limit.

    Raises:
        ValueError: it is neither a positive integer nor None.

    >>> import anabranch as ab
    >>> ab.config.set_max_steps_per_epoch(10)
    >>> ab.config.max_steps_per_epoch()
    10
    >>> ab.config.set_max_steps_per_epoch(None)
    """
    _Limits.steps_per_epoch = _checked("max_steps_per_epoch", max_steps_per_epoch)


def limited_epochs(epochs: int) -> int:
    """Return the number of epochs within the limit; say so where that makes it less."""
    limit = _Limits.epochs
    if limit is None or epochs <= limit:
        return epochs
    warnings.warn(f"Limiting epochs to {limit}, as set_max_epochs says; {epochs} were asked for.", stacklevel=4)
    return limit


def limited_steps(steps: int | None, available: int | None) -> int | None:
    """Return the number of steps of an epoch within the limit; say so where that makes it less.

    Args:
        steps: how many were asked for; None for all that the data have.
        available: how many the data have, if that is known.
    """
    limit, wanted = _Limits.steps_per_epoch, available if steps is None else steps
    if limit is None or (wanted is not None and wanted <= limit):
        return steps
    warnings.warn(f"Limiting steps_per_epoch to {limit}, as set_max_steps_per_epoch says.", stacklevel=5)
    return limit


def enable_interactive_logging() -> None:
    """Print what `fit` and its like have to say to standard output; that is how it is at first.

    >>> import anabranch as ab
    >>> ab.config.enable_interactive_logging()
    >>> ab.config.is_interactive_logging_enabled()
    True
    """
    _Limits.interactive = True


def disable_interactive_logging() -> None:
    """Log what `fit` and its like have to say, line by line, to the logger ``"anabranch"`` of `logging`, level INFO.

    >>> import anabranch as ab
    >>> ab.config.disable_interactive_logging()
    >>> ab.config.is_interactive_logging_enabled()
    False
    >>> ab.config.enable_interactive_logging()
    """
    _Limits.interactive = False


def is_interactive_logging_enabled() -> bool:
    """Test whether progress is printed, and not logged."""
    return _Limits.interactive


def show(text: str, end: str = "\n") -> None:
    """Print a text, or log it where interactive logging is off."""
    if _Limits.interactive:
        print(text, end=end, flush=True)
        return
    import logging  # which few scripts need

    logging.getLogger("anabranch").info("%s", text.strip("\b\r\n "))


def _checked(name: str, value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{name} must be a positive integer, or None for no limit; got {value!r}.")
    return value


def check_counts(method: str, **counts: int | None) -> None:
    """Check that arguments which count something are positive integers, or None; `epochs` may be 0.

    Raises:
        ValueError: one is not.
    """
    for name, value in counts.items():
        if value is None:
            continue
        least = 0 if name == "epochs" else 1
        if not hasattr(value, "__index__") or isinstance(value, bool) or operator.index(value) < least:
            whole = "a positive integer" if least else "an integer from 0 up"
            remedy = f" Round it: {name}=int({value!r})." if isinstance(value, float) and value >= 1 else ""
            got = value if type(value) is int else type(value).__name__
            raise ValueError(f"{method}({name}={value!r}): expected {whole}, got {got}.{remedy}")
