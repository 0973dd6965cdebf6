"""Readers of files as input operations, and what turns records into tensors; `anabranch.io` has them all."""

from .decoding import decode_csv, decode_raw
from .hdf5_reader import HDF5Reader
from .producer import Epochs, string_input_producer
from .reader import FixedLengthRecordReader, Reader, ReaderStatistics, TextLineReader, TFRecordReader
from .tf_record import TFRecordWriter, tf_record_iterator

KINDS = {
    cls.kind: cls for cls in (Epochs, FixedLengthRecordReader, HDF5Reader, TFRecordReader, TextLineReader)
}  # by which documents of graphs name them

__all__ = [
    "KINDS",
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
