"""`Findings`: runs checks one after the other, and raises once for all that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...engine.testing.comparing import fail_unless, finding

if TYPE_CHECKING:
    from ..structures import Array, Arrays


class Findings:
    """The checks of one subject, and what they found.

    Args:
        subject: the name of what is checked, for messages.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.counts: dict[str, int] = {}
        self._problems: list[str] = []

    def run(self, name: str, check: Callable[[], int]) -> bool:
        """Run `check`, which returns how many cases it compared; return False if it raised."""
        try:
            self.counts[name] = check()
        except Exception as error:  # whatever the subject raises is a finding
            self._problems.append(finding(name, error))
            self.counts[name] = 0
            return False
        return True

    def finish(self, verbose: bool) -> dict[str, int]:
        """Return the counts, printed if `verbose`.

        Raises:
            AssertionError: a check failed.
        """
        if self._problems:
            number = f"{len(self._problems)} checks" if len(self._problems) > 1 else "one check"
            raise AssertionError(f"{self.subject}: {number} failed.\n" + "\n".join(self._problems))
        if verbose:
            listed = ", ".join(f"{count} {name}" for name, count in self.counts.items())
            print(f"{self.subject}: {sum(self.counts.values())} cases ({listed})")
        return self.counts


def assert_close(found: Arrays, wanted: Arrays, what: str, tolerance: float = 1e-5) -> None:
    """Raise an AssertionError that begins with `what` where arrays differ by more than `tolerance`, relative to 1."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    fail_unless(found.shape == wanted.shape, f"{what}: shape {found.shape}, expected {wanted.shape}")
    if found.dtype.kind not in "fc" and found.dtype.name != "bfloat16":
        fail_unless(np.array_equal(found, wanted), f"{what}: {_short(found)}, expected {_short(wanted)}")
        return
    one, other = found.astype("float64"), wanted.astype("float64")
    same = np.isclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    fail_unless(
        same.all(),
        f"{what}: {_short(found)}, expected {_short(wanted)}; {np.sum(~same)} of {same.size} elements differ",
    )


def _short(x: Array) -> str:
    return np.array2string(x, threshold=6, edgeitems=2, precision=5).replace("\n", "")
