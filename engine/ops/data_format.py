"""The order of an image's axes: the default of the process, and the check of arguments named `data_format`."""

from __future__ import annotations

_FORMATS = ("channels_last", "channels_first")
_default = _FORMATS[0]


def image_data_format() -> str:
    """Return the default order of an image's axes: ``"channels_last"`` unless `set_image_data_format` changed it."""
    return _default


def set_image_data_format(data_format: str) -> None:
    """Choose the order of an image's axes where `data_format` is not given, for all threads of this process.

    Layers take the order when they are made, and keep it, also in files. Functions such as `ops.max_pool` take it at
    each call; those in a compiled function or step when it is traced, and it is traced again after a change. Functions
    of `anabranch.tf` do not follow it: as in TensorFlow, channels are last.

    Args:
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Raises:
        ValueError: it is neither.

    >>> import anabranch as ab
    >>> ab.config.set_image_data_format("channels_first")
    >>> layer = ab.layers.Conv2D(8, 3)
    >>> ab.config.set_image_data_format("channels_last")
    >>> layer.data_format, layer(ab.ops.ones((1, 3, 5, 5))).shape
    ('channels_first', (1, 8, 3, 3))
    """
    global _default
    _default = check_data_format("set_image_data_format", str(data_format))  # None is an error here


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
