"""Reasons why ops have no rule, as errors and `supported_ops` give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....engine.graph.op import Op

_BY_NAME = {
    "numpy_function": "it calls a Python function, which no other runtime has",
    "assign": "it writes a variable, and an ONNX model has no state",
    "recursion": "ONNX has no recursion: its functions may not call themselves",
    "call": "ONNX has no recursion: its functions may not call themselves",
    "take_key": "it draws random numbers, which no two runtimes draw alike. Export it with training=False",
    "view": "ONNX reads bytes as another type from opset 26 on only",
    "erfinv": "ONNX has no inverse of the error function",
    "bessel_i": "ONNX has no Bessel functions",
    "next_after": "ONNX has no operator for the next representable number",
    "ctc_beam_search": "ONNX has no decoder of CTC",
    "string_to_number": "onnxruntime casts strings by rules of its own",
    "print": "it prints",
    "regex_replace": (
        "ONNX replaces nothing within texts but listed characters by none, such as '[,.!]', and white space before "
        "texts are split at it. Do the rest before the model, such as split='character' of TextVectorization"
    ),
    "move_axis": "the rank of its input is not known",
    "as_string": "ONNX casts numbers to texts in a form of its own",
    "string_affix": "ONNX has no operator for the beginnings and ends of texts",
    "string_format": "ONNX casts numbers to texts in a form of its own",
    "string_length": "ONNX has no operator for the lengths of texts",
    "string_strip": "ONNX has no operator that strips texts",
    "substring": "ONNX has no operator for parts of texts",
    "reduce_join": "ONNX joins texts elementwise only; use ops.strings.join of tensors",
    "string_to_hash_bucket": "ONNX has no hash of texts. Lookups with a vocabulary and num_oov_indices=1 are exported",
    "crossed_bins": "ONNX has no hash of texts. Lookups with a vocabulary and num_oov_indices=1 are exported",
    "correlate_full": "ONNX has no operator for it. A convolution is exported",
    "correlate_inside": "ONNX has no operator for it. A convolution is exported",
    "recorded": "ONNX has no recursion, and records of its calls are kept for gradients only",
    "hash_bins": "ONNX has no hash of texts. Lookups with a vocabulary and num_oov_indices=1 are exported",
    "hash_strings": "ONNX has no hash of texts. Lookups with a vocabulary and num_oov_indices=1 are exported",
    "array_read_or_empty_record": "ONNX has no recursion, and records of its calls are kept for gradients only",
    "all_known": "it raises for what is not in the vocabulary, and ONNX raises nothing. Give num_oov_indices=1",
}
_BY_MODULE = {
    "raw": "raw Switch, Merge and their kin are no structured control flow; use ab.cond and ab.while_loop",
    "queues": "ONNX has no queues and no other processes",
    "readers": "ONNX reads no files",
    "summaries": "ONNX writes no files",
    "checkpoint": "ONNX writes no files",
    "random": "it draws random numbers, which no two runtimes draw alike. Export it with training=False",
    "distributions": "it draws random numbers, which no two runtimes draw alike",
    "keys": "it draws random numbers, which no two runtimes draw alike. Export it with training=False",
    "collectives": "it speaks with other processes",
    "replicas": "it sums over replicas, which train together",
    "complex_numbers": "ONNX computes nothing with complex numbers",
    "fourier": "its values are complex, with which ONNX computes nothing",
    "cholesky": "ONNX has no operators that factor matrices",
    "matrices": "ONNX has no operators that factor matrices",
    "factorisations": "ONNX has no operators that factor matrices",
    "spectral": "ONNX has no operators that factor matrices",
    "tensor_stores": "ONNX has no tables of tensors under keys",
    "records": "ONNX has no recursion, and records of its calls are kept for gradients only",
    "fused": "it is made by passes, which run after an export",
    "packed": "it is made by passes, which run after an export",
    "ragged_batches": "it is made by passes, which run after an export",
    "product_then": "it is made by passes, which run after an export",
    "triangular": "ONNX has no operators that factor matrices or solve equations",
    "begun_collectives": "it speaks with other processes",
    "sparse": "ONNX has no operators for sparse matrices. Take what is sparse as a dense tensor, by to_dense()",
    "internal": "it is made by passes, which run after an export",
    "array_windows": "it is made by passes, which run after an export",
    "scheduling": "it is made for a device's schedule, which runs after an export",
    "staged": "it is made by a session, which runs after an export",
    "tensor_arrays": "it is made by passes, which run after an export",
    "region_op": "it is a base class",
    "update_rows": "it writes variables, and an ONNX model has no state",
    "front_positions": "gradients of rows make it, and an ONNX model has none",
    "indexed_slices": "it writes rows of variables, and an ONNX model has no state",
}


def reason_for(op: type[Op]) -> str:
    """Return why there is no rule for a class of ops."""
    known = _BY_NAME.get(op.type_name)
    if known is not None:
        return known
    parts = op.__module__.split(".")
    for part in reversed(parts):
        if part in _BY_MODULE:
            return _BY_MODULE[part]
    return "no rule is written for it"
