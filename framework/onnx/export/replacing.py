"""Parts of texts that are replaced: characters that go, and white space before texts are split."""

from __future__ import annotations

import re

import numpy as np

from ....engine.graph.graph import Operation
from ....engine.graph.tensor import Symbol
from ....engine.ops.base import Constant
from ....engine.ops.text.string_ops import RegexReplace, StringSplit
from ....layers.preprocessing.text import SEVERAL_SPACES, SPACES_AROUND
from .refused import reason_for
from .registry import exports, op_of
from .writer import BOOL, LONG, Writer

TEXT = np.dtype("T")
_CHARACTERS = re.compile(r"\[(?!\^)((?:\\[^\w\s]|[^\\\]\[\-])+)\]")  # that a pattern lists, without ranges
_OTHER_SPACES = "\t\n\v\f\r"


@exports("regex_replace", opset=20)
def _regex_replace(w: Writer, node: Operation, x: str) -> str:
    """Write what removes listed characters, or tidies the white space of texts that are split at spaces behind it."""
    op = op_of(node, RegexReplace)
    if is_before_words(node):
        _, counts = words(w, x)
        return w.where(w.compare("Equal", counts, w.ints(0)), w.constant(np.array("", TEXT)), x)
    if op.pattern == SEVERAL_SPACES and op.rewrite == " " and all(map(is_before_words, users_of(node.outputs[0]))):
        characters, instead = _OTHER_SPACES, " "
    else:
        listed = _CHARACTERS.fullmatch(op.pattern)
        if listed is None or op.rewrite or not op.replace_global:
            raise ValueError(reason_for(RegexReplace))
        characters, instead = re.sub(r"\\(.)", r"\1", listed[1]), ""
    flat = w.add("Reshape", x, w.ints(-1))
    for character in characters:
        flat = _replaced(w, flat, character, instead)
    return w.reshape(flat, w.shape(x))


def is_before_words(node: Operation) -> bool:
    """Test whether an operation takes the spaces around texts away, of which nothing is used but their words.

    StringSplit without a separator takes several spaces for one, and leaves those around texts out.
    """
    op = node.op
    is_strip = isinstance(op, RegexReplace) and (op.pattern, op.rewrite) == (SPACES_AROUND, "")
    return is_strip and all(_takes_words(user) for user in users_of(node.outputs[0]))


def _takes_words(user: Operation) -> bool:
    if isinstance(user.op, StringSplit):
        return (user.op.separator, user.op.maxsplit) == (" ", -1)
    return user.type == "equal" and any(_is_empty_text(each.operation) for each in user.inputs)


def _is_empty_text(node: Operation) -> bool:
    return isinstance(node.op, Constant) and node.op.value.shape == () and node.op.value.item() == ""


def words(w: Writer, x: str) -> list[str]:
    """Return the words of texts, a row for each, and how many there are."""
    return w.once(("words", x), lambda: w.add_many("StringSplit", x, dtypes=[TEXT, LONG], delimiter=""))


def _replaced(w: Writer, x: str, character: str, instead: str) -> str:
    """Return a vector of texts with another text instead of a character; that stands in front of each, too."""
    parts, _ = w.add_many("StringSplit", x, dtypes=[TEXT, LONG], delimiter=character)
    nothing = w.expand(w.constant(np.array("", TEXT)), w.shape(x))
    number, goes_on, joined = (w.new_name(f"{w.label}/{name}") for name in ("number", "goes_on", "joined"))
    for name, dtype in ((number, LONG), (goes_on, BOOL), (joined, TEXT)):
        w.dtypes[name] = dtype
    with w.subgraph() as nodes:
        part = w.add("Gather", parts, number, axis=1)
        longer = w.add("StringConcat", joined, w.constant(np.array(instead, TEXT))) if instead else joined
        longer = w.add("StringConcat", longer, part)
        stays = w.add("Identity", goes_on)
    inputs = [w.info(number, ()), w.info(goes_on, ()), w.info(joined, (None,))]
    body = w.graph_proto(nodes, "parts", inputs, [w.info(stays, ()), w.info(longer, (None,))])
    count = w.add("Squeeze", w.dim(parts, 1), w.ints(0))
    return w.add("Loop", count, "", nothing, dtype=TEXT, body=body)


def users_of(symbol: Symbol) -> list[Operation]:
    """Return the operations of a graph that take a value."""
    return [each for each in symbol.operation.graph.operations if any(given is symbol for given in each.inputs)]
