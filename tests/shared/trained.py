"""Compare what runs of distribute/scripts/train_models.py have found."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(found: Any, alone: Any) -> None:
    """See that a worker has found what one process finds: calls of callbacks, and numbers to their precision."""
    for name in found.files:
        if name.endswith(": called"):
            assert found[name].tolist() == alone[name].tolist(), name
            continue
        precision = 1e-10 if name.startswith("float64") else 2e-5
        np.testing.assert_allclose(found[name], alone[name], precision, precision, err_msg=name)
