"""The order of an image's axes: the default of the process, and the check of arguments named `data_format`."""

from __future__ import annotations

_FORMATS = ("channels_last", "channels_first")


def image_data_format() -> str:
    """Return the order of an image's axes where none is given: ``"channels_last"``."""
    return _FORMATS[0]


def check_data_format(what: str, data_format: str | None) -> str:
    """Return `data_format` in lower case; the default order for None.

    Args:
        what: the function or layer whose argument it is, for the error.
        data_format: the argument as the user gave it.

    Raises:
        ValueError: there is no such order.
    """
    if data_format is None:
        return image_data_format()
    known = str(data_format).lower()
    if known not in _FORMATS:
        raise ValueError(f"{what}: data_format must be 'channels_last' or 'channels_first', got {data_format!r}.")
    return known
