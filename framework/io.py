"""Files: readers, `TFRecordWriter`, what turns records into tensors, and checkpoints; `anabranch.io`."""

import os

from ..engine.checkpoint.files import CheckpointReader
from ..engine.checkpoint.ops import restore, save
from ..engine.readers import (
    FixedLengthRecordReader,
    HDF5Reader,
    Reader,
    ReaderStatistics,
    TextLineReader,
    TFRecordReader,
    TFRecordWriter,
    decode_csv,
    decode_raw,
    string_input_producer,
    tf_record_iterator,
)


def checkpoint_reader(path: str | os.PathLike[str]) -> CheckpointReader:
    """Open a checkpoint: a mapping of names to arrays, each read when it is asked for.

    Args:
        path: the folder ``step-N``.

    Raises:
        FileNotFoundError: the folder is not a checkpoint, or a shard is missing.
        DataLossError: the manifest or a shard is damaged.

    >>> import anabranch as ab
    >>> ab.io.save("one", ["w"], [[1.0, 2.0]])
    >>> dict(ab.io.checkpoint_reader("one"))
    {'w': array([1., 2.], dtype=float32)}
    """
    return CheckpointReader(path)


__all__ = [
    "CheckpointReader",
    "FixedLengthRecordReader",
    "HDF5Reader",
    "Reader",
    "ReaderStatistics",
    "TFRecordReader",
    "TFRecordWriter",
    "TextLineReader",
    "checkpoint_reader",
    "decode_csv",
    "decode_raw",
    "restore",
    "save",
    "string_input_producer",
    "tf_record_iterator",
]
