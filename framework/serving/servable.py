"""`Servable`: a loaded version of a model, which computes without the Python code that made it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.inference import RequestError
from ...engine.common.dtypes import name_of
from ...engine.graph import Graph, Operation, Variable, as_dtype
from ...engine.ops.base import Constant
from ...engine.passes.framework.prune import all_operations, needed_operations
from ...engine.passes.loops.independent_rows import why_rows_depend
from ...engine.runtime.program import Program
from ...engine.session.programs_by_size import ProgramsBySize
from ...layers.core.shape_programs import STATIC_PROGRAMS
from .lengths import Lengths, padded_length
from .signature import DEFAULT, Signature, check_given
from .storage import WARMUP, ServableError, pick_version, read_servable, read_warmup
from .values import as_input

if TYPE_CHECKING:
    from ...engine.graph import Symbol
    from ..structures import Array

_MOST_SHAPES = 16  # that are remembered, to compile a new version for them before it is asked


class Servable:
    """A callable of arrays, or of a dict of arrays, made by `load`.

    Attributes:
        path: the folder of this version.
        version: its number.
        signatures: what it takes and gives, by the signature's name.
        had_bounded_time: whether the time of the latest `run` follows from the shapes of its inputs.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1, kernel_initializer="ones")])
    >>> version = model.export("exported", verbose=False)
    >>> servable = ab.serving.load("exported")
    >>> servable.version, servable({"x": [[1.0, 2.0]]})
    (1, array([[3.]], dtype=float32))
    """

    def __init__(self, path: Path, version: int, graph: Graph, signatures: dict[str, Signature]) -> None:
        self.path = path
        self.version = version
        self.signatures = signatures
        self.had_bounded_time = False
        self._lock = threading.Lock()
        self._asked: dict[tuple[Any, ...], None] = {}  # signatures with shapes and dtypes, the latest last
        self._programs = {name: _programs(graph, signature) for name, signature in signatures.items()}
        self._bytes = _bytes_by_dtype(graph)
        self._why_alone = {name: _why_alone(graph, signature) for name, signature in signatures.items()}
        self._lengths = {name: Lengths(each) for name, each in signatures.items() if each.paddings}

    def signature(self, name: str = "") -> Signature:
        """Return the signature of a name, by default the one called "serving_default".

        Raises:
            RequestError: there is none of this name.
        """
        found = self.signatures.get(name or DEFAULT)
        if found is None:
            known = ", ".join(map(repr, self.signatures))
            raise RequestError(404, f"There is no signature {name or DEFAULT!r}. There are {known}.")
        return found

    def __call__(self, *args: Any, signature: str = "", **kwargs: Any) -> Any:
        """Compute the outputs.

        Args:
            *args: the inputs in order, or one dict of all of them.
            signature: the name of a signature.
            **kwargs: inputs by name.

        Returns:
            An array, or the list or dict of arrays that the model gave.

        Raises:
            ValueError: an input is missing, unknown, given twice, or does not fit, or there is no such signature.
        """
        try:
            found = self.signature(signature)
            given = _by_name([info.name for info in found.inputs], args, kwargs)
            self.check_names(found, given)
            arrays = [as_input(info, given[info.name]) for info in found.inputs]
            outputs = self.run(arrays, signature, first=STATIC_PROGRAMS)  # predict has as many
        except RequestError as error:
            raise ValueError(str(error)) from None
        if found.outputs_as == "one":
            return outputs[0]
        return outputs if found.outputs_as == "list" else self.by_name(found, outputs)

    @staticmethod
    def check_names(signature: Signature, given: Mapping[str, object]) -> None:
        """Raise a `RequestError` unless exactly the inputs of a signature are given."""
        if len(given) == len(signature.inputs) and all(info.name in given for info in signature.inputs):
            return
        check_given([info.name for info in signature.inputs], given)

    @staticmethod
    def by_name(signature: Signature, outputs: Sequence[Array]) -> dict[str, Array]:
        """Return the outputs by their names."""
        return {info.name: array for info, array in zip(signature.outputs, outputs, strict=True)}

    def bytes_by_dtype(self) -> dict[str, int]:
        """Return how many bytes weights and constants take in memory, by dtype, the most first."""
        return dict(self._bytes)

    def why_alone(self, signature: str = "") -> str | None:
        """Say why rows of several requests can't be computed together; None if they can.

        Each row's outputs depend on that row alone if the graph shows it, operation by operation. The sentence names
        the operation for which it does not.
        """
        return self._why_alone[signature or DEFAULT]

    def lengths(self, signature: str = "") -> Lengths | None:
        """Return the way to fill up the sequences of several requests to one length; None if they can't be."""
        return self._lengths.get(signature or DEFAULT)

    def first_states(self, rows: int, signature: str = "") -> list[Array]:
        """Return the states with which `rows` sequences begin; there are none without stateful layers."""
        states = self.signatures[signature or DEFAULT].states
        return [np.zeros((rows, *[size or 0 for size in each.shape[1:]]), as_dtype(each.dtype)) for each in states]

    def warm_up(self, max_batch_size: int) -> None:
        """Compute the requests that the servable brings, so that programs for their shapes are compiled.

        Where rows may be joined, they are computed in batches of each power of two up to `max_batch_size`.

        Raises:
            ServableError: the file with the requests is damaged, or does not fit the signatures.
            RequestError: an op refuses them.
        """
        for name, inputs in read_warmup(self.path):
            try:
                infos = self.signature(name).inputs
                self.check_names(self.signature(name), inputs)
                arrays = [as_input(info, inputs[info.name]) for info in infos]
            except RequestError as error:
                raise ServableError(f"{WARMUP} of {str(self.path)!r}: {error}") from None
            lengths = self.lengths(name)
            found = None if lengths is None else lengths.of(arrays)
            if lengths is not None and found is not None:
                arrays = lengths.pad(arrays, [padded_length(each) for each in found])
            self.run(arrays, name)
            rows = len(arrays[0]) if arrays[0].ndim else 0
            size = 1 if rows and self.why_alone(name) is None else max_batch_size + 1
            while size <= max_batch_size:
                self.run([np.resize(array, (size, *array.shape[1:])) for array in arrays], name)
                size *= 2

    def recent(self) -> list[tuple[str, list[Array]]]:
        """Return signatures with arrays of zeros, of the shapes that were computed last."""
        with self._lock:
            kinds = list(self._asked)
        return [(signature, [np.zeros(shape, dtype) for shape, dtype in arrays]) for signature, *arrays in kinds]

    def takes(self, signature: str, arrays: Sequence[Array]) -> bool:
        """Test whether there is such a signature, and its inputs have shapes and dtypes that arrays fit."""
        found = self.signatures.get(signature)
        return (
            found is not None
            and len(found.inputs) == len(arrays)
            and all(
                info.accepts(array.shape) and as_dtype(info.dtype) == array.dtype
                for info, array in zip(found.inputs, arrays, strict=True)
            )
        )

    def check_rows(self, arrays: Sequence[Array], signature: str = "") -> None:
        """Check that all inputs with a batch axis have the same number of rows.

        Raises:
            RequestError: they have not.
        """
        found = self.signatures[signature or DEFAULT]
        if len(found.inputs) == 1:
            return
        rows = {i.name: len(a) for i, a in zip(found.inputs, arrays, strict=False) if i.shape and i.shape[0] is None}
        if len(set(rows.values())) > 1:
            listed = ", ".join(f"{name!r}: {count}" for name, count in rows.items())
            raise RequestError(400, f"All inputs must have the same number of rows (size of axis 0). Got {listed}.")

    def run(self, arrays: Sequence[Array], signature: str = "", first: int = 0) -> list[Array]:
        """Return the outputs for arrays that fit the signature's inputs; callers wait for each other.

        Where layers are stateful, arrays may go on with their states, and then the outputs go on with the new ones;
        without these, each row begins a sequence. `first` is that of `ProgramsBySize.get`: in a server sizes alone
        decide which program computes.

        Raises:
            RequestError: the inputs differ in their rows, or an op refuses the values.
        """
        self.check_rows(arrays, signature)
        programs, found = self._programs[signature or DEFAULT], self.signatures[signature or DEFAULT]
        given = len(found.outputs)
        if len(arrays) > len(found.inputs):
            given += len(found.states)
        elif found.states:
            arrays = [*arrays, *self.first_states(len(arrays[0]), signature)]
        kind = (signature or DEFAULT, *[(array.shape, array.dtype) for array in arrays])
        try:
            with self._lock:
                self._asked.pop(kind, None)
                self._asked[kind] = None
                if len(self._asked) > _MOST_SHAPES:
                    del self._asked[next(iter(self._asked))]
                program = programs.get(arrays, first)
                values = program(*arrays)
                self.had_bounded_time = isinstance(program, Program) and program.has_bounded_time
        except (ValueError, TypeError, IndexError, ArithmeticError) as error:
            raise RequestError(400, f"The model can't compute this: {error}") from error
        return [np.asarray(value) for value in values[:given]]


