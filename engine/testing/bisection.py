"""`bisect`: find the rewrite after which a step's results depart from the interpreter's, as a test."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..common.nest import flatten
from ..common.quick_dataclass import dataclass
from ..graph.dump import dump_operations
from ..graph.graph import Graph, Operation, Placeholder
from ..graph.op import is_array
from ..graph.spec import TensorSpec
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..passes.framework import limits
from ..passes.framework.log import Note, recording
from ..passes.framework.prune import all_operations, needed_operations
from ..passes.framework.specialise import Specialised
from ..passes.framework.switches import only
from ..runtime.interpreter import Interpreter
from ..runtime.program import Program, copied_value
from ..saving.files import array_document, graph_to_dict

Values = Mapping[Symbol, Any]


@dataclass(frozen=True)
class Blame:
    """A rewrite that changes what a step computes.

    Attributes:
        number: its number among the rewrites of the step, from 1 (``ANABRANCH_REWRITES=number`` is the first that
            shows it); 0 where the step departs without any rewrite, so that what prints or runs it is to blame.
        rewrites: how many rewrites the step gets.
        notes: what the passes said of the rewrite, as `explain(passes=True)` prints it: pass, operation, text.
        operations: the few operations that still show it, as `Graph.dump` writes them.
        test: the text of a test that fails as long as they do.

    >>> import anabranch as ab
    >>> print(ab.testing.Blame(7, 12, ("fold: '4 * x' became '3 * x'",), "mul = multiply(x, 4)", "def test_mul(): ..."))
    Rewrite 7 of 12 changes the results:
        fold: '4 * x' became '3 * x'
    It shows in:
        mul = multiply(x, 4)
    """

    number: int
    rewrites: int
    notes: tuple[str, ...]
    operations: str
    test: str

    def __str__(self) -> str:
        listed = "\n".join(f"    {note}" for note in self.notes) or "    none: what prints or runs the step is to blame"
        shown = textwrap.indent(self.operations, "    ")
        return f"Rewrite {self.number} of {self.rewrites} changes the results:\n{listed}\nIt shows in:\n{shown}"


def bisect(
    fetches: Any, feeds: Mapping[Any, Any] | None = None, rtol: float = 1e-4, atol: float = 1e-5
) -> Blame | None:
    """Find the rewrite after which the results of a step depart from the interpreter's.

    The step is compiled with 0, 1, 2... rewrites allowed, by bisection, and run each time. Then its inputs are cut off
    one after the other, as long as the rest still departs. Variables have their values back afterwards.

    Args:
        fetches: tensors and operations of one graph, in any structure. Of an operation, such as an assignment or the
            update of an optimizer, the outputs are compared; of a group, those of the operations that it waits for.
        feeds: values by placeholders.
        rtol, atol: how far results may be from the interpreter's, as in `numpy.allclose`; NaN equals NaN.

    Returns:
        the `Blame`, whose text says which rewrite it is and whose `test` reproduces it; None if results agree.

    Raises:
        ValueError: nothing is fetched.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> x = ab.placeholder((3,), "float32")
    >>> print(ab.testing.bisect(ab.ops.exp(x) / 2, {x: np.ones(3)}))
    None

    The idea is that of LLVM's ``-opt-bisect-limit``.
    """
    leaves = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
    targets = [t for leaf in leaves for t in (_values_of(leaf) if isinstance(leaf, Operation) else [leaf])]
    if not targets:
        raise ValueError("bisect: there is nothing to fetch; expected a tensor, or a structure of tensors.")
    given = {placeholder: np.asarray(value, placeholder.dtype) for placeholder, value in (feeds or {}).items()}
    search = _Search(targets[0].graph, rtol, atol)
    rewrites = search.departs(targets, given, -1)
    if rewrites is None:
        return None
    number = search.first_departing(targets, given, rewrites)
    notes = search.notes_of(targets, given, number)
    target, cut = search.reduced(targets, given)
    return Blame(number, rewrites, notes, *_as_test(search.graph, target, cut))


def _values_of(operation: Operation) -> list[Symbol]:
    """Return what can be compared of an operation."""
    waited = () if operation.outputs else operation.control_inputs
    return [*operation.outputs, *[tensor for each in waited for tensor in each.outputs]]


class _Search:
    """Runs steps of one graph under limits of rewrites, and compares them with the interpreter."""

    def __init__(self, graph: Graph, rtol: float, atol: float) -> None:
        self.graph = graph
        self._rtol, self._atol = rtol, atol
        effects = [effect for o in all_operations(graph.operations) for effect in o.effects]
        resources = dict.fromkeys(effect.resource for effect in effects)
        self._variables = {each: copied_value(each.stored_value()) for each in resources if isinstance(each, Variable)}

    def departs(self, targets: Sequence[Symbol], given: Values, most: int) -> int | None:
        """Return how many rewrites the step gets under a limit if its results depart; None if they do not."""
        expected = self._restored(lambda: Interpreter().run(self.graph, targets, given))
        with limits.at_most(most):
            program = self._program(targets, given)
            rewrites = limits.rewrites_done()
        values = [np.asarray(value)[()] for value in given.values()]
        found = self._restored(lambda: program(*values))
        agree = all(self._agree(one, other) for one, other in zip(found, expected, strict=True))
        return None if agree else rewrites

    def _program(self, targets: Sequence[Symbol], given: Values) -> Program:
        specs = [TensorSpec(np.shape(value), tensor.dtype) for tensor, value in given.items()]
        return Program(self.graph, targets, list(given), specs)

    def _restored(self, run: Any) -> Any:
        try:
            return run()
        finally:
            for variable, value in self._variables.items():
                variable.write_value(copied_value(value))  # which steps may write into

    def _agree(self, one: Any, other: Any) -> bool:
        leaves, others = ([leaf for leaf in flatten(value) if is_array(leaf)] for value in (one, other))
        if not leaves:
            leaves, others = [np.asarray(one)], [np.asarray(other)]
        return len(leaves) == len(others) and all(map(self._close, leaves, others))

    def _close(self, one: Any, other: Any) -> bool:
        if one.shape != other.shape or one.dtype.kind not in "biufc":
            return one.shape == other.shape and bool(np.all(one == other))
        return bool(np.allclose(one, other, self._rtol, self._atol, equal_nan=True))

    def first_departing(self, targets: Sequence[Symbol], given: Values, most: int) -> int:
        """Return the smallest number of rewrites with which results depart."""
        if self.departs(targets, given, 0) is not None:
            return 0
        good, bad = 0, most
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.departs(targets, given, middle) is None:
                good = middle
            else:
                bad = middle
        return bad

    def notes_of(self, targets: Sequence[Symbol], given: Values, number: int) -> tuple[str, ...]:
        """Return what passes note of the last of `number` rewrites: what they do not note with one less."""
        if number == 0:
            return ()
        notes: list[list[Note]] = []
        for most in (number - 1, number):
            with limits.at_most(most), recording() as log:
                self._program(targets, given)
            notes.append(log.changes)
        before = set(notes[0])
        return tuple(f"{n.pass_name}: {n.operation}: {n.text}" for n in notes[1] if n not in before)

    def reduced(self, targets: Sequence[Symbol], given: Values) -> tuple[Symbol, dict[Symbol, Any]]:
        """Return one tensor and what to feed it with, so that few operations remain that still depart."""
        needed = needed_operations(self.graph, targets, given)
        candidates = [tensor for o in needed for tensor in o.outputs if isinstance(tensor.spec, TensorSpec)]
        target = next((tensor for tensor in [*candidates, *targets] if self._shows(tensor, given)), targets[0])
        cut = dict(given)
        for operation in reversed(needed_operations(self.graph, [target], given)):
            self._cut_inputs(operation, target, cut)
        used = {t for o in needed_operations(self.graph, [target], cut) for t in o.inputs}
        return target, {tensor: value for tensor, value in cut.items() if tensor in used}

    def _cut_inputs(self, operation: Operation, target: Symbol, cut: dict[Symbol, Any]) -> None:
        for tensor in dict.fromkeys(operation.inputs):
            fixed = isinstance(tensor.operation.op, (Constant, Placeholder, ReadVariable))
            if fixed or tensor in cut or not isinstance(tensor.spec, TensorSpec):
                continue
            (value,) = self._restored(lambda tensor=tensor: Interpreter().run(self.graph, [tensor], cut))
            if self._shows(target, {**cut, tensor: value}):
                cut[tensor] = value

    def _shows(self, target: Symbol, given: Values) -> bool:
        try:
            return self.departs([target], given, -1) is not None
        except Exception:  # what can't be run apart shows nothing
            return False


def _as_test(graph: Graph, target: Symbol, cut: Values) -> tuple[str, str]:
    """Return the operations that compute `target` from `cut`, as a dump and as a test."""
    copy = Specialised(share=False)
    with only(), limits.at_most(0), limits.counted():
        specs = {tensor: TensorSpec(np.shape(value), tensor.dtype) for tensor, value in cut.items()}
        copy.copy_step(needed_operations(graph, [target], cut), specs, [target])
    shown = dump_operations([o for o in copy.graph.operations if not isinstance(o.op, Placeholder)])
    feeds = {copy.tensors[tensor].name_in_graph: array_document(np.asarray(value)) for tensor, value in cut.items()}
    lines = [
        '"""Found by `anabranch.testing.bisect`:',
        "",
        *textwrap.indent(shown, "    ").splitlines(),
        '"""',
        "import json",
        "",
        "import anabranch as ab",
        "from anabranch.engine.saving import graph_from_dict",
        "from anabranch.engine.saving.files import read_array",
        "",
        f"GRAPH = {json.dumps(graph_to_dict(copy.graph))!r}",
        f"FEEDS = {feeds!r}",
        "",
        "",
        "def test_no_rewrite_changes_the_results():",
        "    graph = graph_from_dict(json.loads(GRAPH))",
        f"    target = graph.get_tensor_by_name({copy.tensors[target].name_in_graph!r})",
        "    feeds = {graph.get_tensor_by_name(name): read_array(entry) for name, entry in FEEDS.items()}",
        "    assert ab.testing.bisect(target, feeds) is None",
    ]
    return shown, "\n".join(lines) + "\n"


__all__ = ["Blame", "bisect"]
