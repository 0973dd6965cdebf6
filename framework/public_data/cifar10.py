"""CIFAR-10: 60,000 photographs of 10 kinds of things, 32 x 32, in colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engine.ops.data_format import image_data_format
from .fetching import Array, Split, fetch_from
from .plain_objects import read_objects

_ORIGIN = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_HASH = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


def load_data() -> Split:
    """Load 50,000 images to train with and 10,000 to test with.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: uint8 images ``[n, 32, 32, 3]``, uint8 classes ``[n, 1]``. The images
        are ``[n, 3, 32, 32]`` where that is the default order (`config.set_image_data_format`).

    Raises:
        OSError: the file is not in the cache and can't be fetched.
    """
    folder = fetch_from(_ORIGIN, "cifar-10-batches-py-target", _HASH, extract=True) / "cifar-10-batches-py"
    parts = [read_batch(folder / f"data_batch_{number}", "labels") for number in range(1, 6)]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return (images, labels), read_batch(folder / "test_batch", "labels")


def read_batch(path: Path, label_key: str) -> tuple[Array, Array]:
    """Return the images and labels ``[n, 1]`` of one file of CIFAR; the images in the default order of axes."""
    with open(path, "rb") as stream:
        found = read_objects(stream)
    images = found["data"].reshape(-1, 3, 32, 32)
    if image_data_format() == "channels_last":
        images = images.transpose(0, 2, 3, 1)
    return images, np.asarray(found[label_key], "uint8").reshape(-1, 1)
