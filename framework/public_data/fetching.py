"""Shared by the data sets: their files, read without running anything that they say, and the cut into two parts."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..data.get_file import get_file
from ..structures import Array
from .plain_objects import read_objects

Split = tuple[tuple[Array, Array], tuple[Array, Array]]

_STORE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"


def fetch(name: str, stored_as: str, file_hash: str | None = None, **options: object) -> Path:
    """Return a file of the store, from the cache or the network.

    Raises:
        OSError: it is not in the cache and can't be fetched.
    """
    return fetch_from(_STORE + stored_as, name, file_hash, **options)


def fetch_from(origin: str, name: str, file_hash: str | None = None, **options: Any) -> Path:
    """Fetch a file by `get_file`; an error says what to do where there is no network.

    Raises:
        OSError: it is not in the cache and can't be fetched.
    """
    try:
        return Path(get_file(name, origin=origin, file_hash=file_hash, **options))
    except OSError as error:
        raise OSError(
            f"The data set's file {name!r} is not in the cache, and {origin} can't be reached. Fetch it where there is "
            f"a network and put it into ~/.keras/datasets, or name another cache in KERAS_HOME. ({error})"
        ) from error


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file, arrays of lists included."""
    with zipfile.ZipFile(path) as archive:
        return {name.removesuffix(".npy"): _read_array(io.BytesIO(archive.read(name))) for name in archive.namelist()}


def _read_array(stream: BinaryIO) -> Array:
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    _, _, dtype = read_header(stream)
    if dtype.hasobject:
        return read_objects(stream)
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def shuffled_and_cut(x: Array, y: Array, test_split: float, seed: int) -> Split:
    """Return rows in the order that `seed` draws, the last `test_split` of them for tests.

    Raises:
        ValueError: `test_split` is not a share below 1.
    """
    if not 0 <= test_split < 1:
        raise ValueError(f"test_split must be at least 0 and less than 1, got {test_split!r}.")
    order = shuffled(len(x), np.random.RandomState(seed))
    x, y = x[order], y[order]
    cut = int(len(x) * (1 - test_split))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def shuffled(count: int, random: np.random.RandomState) -> Array:
    """Return the numbers below `count`, in an order that is drawn as in Keras."""
    order = np.arange(count)
    random.shuffle(order)
    return order
