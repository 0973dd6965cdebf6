"""California housing: the median house values of 20,640 districts, from 8 figures on each."""

from __future__ import annotations

from .fetching import Split, fetch, read_arrays, shuffled_and_cut


def load_data(
    version: str = "large", path: str = "california_housing.npz", test_split: float = 0.2, seed: int = 113
) -> Split:
    """Load data of districts, shuffled; the last part is for tests.

    Args:
        version: "large" for all, "small" for the first 600.
        path: the file's name in the cache.
        test_split: the share for tests.
        seed: of the order.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: figures ``[n, 8]``, values in dollars ``[n]``.

    Raises:
        ValueError: `version` is neither of these, or `test_split` is not a share. OSError: the file can't be fetched.
    """
    if version not in ("large", "small"):
        raise ValueError(f"version must be 'large' or 'small', got {version!r}.")
    found = read_arrays(
        fetch(path, "california_housing.npz", "1a2e3a52e0398de6463aebe6f4a8da34fb21fbb6b934cf88c3425e766f2a1a6f")
    )
    rows = slice(600 if version == "small" else None)
    return shuffled_and_cut(found["x"][rows], found["y"][rows], test_split, seed)
