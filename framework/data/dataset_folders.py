"""Find the files of a folder, with labels from the names of the folders inside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...engine.common.quick_dataclass import dataclass
from ...engine.ops.random.keys import drawn_entropy
from ..structures import Array
from ..training.limits import show

_MODES = ("int", "binary", "categorical")


@dataclass(frozen=True)
class Listing:
    """Files with their labels.

    Attributes:
        directory: where they are.
        paths: the files.
        labels: one integer for each, or None.
        class_names: what labels stand for, or None.
    """

    directory: str
    paths: list[str]
    labels: NDArray[np.int32] | None
    class_names: list[str] | None


def check_format(format: str) -> None:
    """Refuse formats of datasets that Keras does not have either.

    Raises:
        ValueError: it is such a format.
    """
    if format not in ("tf", "grain"):
        raise ValueError(f"format must be 'tf' or 'grain', got {format!r}.")


def check_folder_arguments(
    labels: Sequence[int] | Literal["inferred"] | None,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    validation_split: float | None,
    subset: str | None,
    shuffle: bool,
    seed: int | None,
) -> None:
    """Refuse arguments that contradict each other.

    Raises:
        ValueError: they do.
    """
    if not (labels is None or labels == "inferred" or isinstance(labels, (list, tuple))):
        raise ValueError(f"labels must be 'inferred', None, or a list of integers, one for each file; got {labels!r}.")
    if class_names and labels != "inferred":
        raise ValueError(f"class_names are for labels='inferred' only; got labels={labels!r}.")
    if label_mode is not None and label_mode not in _MODES:
        raise ValueError(f"label_mode must be 'int', 'binary', 'categorical' or None, got {label_mode!r}.")
    if (validation_split is None) != (subset is None):
        raise ValueError("validation_split and subset must be given together, or neither.")
    if validation_split is None:
        return
    if not 0 < validation_split < 1:
        raise ValueError(f"validation_split must be between 0 and 1, got {validation_split}.")
    if subset not in ("training", "validation", "both"):
        raise ValueError(f"subset must be 'training', 'validation' or 'both', got {subset!r}.")
    if shuffle and seed is None and subset != "both":
        raise ValueError(
            "With validation_split and shuffle=True give a seed, the same for both subsets, or subset='both': "
            "otherwise files could be in both of them."
        )


def list_folder(
    directory: str | os.PathLike[str],
    labels: Sequence[int] | Literal["inferred"] | None,
    formats: tuple[str, ...],
    class_names: Sequence[str] | None,
    shuffle: bool,
    seed: int | None,
    follow_links: bool,
    verbose: bool,
) -> Listing:
    """Return the files of a folder that end as `formats` says, sorted by path, or in a random order.

    Raises:
        ValueError: there are none, or not as many as labels, or a class has no folder.
    """
    root = os.fspath(directory)
    if not os.path.isdir(root):
        raise ValueError(f"There is no folder {root!r} (looked in {str(Path.cwd())!r}).")
    names = _class_folders(root, class_names) if labels == "inferred" else [""]
    found = [list(_files(os.path.join(root, name), formats, follow_links)) for name in names]
    paths = [path for group in found for path in group]
    if not paths:
        raise ValueError(f"There are no files in {root!r} that end in {', '.join(formats)}.")
    listing = _labelled(root, paths, labels, names, [len(group) for group in found])
    if verbose:
        classes = "" if listing.class_names is None else f" belonging to {len(listing.class_names)} classes"
        show(f"Found {len(paths)} files{classes}.")
    return _shuffled(listing, seed) if shuffle else listing


def _class_folders(root: str, class_names: Sequence[str] | None) -> list[str]:
    present = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    missing = sorted(set(class_names or []) - set(present))
    if missing:
        raise ValueError(f"class_names name {missing}, but {root!r} has only the folders {present}.")
    return present if class_names is None else list(class_names)


def _files(folder: str, formats: tuple[str, ...], follow_links: bool) -> Iterator[str]:
    for place, _, names in sorted(os.walk(folder, followlinks=follow_links), key=lambda item: item[0]):
        for name in sorted(names):
            if name.lower().endswith(formats):
                yield os.path.join(place, name)


def _labelled(
    root: str, paths: list[str], labels: Sequence[int] | Literal["inferred"] | None, names: list[str], counts: list[int]
) -> Listing:
    if labels is None:
        return Listing(root, paths, None, None)
    if labels == "inferred":
        return Listing(root, paths, np.repeat(np.arange(len(names), dtype="int32"), counts), names)
    if len(labels) != len(paths):
        raise ValueError(f"There are {len(labels)} labels for {len(paths)} files in {root!r}; expected as many.")
    return Listing(root, paths, np.asarray(labels, "int32"), [str(label) for label in sorted(set(labels))])


def _shuffled(listing: Listing, seed: int | None) -> Listing:
    if seed is None:
        seed = int(np.random.default_rng(drawn_entropy()).integers(10**6))
    order = np.arange(len(listing.paths))
    np.random.RandomState(seed).shuffle(order)  # Keras's order, so that a split is the same
    labels = None if listing.labels is None else listing.labels[order]
    return replace(listing, paths=[listing.paths[position] for position in order], labels=labels)


def split_listing(listing: Listing, validation_split: float | None, subset: str | None) -> Listing:
    """Return the files for training or for validation, which are the last ones; all without a split.

    Raises:
        ValueError: there would be none.
    """
    if validation_split is None:
        return listing
    count = len(listing.paths)
    first = count - int(validation_split * count)
    rows = slice(0, first) if subset == "training" else slice(first, count)
    if not listing.paths[rows]:
        raise ValueError(
            f"validation_split={validation_split} of {count} files in {listing.directory!r} leaves none for {subset}."
        )
    return replace(listing, paths=listing.paths[rows], labels=None if listing.labels is None else listing.labels[rows])


def encode_labels(listing: Listing, label_mode: str) -> Array:
    """Return the labels as arrays: int32, float32 with one column, or one-hot.

    Raises:
        ValueError: binary labels of more or fewer than two classes.
    """
    labels, names = listing.labels, listing.class_names
    assert labels is not None
    assert names is not None
    if label_mode == "binary" and len(names) != 2:
        raise ValueError(f"label_mode='binary' needs two classes, got {len(names)}: {names}.")
    if label_mode == "binary":
        return labels[:, None].astype("float32")
    return labels if label_mode == "int" else np.eye(len(names), dtype="float32")[labels]
