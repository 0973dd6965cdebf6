"""`Plan`: the parts of a decoder's graph, as a servable keeps them, and `trace`, which builds that graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....engine import ops
from ....engine.common.dtypes import as_dtype, name_of
from ....engine.common.nest import map_structure
from ....engine.common.quick_dataclass import dataclass
from ....engine.graph import Graph, IndexedSlices, Symbol, Tensor, Variable, flatten, pack_as
from ....engine.graph.spec import shape_accepts
from ....engine.passes.loops.independent_rows import why_rows_depend
from ....engine.session.placeholder import placeholder
from ....layers.core.input_spec import InputSpec
from ....layers.decoding.steps import CheckedStep, Step, check_at_least
from ...config import floatx
from ..signature import OPEN_INFERENCE, Signature, TensorInfo

if TYPE_CHECKING:
    from typing import TypedDict

    from ....engine.common.dtypes import DType
    from ....engine.ops.base import TensorLike
    from ...structures import Tensors

    class EntryDocument(TypedDict):
        """An `Entry` as values of JSON."""

        feeds: Sequence[str]
        fetches: Sequence[str]
        effects: Sequence[str]

    class PlanDocument(TypedDict):
        """A `Plan` as values of JSON."""

        slots: int
        max_length: int
        end_token: int
        vocabulary: int
        row_bytes: int
        entries: Mapping[str, EntryDocument]


CHUNK = 64  # how many tokens of a prompt `prefill` takes at once
TOKENS = "tokens"  # the name of a request's prompt, and of what it gets


class Entry(NamedTuple):
    """One way to run the graph.

    Attributes:
        feeds, fetches: names of tensors.
        effects: names of tensors whose operations write the states.
    """

    feeds: tuple[str, ...]
    fetches: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The facts about a decoder besides its graph.

    Attributes:
        slots: how many sequences are computed at once.
        max_length: the largest number of tokens of a sequence, those of its prompt included.
        end_token: the token that ends a sequence.
        vocabulary: how many tokens there are.
        row_bytes: the bytes of one sequence's states.
        entries: "begin", "clear" and "step"; with `prefill`, "first", "prefill" and "place" instead of "begin";
            "tokenize" and "detokenize" where there are such layers.
    """

    slots: int
    max_length: int
    end_token: int
    vocabulary: int
    row_bytes: int
    entries: Mapping[str, Entry]

    def to_json(self) -> dict[str, object]:
        """Return the plan as values for JSON."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {**numbers, "entries": {name: entry._asdict() for name, entry in self.entries.items()}}

    @classmethod
    def from_json(cls, document: PlanDocument, graph: Graph) -> Plan:
        """Return the plan that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: the document is not whole, or names what the graph does not hold.
        """
        entries = {
            # pyrefly: ignore[bad-typed-dict-key] - the fields are its keys
            str(name): Entry(*[tuple(map(str, entry[field])) for field in Entry._fields])
            for name, entry in document["entries"].items()
        }
        for name in ("clear", "step", *(("first", "prefill", "place") if "prefill" in entries else ("begin",))):
            if name not in entries:
                raise KeyError(name)
        for entry in entries.values():
            for tensor in (*entry.feeds, *entry.fetches, *entry.effects):
                graph.get_tensor_by_name(tensor)
        numbers = {name: int(document[name]) for name in _NUMBERS}
        check_at_least("Decoder", 1, slots=numbers["slots"], vocabulary=numbers["vocabulary"])
        return cls(**numbers, entries=entries)


_NUMBERS = ("slots", "max_length", "end_token", "vocabulary", "row_bytes")


class Parts(NamedTuple):
    """The functions and layers of a decoder; see `Decoder`."""

    step: Step
    begin: Callable[..., object]
    prefill: Callable[..., object] | None
    tokenizer: Callable[..., object] | None
    detokenizer: Callable[..., object] | None
    inputs: Mapping[str, InputSpec]


def trace(
    parts: Parts, *, slots: int, max_length: int, end_token: int, row_wise: bool
) -> tuple[Graph, Plan, Signature]:
    """Build the graph of a decoder: its states are variables, with a row for each slot.

    Raises:
        TypeError, ValueError: a function does not return what it should, or the step mixes rows.
    """
    graph = Graph()
    entries: dict[str, Entry] = {}
    with graph.as_default():
        row_inputs = {name: placeholder(*_row(name, spec), name) for name, spec in parts.inputs.items()}
        first = _first_states(parts.begin, row_inputs)
        if not row_wise:
            _check_rows(parts.step, first)
        leaves = flatten(first)
        states = [_state(number, leaf, slots) for number, leaf in enumerate(leaves)]
        slot = placeholder((1,), "int32", "slot")
        feeds = tuple(each.name for each in row_inputs.values())
        if parts.prefill is None:
            entries["begin"] = Entry((slot.name, *feeds), (), _placed(states, slot, leaves))
        else:
            entries["first"] = Entry(feeds, tuple(_symbol(each).name for each in leaves))
            entries.update(_prefilled(parts.prefill, first, states, slot))
        zeros = [ops.zeros((1, *(state.shape or ())[1:]), state.dtype) for state in states]
        entries["clear"] = Entry((slot.name,), (), _placed(states, slot, zeros))
        entries["step"], vocabulary = _stepped(parts.step, first, states, slots)
        entries.update(_texts(parts.tokenizer, parts.detokenizer))
    if end_token >= vocabulary:
        raise ValueError(f"Decoder: end_token is {end_token}, but the step's logits are for {vocabulary} tokens only.")
    row_bytes = sum(int(np.prod((state.shape or ())[1:])) * state.dtype.itemsize for state in states)
    plan = Plan(slots, max_length, end_token, vocabulary, row_bytes, entries)
    given = [TensorInfo(name, name_of(each.dtype), _sizes(each), each.name) for name, each in row_inputs.items()]
    tokens = TensorInfo(TOKENS, "int32", (None,), entries["step"].feeds[0])
    best = TensorInfo(TOKENS, "int32", (None,), entries["step"].fetches[0])
    return graph, plan, Signature((tokens, *given), (best,), "one")


def _sizes(tensor: Tensor) -> tuple[int | None, ...]:
    return tuple(tensor.shape or ())


def _row(name: str, spec: object) -> tuple[tuple[int | None, ...], str]:
    """Return shape and dtype of one row of an input."""
    if not isinstance(spec, InputSpec) or not spec.shape:
        raise TypeError(
            f"Decoder: inputs[{name!r}] must be an ab.InputSpec with a shape, the batch axis first; got {spec!r}."
        )
    dtype = name_of(as_dtype(floatx() if spec.dtype is None else spec.dtype))
    if name == TOKENS or dtype not in OPEN_INFERENCE:
        raise ValueError(f"Decoder: input {name!r} of dtype {dtype} can't be served. Use another name or dtype.")
    return (1, *spec.shape[1:]), dtype


def _first_states(begin: Callable[..., object], row_inputs: Mapping[str, Tensor]) -> Tensors:
    """Return the states of one row that begins.

    Raises:
        TypeError: `begin` can't be called so.
        ValueError: a state has no row axis, or a size that is not known.
    """
    try:
        inspect.signature(begin).bind(1, **row_inputs)
    except TypeError as error:
        names = "".join(f", {name}" for name in row_inputs)
        raise TypeError(f"Decoder: begin is called as begin(rows{names}), which it does not take: {error}.") from None
    except ValueError:
        pass  # a callable without a signature
    states = map_structure(_symbol, begin(1, **row_inputs))
    for number, leaf in enumerate(flatten(states)):
        shape = leaf.shape
        if not shape or shape[0] != 1 or None in shape:
            raise ValueError(
                f"Decoder: begin(1) gave state {number} of shape {shape}; expected (1, ...) with known sizes, since "
                "the memory of all slots is reserved in advance. Pad what has a length of its own to the longest."
            )
    return states


def _check_rows(step: Step, first: Tensors) -> None:
    """Raise a `ValueError` unless the step computes each row for itself."""
    probe = Graph()
    with probe.as_default():
        tokens = placeholder((None,), "int32", TOKENS)
        fed = [placeholder((None, *_sizes(leaf)[1:]), leaf.dtype, "state") for leaf in flatten(first)]
        logits, states = step(tokens, pack_as(first, fed))
        fetched = [_symbol(each) for each in (logits, *flatten(states))]
    why = why_rows_depend(probe, [tokens, *fed], fetched)
    if why is not None:
        raise ValueError(
            f"Decoder: the rows of a step belong to different requests, but {why}. If each row's results "
            "depend on that row alone, say so: Decoder(..., row_wise=True)."
        )


def _state(number: int, leaf: Tensor, slots: int) -> Variable:
    shape: Any = (slots, *_sizes(leaf)[1:])
    return Variable(np.zeros(shape, leaf.dtype), dtype=leaf.dtype, trainable=False, name=f"state_{number}")


def _placed(states: list[Variable], slot: Symbol, leaves: Sequence[Tensor]) -> tuple[str, ...]:
    """Write one row of all states; the names of what does it."""
    return tuple(
        state.scatter_update(IndexedSlices(leaf, slot, state.shape)).name
        for state, leaf in zip(states, leaves, strict=True)
    )


def _stepped(step: Step, first: Tensors, states: list[Variable], slots: int) -> tuple[Entry, int]:
    """Return the step of all slots, and the size of its vocabulary."""
    tokens = placeholder((slots,), "int32", TOKENS)
    before = [ops.convert_to_tensor(state) for state in states]
    read = pack_as(first, before)
    checked = CheckedStep("Decoder", step, tokens, read)
    logits, found, _ = checked(tokens, read, checked.sums.zeros(slots))
    new = flatten(found)
    _check_states("step", new, [(tuple(state.shape or ()), state.dtype) for state in states])
    best, found_logits = _symbol(ops.cast(ops.argmax(logits, axis=1), "int32")), _symbol(logits)
    # What is only read, such as the text that is translated, stays as it is.
    changed = [each for each in zip(states, new, before, strict=True) if each[1] is not each[2]]
    effects = [state.assign(leaf) for state, leaf, _ in changed]
    names = tuple(each.name for each in effects)
    return Entry((tokens.name,), (best.name, found_logits.name), names), checked.vocabulary


def _prefilled(
    prefill: Callable[..., object], first: Tensors, states: list[Variable], slot: Symbol
) -> dict[str, Entry]:
    """Return entries that take a chunk of one prompt, with states of its own, and put these into a slot."""
    tokens, lengths = placeholder((1, CHUNK), "int32", "chunk"), placeholder((1,), "int32", "lengths")
    apart = [placeholder(_sizes(leaf), leaf.dtype, "row_state") for leaf in flatten(first)]
    result = prefill(tokens, lengths, pack_as(first, apart))
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"Decoder: prefill must return a pair (logits, states), got {type(result).__name__}.")
    new = [_symbol(leaf) for leaf in flatten(result[1])]
    _check_states("prefill", new, [(_sizes(leaf), leaf.dtype) for leaf in apart])
    names = tuple(each.name for each in apart)
    return {
        "prefill": Entry((tokens.name, lengths.name, *names), tuple(each.name for each in new)),
        "place": Entry((slot.name, *names), (), _placed(states, slot, apart)),
    }


def _check_states(caller: str, found: Sequence[Tensor], wanted: Sequence[tuple[tuple[int | None, ...], DType]]) -> None:
    if len(found) != len(wanted):
        raise ValueError(f"Decoder: {caller} was given {len(wanted)} states, but returned {len(found)}.")
    for number, (leaf, (shape, dtype)) in enumerate(zip(found, wanted, strict=True)):
        sizes = leaf.shape
        if sizes is None or not shape_accepts(sizes, shape) or leaf.dtype != dtype:
            raise ValueError(
                f"Decoder: {caller} was given state {number} of shape {shape} and dtype {name_of(dtype)}, but returned "
                f"shape {sizes} and dtype {name_of(leaf.dtype)}."
            )


def _texts(tokenizer: Callable[..., object] | None, detokenizer: Callable[..., object] | None) -> dict[str, Entry]:
    """Return entries that make tokens of a text, and a text of tokens."""
    entries: dict[str, Entry] = {}
    if tokenizer is not None:
        text = placeholder((1,), "string", "text")
        tokens = _text_result("tokenizer", tokenizer(text))
        entries["tokenize"] = Entry((text.name,), (_symbol(ops.cast(tokens, "int32")).name,))
    if detokenizer is not None:
        tokens = placeholder((1, None), "int32", "generated")
        found = _text_result("detokenizer", detokenizer(tokens))
        if name_of(found.dtype) != "string":
            raise TypeError(f"Decoder: detokenizer must return strings, got {name_of(found.dtype)}.")
        entries["detokenize"] = Entry((tokens.name,), (found.name,))
    return entries


def _symbol(value: TensorLike) -> Symbol:
    """Return a tensor of the graph that is being built."""
    tensor = ops.convert_to_tensor(value)
    assert isinstance(tensor, Symbol)
    return tensor


def _text_result(caller: str, result: object) -> Symbol:
    if not isinstance(result, Symbol):
        raise TypeError(f"Decoder: {caller} must return a tensor, got {type(result).__name__}.")
    return result
