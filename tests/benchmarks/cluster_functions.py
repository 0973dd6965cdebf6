"""Python functions that benchmarks of clusters call in tasks (``--import cluster_functions``)."""

from __future__ import annotations

import time
from typing import Any

import anabranch as ab


@ab.distribute.register_function("waited, of a benchmark")
def waited(value: Any, seconds: Any) -> Any:
    """Give a value when so many seconds are over, as an accelerator would."""
    time.sleep(float(seconds))
    return value


__all__ = ["waited"]
