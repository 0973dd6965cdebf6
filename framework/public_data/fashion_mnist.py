"""Fashion-MNIST: 70,000 pictures of clothing of 10 kinds, 28 x 28, grey."""

from __future__ import annotations

import gzip
import os

import numpy as np

from .fetching import Array, Split, fetch

_FOLDER = os.path.join("datasets", "fashion-mnist")


def load_data() -> Split:
    """Load 60,000 images to train with and 10,000 to test with.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: uint8 images ``[n, 28, 28]``, uint8 classes below 10 ``[n]``.

    Raises:
        OSError: a file is not in the cache and can't be fetched.
    """
    return _part("train"), _part("t10k")


def _part(name: str) -> tuple[Array, Array]:
    labels = _bytes(f"{name}-labels-idx1-ubyte.gz", 8)
    return _bytes(f"{name}-images-idx3-ubyte.gz", 16).reshape(len(labels), 28, 28), labels


def _bytes(name: str, header: int) -> Array:
    with gzip.open(fetch(name, name, cache_subdir=_FOLDER)) as stream:
        return np.frombuffer(stream.read(), np.uint8, offset=header)
