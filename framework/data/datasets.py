"""Datasets from arrays and folders: windows of time series, texts, images. Each is a `PyDataset` that can be iterated.

>>> x = np.arange(6.0)
>>> [batch.tolist() for batch in timeseries_dataset_from_array(x, None, sequence_length=3, batch_size=2)]
[[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]], [[2.0, 3.0, 4.0], [3.0, 4.0, 5.0]]]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...engine.common.dtypes import string
from ...engine.common.nest import map_structure
from ...engine.ops.base import as_array
from ...engine.ops.data_format import check_data_format
from ...engine.ops.random.keys import drawn_entropy
from ..structures import Array
from .dataset_folders import Listing, check_folder_arguments, check_format, encode_labels, list_folder, split_listing
from .images import _pillow, img_to_array, load_img, resizer
from .py_dataset import PyDataset
from .transformations import Transformations, read_only

if TYPE_CHECKING:
    from ..structures import Arrays
    from .element_dataset import ElementDataset

PathLike = str | os.PathLike[str]
_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")


class Dataset(Transformations, PyDataset):
    """Batches of samples that are made when they are asked for; `fit` takes it, and ``for batch in dataset`` works.

    Args:
        count: the number of samples.
        make: gives a batch from the positions of its samples.
        batch_size: samples in a batch; None for single samples.
        shuffle: draw a new order of the samples for each pass.
        seed: for the orders; by default from the generator that `utils.set_random_seed` seeds.
        **facts: attributes, such as `class_names` and `file_paths`.

    Raises:
        ValueError: the batch size is not positive.

    >>> dataset = Dataset(5, lambda rows: rows * 10, batch_size=2)
    >>> len(dataset), [batch.tolist() for batch in dataset.map(lambda x: x + 1)]
    (3, [[1, 11], [21, 31], [41]])
    """

    def __init__(
        self,
        count: int,
        make: Callable[[Array], Arrays],
        batch_size: int | None = 32,
        shuffle: bool = False,
        seed: int | None = None,
        class_names: Sequence[str] | None = None,
        file_paths: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, or None for single samples; got {batch_size}.")
        self.class_names = None if class_names is None else list(class_names)
        self.file_paths = None if file_paths is None else list(file_paths)
        self._count = count
        self._make = make
        self._batch_size = self.batch_rows = batch_size
        self._shuffle = self.draws_order = shuffle
        entropy = drawn_entropy() if shuffle and seed is None else seed
        self._random = np.random.default_rng(entropy)
        self._order = np.arange(count)

    def __len__(self) -> int:
        size = self._batch_size or 1
        return -(-self._count // size)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"This dataset has batches 0 to {len(self) - 1}; there is no batch {index}.")
        if self._batch_size is None:
            return map_structure(lambda array: array[0], self._make(self._order[index : index + 1]))
        return self._make(self._order[index * self._batch_size : (index + 1) * self._batch_size])

    def __repr__(self) -> str:
        classes = "" if self.class_names is None else f", classes {', '.join(self.class_names)}"
        return f"<Dataset: {self._describe()}{classes}>"

    def _describe(self) -> str:
        size = self._batch_size
        return f"{len(self)} samples" if size is None else f"{len(self)} batches of {size}, {self._count} samples"

    def __iter__(self) -> Iterator[Any]:
        return Transformations.__iter__(self)  # not that of PyDataset

    def _derived(
        self, elements: Callable[[], Iterator[object]], count: int | None = None, draws_order: bool = False
    ) -> ElementDataset:
        from .element_dataset import ElementDataset  # few transform a dataset

        return ElementDataset(elements, count, self.draws_order or draws_order)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Begin a pass over the batches, as NumPy arrays."""
        self.on_epoch_begin()
        return (map_structure(np.asarray, self[index]) for index in range(len(self)))

    def cardinality(self) -> int:
        """Return the number of batches."""
        return len(self)

    def on_epoch_begin(self) -> None:
        """Draw the order of this pass."""
        if self._shuffle:
            self._order = self._random.permutation(self._count)

    def map(self, function: Callable[..., object], num_parallel_calls: int | None = None) -> Dataset:
        """Apply `function` to each batch of the dataset; of (x, y) it gets two arguments.

        Args:
            function: takes and returns arrays, or structures of them.
            num_parallel_calls: accepted for TensorFlow's sake.
        """
        return _Mapped(self, function)

    def take(self, count: int) -> Dataset:
        """Return the first `count` batches."""
        return _Part(self, 0, count)

    def skip(self, count: int) -> Dataset:
        """Return all but the first `count` batches."""
        return _Part(self, count, len(self))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Return the same dataset, of which `fit` makes `buffer_size` batches ahead (its choice if negative)."""
        if buffer_size > 0:
            self.max_queue_size = buffer_size
        return self

    def cache(self) -> Dataset:
        """Keep the batches of the dataset in memory; they keep the order of the first pass."""
        return _Cached(self)


class _Derived(Dataset):
    """A dataset made of another one."""

    def __init__(self, source: Dataset) -> None:
        PyDataset.__init__(self)
        self.class_names = source.class_names
        self.file_paths = source.file_paths
        self.max_queue_size = source.max_queue_size
        self._source = source
        self.draws_order = source.draws_order

    def _describe(self) -> str:
        return f"{len(self)} batches"

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> object:
        return self._source[index]

    def on_epoch_begin(self) -> None:
        self._source.on_epoch_begin()


class _Mapped(_Derived):
    def __init__(self, source: Dataset, function: Callable[..., object]) -> None:
        super().__init__(source)
        self._function = function

    def __getitem__(self, index: int) -> object:
        batch = self._source[index]
        return self._function(*batch) if isinstance(batch, tuple) else self._function(batch)


class _Part(_Derived):
    def __init__(self, source: Dataset, first: int, last: int) -> None:
        super().__init__(source)
        self._first = max(first, 0)
        self._last = len(source) if last < 0 else min(last, len(source))

    def __len__(self) -> int:
        return max(self._last - self._first, 0)

    def __getitem__(self, index: int) -> object:
        if not 0 <= index < len(self):
            raise IndexError(f"This dataset has {len(self)} batches; there is no batch {index}.")
        return self._source[self._first + index]


class _Cached(_Derived):
    def __init__(self, source: Dataset) -> None:
        super().__init__(source)
        self._batches: dict[int, object] = {}

    def __getitem__(self, index: int) -> object:
        if index not in self._batches:
            self._batches[index] = map_structure(read_only, self._source[index])
        return self._batches[index]

    def on_epoch_begin(self) -> None:
        if not self._batches:
            self._source.on_epoch_begin()


# --- time series ----------------------------------------------------------------------------------------------------


def timeseries_dataset_from_array(
    data: Array | Sequence[object],
    targets: Array | Sequence[object] | None,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    format: str = "tf",
) -> Dataset:
    """Make a dataset of windows of a series, with the target of each.

    Args:
        data: the series, steps on axis 0.
        targets: ``targets[i]`` belongs to the window that starts at step i; None for windows alone.
        sequence_length: steps in a window.
        sequence_stride: steps from the start of a window to that of the next.
        sampling_rate: steps from one element of a window to the next.
        batch_size: windows in a batch; None for single windows.
        shuffle: draw a new order of the windows for each pass.
        seed: for the orders.
        start_index, end_index: the part of the series that is used.
        format: "tf" or "grain", accepted as in Keras; the dataset is the same.

    Returns:
        A dataset of ``(batch, sequence_length, ...)``, or of pairs of these and targets ``(batch, ...)``.

    Raises:
        ValueError: a length or stride is not positive, the format is unknown, the part is empty, or it is shorter
            than a window.

    >>> import anabranch as ab
    >>> windows = ab.preprocessing.timeseries_dataset_from_array([0, 1, 2, 3], [10, 11, 12, 13], sequence_length=2)
    >>> [(x.tolist(), y.tolist()) for x, y in windows]
    [([[0, 1], [1, 2], [2, 3]], [10, 11, 12])]
    """
    check_format(format)
    for name, value in (
        ("sequence_length", sequence_length),
        ("sequence_stride", sequence_stride),
        ("sampling_rate", sampling_rate),
    ):
        if not 0 < value < max(len(data), 2):
            raise ValueError(f"{name} must be above 0 and below the length of the data, {len(data)}; got {value}.")
    start, end = _checked_part(len(data), start_index, end_index)
    count = end - start - (sequence_length - 1) * sampling_rate
    count = count if targets is None else min(count, len(targets) - start)
    if count <= 0:
        raise ValueError(
            f"The series has {end - start} steps"
            + ("" if targets is None else f" (and {len(targets)} targets)")
            + f", too few for a window of {sequence_length} with sampling_rate={sampling_rate}."
        )
    starts = np.arange(start, start + count, sequence_stride)
    steps = np.arange(sequence_length) * sampling_rate
    series, wanted = np.asarray(data), None if targets is None else np.asarray(targets)

    def make(rows: Array) -> Arrays:
        first = starts[rows]
        windows = series[first[:, None] + steps]
        return windows if wanted is None else (windows, wanted[first])

    return Dataset(len(starts), make, batch_size, shuffle, seed)


def _checked_part(length: int, start_index: int | None, end_index: int | None) -> tuple[int, int]:
    start, end = start_index or 0, length if end_index is None else end_index
    if not 0 <= start < end <= length:
        raise ValueError(
            f"start_index={start_index} and end_index={end_index} name no part of a series of {length} steps; expected "
            f"0 <= start_index < end_index <= {length}."
        )
    return start, end


# --- folders --------------------------------------------------------------------------------------------------------


def text_dataset_from_directory(
    directory: PathLike,
    labels: Sequence[int] | Literal["inferred"] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """Make a dataset of the text files (``.txt``) of a folder, with labels.

    Args:
        directory: with one folder a class, unless `labels` says otherwise.
        labels: "inferred" from the folders; a list with one for each file, in the order of their paths; or None.
        label_mode: "int" (int32), "binary" (float32, ``(batch, 1)``), "categorical" (one-hot float32), or None.
        class_names: the folders to use, in the order of their labels.
        batch_size: texts in a batch; None for single texts.
        max_length: the number of characters after which texts are cut.
        shuffle: draw a new order for each pass.
        seed: for the orders and the split.
        validation_split: the part of the files that is for validation.
        subset: "training", "validation", or "both" for a list of the two datasets.
        follow_links: follow links to folders.
        format: "tf" or "grain", accepted as in Keras; the dataset is the same.
        verbose: print how many files there are.

    Returns:
        A dataset of strings ``(batch,)``, or of pairs of these and labels, with `class_names` and `file_paths`.

    Raises:
        ValueError: there are no files, or arguments contradict each other.

    >>> import anabranch as ab
    >>> import os
    >>> for name in ["bad", "good"]:
    ...     os.makedirs(f"reviews/{name}", exist_ok=True)
    ...     with open(f"reviews/{name}/0.txt", "w") as file:
    ...         _ = file.write(f"a {name} film")
    >>> texts = ab.preprocessing.text_dataset_from_directory("reviews", shuffle=False, verbose=False)
    >>> [(x.tolist(), y.tolist()) for x, y in texts]
    [(['a bad film', 'a good film'], [0, 1])]
    """
    check_format(format)
    check_folder_arguments(labels, label_mode, class_names, validation_split, subset, shuffle, seed)
    mode = None if labels is None else label_mode
    listing = list_folder(
        directory, None if mode is None else labels, (".txt",), class_names, shuffle, seed, follow_links, verbose
    )

    def read(path: str) -> str:
        return Path(path).read_text(encoding="utf-8")[:max_length]

    def make(paths: Sequence[str]) -> Array:
        return np.asarray(as_array(np.array([read(path) for path in paths], string)))

    return _datasets(listing, make, mode, batch_size, shuffle, seed, validation_split, subset)


def image_dataset_from_directory(
    directory: PathLike,
    labels: Sequence[int] | Literal["inferred"] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: int | tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """Make a dataset of the images of a folder (BMP, GIF, JPEG, PNG), resized, with labels.

    Args:
        directory, labels, label_mode, class_names, batch_size, shuffle, seed, validation_split, subset, follow_links,
            format, verbose: see `text_dataset_from_directory`.
        color_mode: "grayscale", "rgb" or "rgba".
        image_size: ``(height, width)``.
        interpolation: "bilinear", "nearest", "bicubic", "lanczos3" or "lanczos5".
        crop_to_aspect_ratio: cut off what does not fit, rather than distort.
        pad_to_aspect_ratio: fill up with 0, rather than distort.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Returns:
        A dataset of float32 ``(batch, height, width, channels)``, or of pairs of these and labels, with `class_names`
        and `file_paths`.

    Raises:
        ValueError: there are no images, or arguments contradict each other. ImportError: Pillow is not installed.

    >>> import anabranch as ab
    >>> import os
    >>> import numpy as np
    >>> for number, name in enumerate(["cats", "dogs"]):
    ...     os.makedirs(f"images/{name}", exist_ok=True)
    ...     ab.utils.save_img(f"images/{name}/0.png", np.full((8, 8, 3), number))
    >>> images = ab.preprocessing.image_dataset_from_directory("images", image_size=4, shuffle=False, verbose=False)
    >>> images.class_names, [(x.shape, y.tolist()) for x, y in images]
    (['cats', 'dogs'], [((2, 4, 4, 3), [0, 1])])
    """
    _pillow("image_dataset_from_directory")
    check_format(format)
    check_folder_arguments(labels, label_mode, class_names, validation_split, subset, shuffle, seed)
    if color_mode not in ("grayscale", "rgb", "rgba"):
        raise ValueError(f"color_mode must be 'grayscale', 'rgb' or 'rgba', got {color_mode!r}.")
    if interpolation not in _INTERPOLATIONS:
        raise ValueError(f"interpolation={interpolation!r} must be one of {', '.join(_INTERPOLATIONS)}.")
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    mode = None if labels is None else label_mode
    listing = list_folder(
        directory, None if mode is None else labels, _IMAGES, class_names, shuffle, seed, follow_links, verbose
    )
    order = check_data_format("image_dataset_from_directory", data_format)
    resized = resizer(size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio, order)

    def make(paths: Sequence[str]) -> Array:
        images = [img_to_array(load_img(path, color_mode), order, "float32") for path in paths]
        return np.stack([resized(image) for image in images])

    return _datasets(listing, make, mode, batch_size, shuffle, seed, validation_split, subset)


def _datasets(
    listing: Listing,
    read: Callable[[Sequence[str]], Array],
    label_mode: str | None,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    validation_split: float | None,
    subset: str | None,
) -> Dataset | list[Dataset]:
    """Return the dataset of a listing, or the two of its halves."""
    parts = ("training", "validation") if subset == "both" else (subset,)
    made: list[Dataset] = []
    for part in parts:
        chosen = split_listing(listing, validation_split, part)
        again = shuffle and not (subset == "both" and part == "validation")
        made.append(_dataset(chosen, read, label_mode, batch_size, again, seed))
    return made if subset == "both" else made[0]


def _dataset(
    listing: Listing,
    read: Callable[[Sequence[str]], Array],
    label_mode: str | None,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
) -> Dataset:
    labels = None if label_mode is None else encode_labels(listing, label_mode)

    def make(rows: Array) -> Arrays:
        samples = read([listing.paths[row] for row in rows])
        return samples if labels is None else (samples, labels[rows])

    return Dataset(len(listing.paths), make, batch_size, shuffle, seed, listing.class_names, listing.paths)
