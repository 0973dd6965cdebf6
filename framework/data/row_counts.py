"""Checks that arrays of one batch, or of one data set, have the same number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...engine.common.nest import flatten_with_path


def check_lengths(x: object, y: object, sample_weight: object) -> int:
    """Return the common number of rows.

    Raises:
        ValueError: the arrays differ in their number of rows; the message lists them all.
    """
    counts = check_rows((x, y, sample_weight), len)
    return next(iter(counts), 0)


def check_rows(
    parts: Iterable[object], rows_of: Callable[..., int | None], what: str = "All arrays", where: str = ""
) -> list[int]:
    """Return the known numbers of rows of all arrays of x, y and sample_weight, which are the same.

    Args:
        parts: structures of arrays or tensors.
        rows_of: gives the number of rows of one; None if it is not known yet.
        what, where: what the message calls them, and under which condition they have to be alike.

    Raises:
        ValueError: they differ; the message lists them all.
    """
    named = zip(("x", "y", "sample_weight"), parts, strict=True)
    rows = {name + path: rows_of(array) for name, part in named for path, array in flatten_with_path(part)}
    known = [count for count in rows.values() if count is not None]
    if len(set(known)) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in rows.items())
        raise ValueError(f"{what} must have the same number of rows (size of axis 0){where}. Got {listed}.")
    return known


__all__ = ["check_lengths", "check_rows"]
