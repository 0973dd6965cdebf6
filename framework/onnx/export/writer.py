"""`Writer`: the nodes, initialisers and names of an ONNX model that is being written."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ...structures import Array
from ..protos import element_type, load_onnx
from .runtime_types import wider_type

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import ArrayLike
    from onnx import GraphProto, NodeProto, ValueInfoProto

    from ....engine.common.dtypes import DTypeLike

FLOAT, INT, LONG, BOOL = np.dtype("float32"), np.dtype("int32"), np.dtype("int64"), np.dtype("bool")
_SHARED_BYTES = 1024  # constants up to this size are written once, however often they are used


T = TypeVar("T")


class Writer:
    """Appends nodes to the graph that is being written: the model's own, or one inside a loop or branch.

    Every value has a name that is unique in the whole model, as ONNX asks for single assignment over all nested graphs.

    Attributes:
        opset: the version of the operators.
        nodes: those of the graph that is being written.
        initializers: arrays by name; all belong to the outermost graph, which nested graphs see.
        dtypes: the dtype of each value.
        domains: of operators that are not ONNX's own.
        weights: the initialisers that hold values of variables, also turned; others are constants.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, Array] = {}
        self.dtypes: dict[str, DType] = {}
        self.weights: set[str] = set()
        self.domains: set[str] = set()
        self.label = ""  # of the operation that is being written, from which names are made
        self._names: dict[str, int] = {}
        self._constants: dict[Hashable, str] = {}
        self._memos: list[dict[Hashable, Any]] = [{}]
        self._producers: dict[str, NodeProto] = {}

    # --- names and constants --------------------------------------------------------------------------------

    def new_name(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with a number behind it if it is taken."""
        wanted = re.sub(r"[^\w./\-\[\]']", "_", wanted) or "value"
        count = self._names.get(wanted)
        if count is None:
            self._names[wanted] = 0
            return wanted
        while True:
            count += 1
            candidate = f"{wanted}_{count}"
            if candidate not in self._names:
                self._names[wanted], self._names[candidate] = count, 0
                return candidate

    def constant(self, array: ArrayLike, dtype: DTypeLike | None = None, name: str = "constant") -> str:
        """Return the name of an initialiser with this value; small ones are shared."""
        array = np.asarray(array, dtype) if dtype is not None else np.asarray(array)
        text = dtypes.is_string(array.dtype)
        key: Hashable = None
        if array.nbytes <= _SHARED_BYTES:
            content = tuple(map(str, array.ravel())) if text else array.tobytes()
            key = (array.dtype, array.shape, content)
            if key in self._constants:
                return self._constants[key]
        element_type(array.dtype)  # raises where ONNX has no such type
        made = self.new_name(name)
        self.initializers[made] = array
        self.dtypes[made] = array.dtype
        if key is not None:
            self._constants[key] = made
        return made

    def ints(self, *values: int) -> str:
        """Return the name of a constant vector of int64, which shapes and axes are made of."""
        return self.constant(np.array(values, LONG), name="axes" if len(values) < 3 else "shape")

    def like(self, value: float, other: str) -> str:
        """Return the name of a scalar constant of the dtype of another value."""
        return self.constant(np.array(value).astype(self.dtypes[other]))

    def known(self, name: str) -> Any:
        """Return the array of an initialiser, or None for what is computed."""
        return self.initializers.get(name)

    # --- nodes ----------------------------------------------------------------------------------------------

    def add(
        self,
        op_type: str,
        *inputs: str,
        dtype: DTypeLike | None = None,
        name: str | None = None,
        **attributes: object,
    ) -> str:
        """Append a node with one output and return its name.

        Args:
            op_type: ONNX's name of the operator.
            *inputs: names of values; an empty name is an optional input that is left out.
            dtype: of the output; by default that of the first input.
            name: from which the output's name is made.
            **attributes: the operator's, as Python values, those that are None left out; one that is named as an
                argument here has an underscore behind it.

        Where onnxruntime has no kernel for a type, the inputs are cast to a wider one, and the result back.
        """
        return self.add_many(op_type, *inputs, dtypes=[dtype], name=name, **attributes)[0]

    def add_many(
        self,
        op_type: str,
        *inputs: str,
        dtypes: Sequence[object],
        name: str | None = None,
        **attributes: object,
    ) -> list[str]:
        """Append a node with an output for each of `dtypes` and return their names; see `add`."""
        first = self.dtypes[inputs[0]] if inputs and inputs[0] else None
        found: list[Any] = [first if dtype is None else dtype for dtype in dtypes]
        casts = {each: wider_type(op_type, self.dtypes[each], k) for k, each in enumerate(inputs) if each}
        casts = {each: wide for each, wide in casts.items() if wide is not None}
        if not casts:
            return self._append(op_type, inputs, found, name, attributes)
        narrow = {self.dtypes[each]: wide for each, wide in casts.items()}
        wide_inputs = [self.cast(each, narrow[self.dtypes[each]]) if each in casts else each for each in inputs]
        if op_type == "Cast":
            return self._append(op_type, wide_inputs, found, name, attributes)
        inner = [narrow.get(dtype, dtype) for dtype in found]
        results = self._append(op_type, wide_inputs, inner, None, attributes)
        return [
            result if wide == dtype else self.cast(result, dtype)
            for result, wide, dtype in zip(results, inner, found, strict=True)
        ]

    def _append(
        self,
        op_type: str,
        inputs: Sequence[str],
        found: Sequence[Any],
        name: str | None,
        attributes: dict[str, object],
    ) -> list[str]:
        helper = load_onnx().helper
        base = name or f"{self.label}/{op_type}" if self.label else name or op_type
        outputs = [self.new_name(base if len(found) == 1 else f"{base}_{k}") for k in range(len(found))]
        given = {key.rstrip("_"): value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **given)
        self.nodes.append(node)
        for output, dtype in zip(outputs, found, strict=True):
            self.dtypes[output] = dtype
            self._producers[output] = node
        return outputs

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, which is called once for each key and graph (and the graphs inside of that)."""
        for memo in reversed(self._memos):
            if key in memo:
                return memo[key]
        made = self._memos[-1][key] = make()
        return made

    @contextmanager
    def subgraph(self) -> Generator[list[NodeProto]]:
        """Append to a new graph inside of the block; yield its list of nodes."""
        before, self.nodes = self.nodes, []
        self._memos.append({})
        try:
            yield self.nodes
        finally:
            self.nodes = before
            self._memos.pop()

    # --- what many rules use --------------------------------------------------------------------------------

    def cast(self, name: str, dtype: DTypeLike) -> str:
        """Return a value in another dtype; the value itself if it has that."""
        dtype = np.dtype(dtype)
        if self.dtypes[name] == dtype:
            return name
        known = self.known(name)
        if known is not None and known.size <= _SHARED_BYTES and not dtypes.is_string(known.dtype):
            with np.errstate(all="ignore"):
                return self.constant(known.astype(dtype))
        return self.once(("cast", name, dtype), lambda: self.add("Cast", name, dtype=dtype, to=element_type(dtype)))

    def transpose(self, name: str, axes: Sequence[int]) -> str:
        """Return a value with its axes in another order: initialisers are turned now, double turns are left out."""
        axes = [int(axis) for axis in axes]
        if axes == list(range(len(axes))):
            return name
        known = self.known(name)
        if known is not None:
            return self.once(("transpose", name, *axes), lambda: self._turned(name, np.transpose(known, axes)))
        producer = self.producer_of(name, "Transpose")
        if producer is not None:
            inner = list(producer.attribute[0].ints)
            return self.transpose(producer.input[0], [inner[axis] for axis in axes])
        return self.once(("transpose", name, *axes), lambda: self.add("Transpose", name, perm=axes))

    def producer_of(self, name: str, op_type: str) -> NodeProto | None:
        """Return the node of a type that gives a value; None where none of that type does."""
        found = self._producers.get(name)
        return found if found is not None and found.op_type == op_type else None

    def _turned(self, name: str, array: Array) -> str:
        if name not in self.weights:
            return self.constant(np.ascontiguousarray(array), name=f"{name}/transposed")
        return self.weight_of(name, np.ascontiguousarray(array))

    def weight_of(self, name: str, array: Array) -> str:
        """Return an initialiser that holds the values of another, which is a weight, in another order."""
        made = self.new_name(f"{name}/turned")
        self.initializers[made], self.dtypes[made] = array, array.dtype
        self.weights.add(made)
        return made

    def shape(self, name: str) -> str:
        """Return the shape of a value, a vector of int64."""
        return self.once(("shape", name), lambda: self.add("Shape", name, dtype=LONG))

    def dim(self, name: str, axis: int) -> str:
        """Return the size of an axis, as an int64 vector of one element."""
        end = axis + 1 if axis != -1 else None
        return self.once(("dim", name, axis), lambda: self.add("Shape", name, dtype=LONG, start=axis or None, end=end))

    def vector(self, name: str) -> str:
        """Return an integer scalar as an int64 vector of one element, from which shapes are put together."""
        known = self.known(name)
        if known is not None:
            return self.ints(int(known))
        wide = self.once(("wide", name), lambda: self.cast(name, LONG))
        return self.once(("vector", name), lambda: self.add("Unsqueeze", wide, self.ints(0)))

    def note_vector(self, scalar: str, vector: str) -> None:
        """Take note that an integer scalar was made of an int64 vector of one element."""
        self._memos[-1]["vector", scalar] = vector

    def filled(self, static: Sequence[int | None], dynamic: Sequence[str]) -> str:
        """Return a shape, an int64 vector: `static`, its Nones replaced in order by integer scalars."""
        if None not in static:
            return self.ints(*[int(dim or 0) for dim in static])
        remaining = iter(dynamic)
        parts: list[str] = []
        run: list[int] = []
        for dim in static:
            if dim is not None:
                run.append(dim)
                continue
            if run:
                parts.append(self.ints(*run))
                run = []
            parts.append(self.vector(next(remaining)))
        if run:
            parts.append(self.ints(*run))
        return self.concat(parts, 0)

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Return values joined along an axis; a single one as it is."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=axis)

    def reshape(self, name: str, shape: str) -> str:
        """Return a value in another shape, an int64 vector in which a 0 means no elements."""
        return self.add("Reshape", name, shape, allowzero=1)

    def squeeze(self, name: str, *axes: int) -> str:
        """Return a value without axes of size 1."""
        return self.add("Squeeze", name, self.ints(*axes)) if axes else name

    def unsqueeze(self, name: str, *axes: int) -> str:
        """Return a value with new axes of size 1, at these places of the result."""
        return self.add("Unsqueeze", name, self.ints(*axes)) if axes else name

    def where(self, condition: str, x: str, y: str) -> str:
        """Return `x` where the condition holds, else `y`."""
        return self.add("Where", condition, x, y, dtype=self.dtypes[x])

    def compare(self, op_type: str, x: str, y: str) -> str:
        """Return the result of a comparison, bools."""
        return self.add(op_type, x, y, dtype=BOOL)

    def negate(self, condition: str) -> str:
        """Return the bools inverted."""
        return self.add("Not", condition)

    def slice(self, name: str, start: int | str, end: int | str, axis: int, step: int | str = 1) -> str:
        """Return a slice along one axis; bounds are ints, or int64 vectors of one element."""
        bounds = [self.ints(each) if isinstance(each, int) else each for each in (start, end, axis, step)]
        if step == 1:
            bounds = bounds[:3]
        return self.add("Slice", name, *bounds)

    def expand(self, name: str, shape: str) -> str:
        """Return a value broadcast to a shape, an int64 vector."""
        return self.add("Expand", name, shape)

    def zeros(self, shape: str, dtype: DTypeLike) -> str:
        """Return zeros of a shape, an int64 vector."""
        return self.expand(self.constant(np.zeros((), dtype)), shape)

    def info(self, name: str, shape: Sequence[int | str | None] | None) -> ValueInfoProto:
        """Return a ValueInfoProto of a value."""
        return load_onnx().helper.make_tensor_value_info(name, element_type(self.dtypes[name]), shape)

    def graph_proto(
        self, nodes: list[NodeProto], name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]
    ) -> GraphProto:
        """Return a GraphProto for a loop or branch."""
        return load_onnx().helper.make_graph(nodes, self.new_name(name), list(inputs), list(outputs))

    def own(self, nodes: list[NodeProto], name: str, taken: set[str]) -> str:
        """Return a value as an output of the graph of `nodes`, which must be one of its own, and there only once."""
        made = any(name in node.output for node in nodes)
        if made and name not in taken:
            taken.add(name)
            return name
        fresh = self.add("Identity", name)
        taken.add(fresh)
        return fresh

    def sequence_info(self, name: str) -> ValueInfoProto:
        """Return a ValueInfoProto of a sequence of tensors of any shapes."""
        kind = element_type(self.dtypes[name])
        return load_onnx().helper.make_tensor_sequence_value_info(name, kind, None)

    def empty_sequence(self, dtype: DType) -> str:
        """Return a sequence without elements."""
        return self.add("SequenceEmpty", dtype=dtype, dtype_=element_type(dtype))

    def either(
        self,
        condition: str,
        then: Callable[[], str],
        otherwise: Callable[[], str],
        info: Callable[[str], ValueInfoProto],
    ) -> str:
        """Return one of two values, by `If`.

        Args:
            condition: a scalar of bools.
            then: appends the nodes that make the value where the condition holds.
            otherwise: those where it does not.
            info: gives the ValueInfoProto of a value.
        """
        sides: list[GraphProto] = []
        name = ""
        for make in (then, otherwise):
            with self.subgraph() as nodes:
                name = self.own(nodes, make(), set())
            sides.append(self.graph_proto(nodes, "branch", [], [info(name)]))
        return self.add("If", condition, dtype=self.dtypes[name], then_branch=sides[0], else_branch=sides[1])

    def repeat(
        self,
        trips: str,
        states: Sequence[str],
        body: Callable[[str, Sequence[str]], tuple[Sequence[str], Sequence[str]]],
        info: Callable[[str], ValueInfoProto],
        scan_ranks: Sequence[int] = (),
    ) -> list[str]:
        """Append a `Loop`; return the final states, then the scan outputs.

        Args:
            trips: the number of iterations, an int64 scalar.
            states: the initial values of what is carried.
            body: takes the number of the iteration, int64, and the states; appends the nodes that make the next
                states, and the elements of scan outputs.
            info: gives the ValueInfoProto of a state.
            scan_ranks: those of the elements of scan outputs.
        """
        with self.subgraph() as nodes:
            iteration, goes_on = self.new_name("iteration"), self.new_name("goes_on")
            self.dtypes[iteration], self.dtypes[goes_on] = LONG, BOOL
            names = [self.new_name(f"{state}/state") for state in states]
            for name, state in zip(names, states, strict=True):
                self.dtypes[name] = self.dtypes[state]
            following, scans = body(iteration, names)
            taken: set[str] = set()
            again, *own = [self.own(nodes, name, taken) for name in (goes_on, *following, *scans)]
        following, scans = own[: len(names)], own[len(names) :]
        outputs = [self.info(again, ()), *[info(name) for name in following]]
        outputs += [self.info(name, [None] * rank) for name, rank in zip(scans, scan_ranks, strict=True)]
        inputs = [self.info(iteration, ()), self.info(goes_on, ()), *[info(name) for name in names]]
        graph = self.graph_proto(nodes, "body", inputs, outputs)
        dtypes = [self.dtypes[name] for name in own]
        return self.add_many("Loop", trips, "", *states, dtypes=dtypes, body=graph)
