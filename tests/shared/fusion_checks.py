"""Shared by the tests of fusion and of shared buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

from .symbols import AnyTensor, feeds_of, symbols_of, targets_of

X = np.arange(1, 13, dtype="float32").reshape(3, 4)


def prepared(targets: Sequence[Tensor | Operation], feeds: Sequence[Tensor]) -> Step:
    rule = fusion_rule()
    assert rule is not None
    wanted = targets_of(targets)
    return prepare(wanted[0].graph, wanted, symbols_of(feeds), rule=rule)


def groups(targets: Sequence[Tensor | Operation], feeds: Sequence[Tensor] = ()) -> list[str]:
    """The fused operations of a step, each as the names of its ops; those of loops and branches behind their owner."""
    found = all_operations(prepared(targets, feeds).operations)
    return [" ".join(step.type_name for step, _ in o.op.steps) for o in found if isinstance(o.op, Fused)]


def variable(value: Any = 0.0, name: str = "v") -> ab.Variable:
    return ab.Variable(np.broadcast_to(np.float32(value), (3, 4)) + np.zeros((3, 4), "float32"), name=name)


class Check:
    """A compiled step against the interpreter, run several times: fetches, variables, and whose memory is whose."""

    def __init__(
        self,
        targets: Sequence[Tensor | Operation],
        feeds: Mapping[AnyTensor, Any] | None = None,
        variables: Sequence[ab.Variable] = (),
        tolerance: float = 0,
    ) -> None:
        self.targets = targets_of(targets)
        self.feeds = feeds_of(feeds or {})
        self.variables = variables
        self.tolerance = tolerance
        self.initial = [v.numpy() for v in variables]
        self.program = Program(self.targets[0].graph, self.targets, list(self.feeds))
        expected = self._runs(lambda fed: Interpreter().run(self.targets[0].graph, self.targets, fed))
        actual = self._runs(lambda fed: self.program(*fed.values()), mutate=True)
        for run, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
            for what, (value, other) in enumerate(zip(found, wanted, strict=True)):
                self._compare(value, other, f"value {what} of run {run}\n{self.program.source}")

    def _runs(self, run: Callable[[dict[Symbol, Any]], Sequence[Any]], mutate: bool = False) -> list[list[Any]]:
        """Return what three runs in a row fetch, and the variables behind each."""
        for v, value in zip(self.variables, self.initial, strict=True):
            v.write_value(value.copy())
        found: list[list[Any]] = []
        kept: list[tuple[Any, Any]] = []
        for _ in range(3):
            fed = {tensor: np.array(value) for tensor, value in self.feeds.items()}
            values = [value for value in run(fed) if value is not None]
            state = [v.numpy() for v in self.variables]
            found.append([*[np.array(value) for value in values], *state])
            for tensor, value in fed.items():
                np.testing.assert_array_equal(value, self.feeds[tensor], err_msg="a feed was overwritten")
            arrays = [value for value in values if isinstance(value, np.ndarray)]
            if mutate:
                self._check_memory(arrays, state, list(fed.values()))
            kept += [(array, array.copy()) for array in arrays]
        for array, before in kept:
            np.testing.assert_array_equal(array, before, err_msg="a later run changed what was fetched before")
        return found

    def _check_memory(self, fetched: list[Any], state: list[Any], fed: list[Any]) -> None:
        held = [v.stored_value() for v in self.variables]
        for position, value in enumerate(held):
            assert not any(np.may_share_memory(value, other) for other in held[:position]), "two variables share memory"
        for array in fetched:
            assert not any(np.shares_memory(array, other) for other in (*held, *fed)), "a fetch shares memory"
        for v, before in zip(self.variables, state, strict=True):
            np.testing.assert_array_equal(v.numpy(), before)

    def _compare(self, value: Any, expected: Any, message: str) -> None:
        assert value.dtype == expected.dtype, message
        if self.tolerance:
            np.testing.assert_allclose(value, expected, self.tolerance, self.tolerance, err_msg=message)
        else:
            np.testing.assert_array_equal(value, expected, err_msg=message)
