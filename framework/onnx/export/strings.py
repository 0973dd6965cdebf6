"""Texts: joining, splitting, matching, case, and tables by texts."""

from __future__ import annotations

import numpy as np

from ....engine.graph.graph import Operation
from ....engine.ops.text.string_ops import RegexFullMatch, StringCase, StringSplit
from .registry import attribute, exports, op_of
from .replacing import TEXT, is_before_words, users_of, words
from .shapes import rank_of
from .writer import BOOL, INT, LONG, Writer


@exports("string_join", opset=20)
def _string_join(w: Writer, node: Operation, *parts: str) -> str:
    separator = attribute(node, "separator", str)
    whole = parts[0]
    for part in parts[1:]:
        if separator:
            whole = w.add("StringConcat", whole, w.constant(np.array(separator, TEXT)))
        whole = w.add("StringConcat", whole, part)
    return whole


@exports("regex_full_match", opset=20)
def _regex_full_match(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, RegexFullMatch)
    return w.add("RegexFullMatch", x, dtype=BOOL, pattern=op.pattern)


@exports("string_split", opset=20)
def _string_split(w: Writer, node: Operation, x: str) -> list[str]:
    """Split texts; an empty one gives one empty part by a separator, where onnxruntime gives none."""
    op = op_of(node, StringSplit)
    most = None if op.maxsplit < 0 else op.maxsplit
    if is_before_words(node.inputs[0].operation):
        parts, counts = words(w, x)
    else:
        parts, counts = w.add_many("StringSplit", x, dtypes=[TEXT, LONG], delimiter=op.separator or "", maxsplit=most)
    if op.separator is not None:
        empty = w.compare("Equal", x, w.constant(np.array("", TEXT)))
        counts = w.where(empty, w.constant(1, LONG), counts)
        # There must be room for that part: a column of empty texts is put behind where there is none.
        width = w.dim(parts, rank_of(node))
        most_parts = w.add("ReduceMax", w.concat([w.reshape(counts, w.ints(-1)), w.ints(0)], 0), keepdims=1)
        missing = w.add("Max", w.add("Sub", most_parts, width), w.ints(0))
        shape = w.concat([w.shape(x), missing], 0)
        parts = w.concat([parts, w.expand(w.constant(np.array("", TEXT)), shape)], rank_of(node))
    if op.width is not None:
        axis = rank_of(node)
        blanks = w.expand(w.constant(np.array("", TEXT)), w.concat([w.shape(x), w.ints(op.width)], 0))
        parts = w.slice(w.concat([parts, blanks], axis), 0, op.width, axis)
        counts = w.add("Min", counts, w.constant(op.width, LONG))
    return [parts, w.cast(counts, INT)]


@exports("string_case")
def _string_case(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, StringCase)
    if not op.only_ascii:
        raise ValueError("what it gives for other letters than ASCII's depends on the locales of the machine")
    flat = w.add("Reshape", x, w.ints(-1))
    action = "UPPER" if op.upper else "LOWER"
    changed = w.add("StringNormalizer", flat, case_change_action=action, is_case_sensitive=1, locale="C")
    return w.reshape(changed, w.shape(x))


def position_in(w: Writer, node: Operation, table: str, x: str) -> str:
    """Return where each text stands in a sorted table that is known, and 0 for others, by a LabelEncoder.

    Raises:
        ValueError: the table is not known, or it matters where others would stand: ONNX does not order texts.
    """
    keys = w.known(table)
    if keys is None or not _is_lookup(node):
        raise ValueError("ONNX does not order texts; only a table that is known can be looked up")
    texts = [str(key) for key in np.asarray(keys).reshape(-1)]
    if not texts:
        return w.zeros(w.shape(x), node.outputs[0].dtype)
    w.domains.add("ai.onnx.ml")
    found = w.add(
        "LabelEncoder",
        x,
        dtype=LONG,
        domain="ai.onnx.ml",
        keys_strings=texts,
        values_int64s=list(range(len(texts))),
        default_int64=0,
    )
    return w.cast(found, node.outputs[0].dtype)


def _is_lookup(node: Operation) -> bool:
    """Test whether what stands at each place that was found is compared with what was looked for."""
    table, x = node.inputs
    places = users_of(node.outputs[0])
    if not places or any(user.type != "minimum" for user in places):
        return False
    takes = [user for place in places for user in users_of(place.outputs[0])]
    if not all(user.type == "take" for user in takes):
        return False
    compared = [user for take in takes if take.inputs[0] is table for user in users_of(take.outputs[0])]
    return bool(compared) and all(
        user.type == "equal" and (user.inputs[0] is x or user.inputs[1] is x) for user in compared
    )
