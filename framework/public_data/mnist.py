"""MNIST: 70,000 handwritten digits, 28 x 28, grey."""

from __future__ import annotations

from .fetching import Split, fetch, read_arrays


def load_data(path: str = "mnist.npz") -> Split:
    """Load 60,000 images to train with and 10,000 to test with.

    Args:
        path: the file's name in the cache.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: uint8 images ``[n, 28, 28]``, uint8 digits ``[n]``.

    Raises:
        OSError: the file is not in the cache and can't be fetched.
    """
    found = read_arrays(fetch(path, "mnist.npz", "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"))
    return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])
