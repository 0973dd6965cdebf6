"""CIFAR-100: 60,000 photographs of 100 kinds of things, 32 x 32, in colour."""

from __future__ import annotations

from .cifar10 import read_batch
from .fetching import Split, fetch_from

_ORIGIN = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
_HASH = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"


def load_data(label_mode: str = "fine") -> Split:
    """Load 50,000 images to train with and 10,000 to test with.

    Args:
        label_mode: "fine" for the 100 kinds, "coarse" for the 20 groups of them.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: uint8 images ``[n, 32, 32, 3]``, uint8 classes ``[n, 1]``. The images
        are ``[n, 3, 32, 32]`` where that is the default order (`config.set_image_data_format`).

    Raises:
        ValueError: `label_mode` is neither of these. OSError: the file is not in the cache and can't be fetched.
    """
    if label_mode not in ("fine", "coarse"):
        raise ValueError(f"label_mode must be 'fine' or 'coarse', got {label_mode!r}.")
    folder = fetch_from(_ORIGIN, "cifar-100-python-target", _HASH, extract=True) / "cifar-100-python"
    return read_batch(folder / "train", f"{label_mode}_labels"), read_batch(folder / "test", f"{label_mode}_labels")
