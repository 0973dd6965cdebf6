"""`audio_dataset_from_directory`: the sounds of a folder, with labels."""

from __future__ import annotations

import os
import wave
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..structures import Array
from .dataset_folders import check_folder_arguments, check_format, list_folder
from .datasets import _datasets


def audio_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: Sequence[int] | Literal["inferred"] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    sampling_rate: int | None = None,
    output_sequence_length: int | None = None,
    ragged: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """Make a dataset of the sounds (``.wav``) of a folder, with labels.

    Args:
        directory: with one folder a class, unless `labels` says otherwise.
        labels: "inferred" from the folders; a list with one for each file, in the order of their paths; or None.
        label_mode: "int" (int32), "binary" (float32, ``(batch, 1)``), "categorical" (one-hot float32), or None.
        class_names: the folders to use, in the order of their labels.
        batch_size: sounds in a batch; None for single ones.
        sampling_rate: that of all files, which is checked; None for any.
        output_sequence_length: the number of samples, to which sounds are cut or filled up with silence; by default
            that of the longest sound of a batch.
        ragged: accepted as False: batches are arrays.
        shuffle: draw a new order for each pass.
        seed: for the orders and the split.
        validation_split: the part of the files that is for validation.
        subset: "training", "validation", or "both" for a list of the two datasets.
        follow_links: follow links to folders.
        format: "tf" or "grain", accepted as in Keras; the dataset is the same.
        verbose: print how many files there are.

    Returns:
        A dataset of float32 ``(batch, samples, channels)`` from -1 to 1, or of pairs of these and labels, with
        `class_names` and `file_paths`.

    Raises:
        ValueError: there are no files, or arguments contradict each other; a file is not a sound, has another sampling
            rate, or another number of channels than others of its batch (when it is read).

    >>> import anabranch as ab
    >>> import os, wave
    >>> for name in ["high", "low"]:
    ...     os.makedirs(f"sounds/{name}", exist_ok=True)
    ...     with wave.open(f"sounds/{name}/0.wav", "wb") as file:
    ...         file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...         file.writeframes(bytes(20))
    >>> sounds = ab.utils.audio_dataset_from_directory("sounds", shuffle=False, verbose=False)
    >>> [(x.shape, y.tolist()) for x, y in sounds]
    [((2, 10, 1), [0, 1])]
    """
    check_format(format)
    if ragged:
        raise ValueError("audio_dataset_from_directory: ragged=True is not supported. Give output_sequence_length.")
    if sampling_rate is not None and (not isinstance(sampling_rate, int) or sampling_rate < 1):
        raise ValueError(f"sampling_rate must be a positive integer or None, got {sampling_rate!r}.")
    check_folder_arguments(labels, label_mode, class_names, validation_split, subset, shuffle, seed)
    mode = None if labels is None else label_mode
    listing = list_folder(
        directory, None if mode is None else labels, (".wav",), class_names, shuffle, seed, follow_links, verbose
    )

    def make(paths: Sequence[str]) -> Array:
        return _together([_read(path, sampling_rate) for path in paths], paths, output_sequence_length)

    return _datasets(listing, make, mode, batch_size, shuffle, seed, validation_split, subset)


def _read(path: str, sampling_rate: int | None) -> Array:
    """Return the samples ``(samples, channels)``, from -1 to 1."""
    try:
        with wave.open(path, "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path!r} can't be read as a WAV file with plain samples: {error}") from error
    if sampling_rate not in (None, rate):
        raise ValueError(
            f"{path!r} has {rate} samples a second, but sampling_rate={sampling_rate} was asked for. Resample the "
            "files first, or leave sampling_rate out."
        )
    return _samples(raw, width).reshape(-1, channels)


def _samples(raw: bytes, width: int) -> Array:
    if width == 1:  # without a sign
        return (np.frombuffer(raw, "u1").astype("float32") - 128) / 128
    if width != 3:
        return (np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)).astype("float32")
    parts = np.frombuffer(raw, "u1").reshape(-1, 3)
    filled = np.concatenate([np.zeros((len(parts), 1), "u1"), parts], axis=1)  # as the upper bytes of 32 bits
    return (np.ascontiguousarray(filled).view("<i4")[:, 0] / 2.0**31).astype("float32")


def _together(sounds: list[Array], paths: Sequence[str], length: int | None) -> Array:
    channels = {sound.shape[1] for sound in sounds}
    if len(channels) != 1:
        raise ValueError(
            f"Sounds of one batch must have as many channels each, got {sorted(channels)} in {list(paths)[:5]}."
        )
    size = max(len(sound) for sound in sounds) if length is None else length
    batch = np.zeros((len(sounds), size, channels.pop()), "float32")
    for row, sound in zip(batch, sounds, strict=True):
        row[: len(sound)] = sound[:size]
    return batch
