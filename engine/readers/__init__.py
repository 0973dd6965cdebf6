"""Readers of files as input operations, and what turns records into tensors; `anabranch.io` has them all."""

from .decoding import decode_csv, decode_raw
from .producer import string_input_producer
from .reader import FixedLengthRecordReader, Reader, ReaderStatistics, TextLineReader, TFRecordReader
from .tf_record import TFRecordWriter, tf_record_iterator

__all__ = [
    "FixedLengthRecordReader",
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
