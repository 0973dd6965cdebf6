"""Boston housing: house values of 506 places in the 1970s, from 13 figures on each.

One of the figures assumes that segregation raises prices; take it for comparisons with old results only.
"""

from __future__ import annotations

from .fetching import Split, fetch, read_arrays, shuffled_and_cut


def load_data(path: str = "boston_housing.npz", test_split: float = 0.2, seed: int = 113) -> Split:
    """Load data of 506 places, shuffled; the last part is for tests.

    Args:
        path: the file's name in the cache.
        test_split: the share for tests.
        seed: of the order.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: figures ``[n, 13]``, values in thousands of dollars ``[n]``.

    Raises:
        ValueError: `test_split` is not a share. OSError: the file can't be fetched.
    """
    found = read_arrays(
        fetch(path, "boston_housing.npz", "f553886a1f8d56431e820c5b82552d9d95cfcb96d1e678153f8839538947dff5")
    )
    return shuffled_and_cut(found["x"], found["y"], test_split, seed)