def _by_name(names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the inputs of a call by name."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        given = dict(args[0])
    elif len(args) > len(names):
        raise ValueError(f"Expected {len(names)} inputs ({', '.join(names)}), got {len(args)}.")
    else:
        given = dict(zip(names, args, strict=False))
    for name in given.keys() & kwargs.keys():
        raise ValueError(f"Input {name!r} is given twice.")
    return {**given, **kwargs}


def _programs(graph: Graph, signature: Signature) -> ProgramsBySize:
    feeds, fetches = _feeds_and_fetches(graph, signature)
    effects = [each for each in graph.operations if each.writes and _is_computed_from(graph, each, feeds)]
    return ProgramsBySize(graph, [*fetches, *effects], feeds)


def _feeds_and_fetches(graph: Graph, signature: Signature) -> tuple[list[Symbol], list[Symbol]]:
    """Return the inputs and outputs, each with states behind."""
    feeds = [*[info.tensor for info in signature.inputs], *[each.before for each in signature.states]]
    fetches = [*[info.tensor for info in signature.outputs], *[each.after for each in signature.states]]
    return [graph.get_tensor_by_name(name) for name in feeds], [graph.get_tensor_by_name(name) for name in fetches]


def _is_computed_from(graph: Graph, operation: Operation, feeds: Sequence[Symbol]) -> bool:
    """Test whether these inputs are enough for an operation; others belong to other signatures."""
    return not any(each.type == "placeholder" for each in needed_operations(graph, [operation], feeds))


def _bytes_by_dtype(graph: Graph) -> dict[str, int]:
    found: Counter[str] = Counter()
    held: dict[int, Array] = {}
    for operation in all_operations(graph.operations):
        if isinstance(operation.op, Constant):
            held[id(operation.op)] = operation.op.value
        for effect in operation.effects:
            if isinstance(effect.resource, Variable):
                held[id(effect.resource)] = effect.resource.stored_value()
    for array in held.values():
        found[name_of(array.dtype)] += int(array.nbytes)
    return dict(found.most_common())


def _why_alone(graph: Graph, signature: Signature) -> str | None:
    feeds, fetches = _feeds_and_fetches(graph, signature)
    if not feeds:
        return "there are no inputs"
    if signature.row_wise is not None:
        return None if signature.row_wise else "it was exported with row_wise=False"
    if any(operation.writes for operation in graph.operations):
        return "the model changes its state"
    return why_rows_depend(graph, feeds, fetches)


def load(filepath: str | os.PathLike[str], version: int | None = None) -> Servable:
    """Load a version of a servable that `model.export` wrote. No code is run, and no class of the model is needed.

    Args:
        filepath: what was given to `export`.
        version: the version; by default the highest.

    Returns:
        A callable of arrays, or of a dict of them. The same rows in one batch give the bits of `predict`, as long as
        neither has computed more than three shapes. Later `predict` has one program for all shapes, and a servable one
        for all but up to 64 rows, up to 32 along other open axes, and powers of two: numbers agree up to rounding.

    Raises:
        ServableError: there is no such version, it is damaged, or it is a decoder (see `load_decoder`).

    >>> import tempfile
    >>> import numpy as np
    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1, kernel_initializer="ones")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     version = model.export(folder, verbose=False)
    ...     servable = ab.serving.load(folder)
    ...     servable({"x": [[1.0, 2.0]]})
    array([[3.]], dtype=float32)
    """
    number = pick_version(filepath, version)
    path = Path(filepath) / str(number)
    contents = read_servable(path)
    if contents.decoder is not None:
        raise ServableError(f"{str(path)!r} holds a decoder. Load it with ab.serving.load_decoder.")
    return Servable(path, number, contents.graph, contents.signatures)
