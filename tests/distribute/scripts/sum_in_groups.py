"""Sums over all processes and over pairs, in each worker; prints a digest of the bits that all have."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.ops.collectives import current_group

rank, count = ab.distribute.rank(), ab.distribute.world_size()
group: Any = current_group()
assert group.shares_memory == (sys.argv[1] == "auto")
digest = hashlib.sha256()
for size in (1, 1000, 40_001):
    arrays = [np.random.default_rng(each).normal(size=size).astype("float32") for each in range(count)]
    for _ in range(8):  # each way is tried, then one is chosen
        total = ab.distribute.all_reduce(arrays[rank]).numpy()
        digest.update(total.tobytes())
    want = arrays[0]
    for array in arrays[1:]:
        want = want + array
    np.testing.assert_array_equal(total, want)
    pair = [0, 1] if rank < 2 else [2]
    found = ab.distribute.all_reduce(arrays[rank], group=pair).numpy()
    np.testing.assert_array_equal(found, arrays[0] + arrays[1] if rank < 2 else arrays[2])
    if rank != 1:
        found = ab.distribute.all_gather(arrays[rank], group=[2, 0]).numpy()
        np.testing.assert_array_equal(found, np.concatenate([arrays[0], arrays[2]]))
print("digest", digest.hexdigest())
