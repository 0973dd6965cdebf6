"""Ids that name one of a number of groups: what names none of them is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class LeavesOut:
    """Mixed into ops over ids of groups (segments, classes). An id that names no group counts for nothing.

    So do TensorFlow's, and -1 can stand for padding. `debugging.check_indices` makes such ids errors.
    """

    def ids_and_count(self, *inputs: Any) -> tuple[Any, int]:
        """Return the ids among the inputs of a run, and the number of groups."""
        raise NotImplementedError(f"{type(self).__name__} must define ids_and_count().")


def first_left_out(op: LeavesOut, inputs: Sequence[Any]) -> str | None:
    """Describe how many ids name no group, and which is the first; None if all name one."""
    ids, count = op.ids_and_count(*inputs)
    ids = np.asarray(ids)
    stray = (ids < 0) | (ids >= count)
    if not stray.any():
        return None
    place = [int(k) for k in np.argwhere(stray)[0]]
    first = ids[tuple(place)]
    where = f" at {place}" if place else ""
    return f"{int(stray.sum())} of {stray.size} ids outside 0 to {count - 1}, first {int(first)}{where}"
