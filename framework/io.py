"""Input from files: readers, `TFRecordWriter`, and what turns records into tensors; `anabranch.io`."""

from ..engine.readers import (
    FixedLengthRecordReader,
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
from .hdf5_reader import HDF5Reader

__all__ = [
    "FixedLengthRecordReader",
    "HDF5Reader",
    "Reader",
    "ReaderStatistics",
    "TFRecordReader",
    "TFRecordWriter",
    "TextLineReader",
    "decode_csv",
    "decode_raw",
    "string_input_producer",
    "tf_record_iterator",
]
