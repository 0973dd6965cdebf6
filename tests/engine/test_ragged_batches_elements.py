"""Elements that loops over live rows take of tensors outside: ``x[t]``, ``take(x, t)``, ``y[:, t]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.ragged_batches_checks import ROWS, STEPS, check, draw, lengths_of, loops, why_not

import anabranch as ab
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
UNITS = 5


@pytest.fixture(autouse=True)
def small_loops_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assume(monkeypatch, ragged_work=0, ragged_steps=0)
    with ab.Graph().as_default():
        yield


_MORE = 4  # places of a tensor that no step reads
_ELEMENTS: dict[str, Callable[..., Any]] = {
    "x[t]": lambda x, y, t: x[t],
    "take(x, t)": lambda x, y, t: ops.take(x, t, axis=0),
    "x[STEPS - 1 - t]": lambda x, y, t: x[STEPS - 1 - t],
    "x[t] twice": lambda x, y, t: x[t] * 0.5 + ops.sin(x[t]),
    "x[t], x[0]": lambda x, y, t: x[t] + x[0],
    "y[:, t]": lambda x, y, t: y[:, t],
}


def _loop_over_elements(
    element: Callable[..., Any], more: int = 0, steps: Any = None, sources: str = "xyw"
) -> tuple[list[Any], dict[Any, Any]]:
    """A loop that takes `element(x, y, t)` of tensors outside, which have `more` places than there are steps."""
    values = {"x": draw(STEPS + more, ROWS, UNITS), "w": draw(UNITS, UNITS), "L": lengths_of("various")}
    values["y"] = values["x"].swapaxes(0, 1).copy()
    made = {name: ab.placeholder(value.shape, value.dtype, name) for name, value in values.items()}
    count = STEPS if steps is None else steps(made["L"])

    def body(t: Any, h: Any) -> Any:
        new = ops.tanh(ops.matmul(element(made["x"], made["y"], t), made["w"]) + h)
        return t + 1, ops.where((t < made["L"])[:, None], new, h)

    final = ab.while_loop(lambda t, h: t < count, body, (0, ops.ones((ROWS, UNITS)) * 0.1))[1]
    gradients = ab.gradients(ops.sum(final**2), [made[name] for name in sources])
    found = [ops.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    return [final, *found], {made[name]: value for name, value in values.items()}


@pytest.mark.parametrize("more", [0, _MORE])
@pytest.mark.parametrize("element", _ELEMENTS)
def test_elements_of_tensors(element: str, more: int) -> None:
    fetches, feeds = _loop_over_elements(_ELEMENTS[element], more)
    assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)
    found = Program(ab.get_default_graph(), fetches, list(feeds))(*feeds.values())
    expected = Interpreter(True).run(ab.get_default_graph(), fetches, feeds)
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, 1e-4, 1e-4)


@pytest.mark.parametrize("longest", [0, 1, STEPS - 1])
@pytest.mark.parametrize("element", ["x[t]", "take(x, t)", "y[:, t]"])
def test_elements_of_tensors_in_steps_known_at_run_time(element: str, longest: int) -> None:
    fetches, feeds = _loop_over_elements(_ELEMENTS[element], steps=ops.max)
    feeds = {tensor: np.minimum(value, longest) if value.ndim == 1 else value for tensor, value in feeds.items()}
    assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)


def test_elements_that_are_not_there() -> None:
    fetches, feeds = _loop_over_elements(_ELEMENTS["x[t]"], steps=lambda lengths: ops.max(lengths) + 9)
    with pytest.raises(IndexError, match="out of"):
        Interpreter().run(ab.get_default_graph(), fetches, feeds)
    with pytest.raises(IndexError, match="out of"):
        Program(ab.get_default_graph(), fetches, list(feeds))(*feeds.values())


def test_elements_from_a_later_one_on() -> None:
    fetches, feeds = _loop_over_elements(lambda x, y, t: x[t + 2], _MORE, sources="w")
    assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)
    fetches, feeds = _loop_over_elements(lambda x, y, t: x[t + 2], _MORE)
    assert "'x_1', whose gradient is asked for, is not read by rows from its first element on" in why_not(
        fetches, feeds
    )
    check(fetches, feeds)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (lambda x, y, t: x[t] + ops.mean(x, axis=0), "'x' is taken by rows or elements, and as a whole"),
        (lambda x, y, t: x[t] + x[STEPS - 1 - t // 2], "reads elements in no order that is known"),
        (lambda x, y, t: x[t - 1], "begins at an element that is not known"),
        (lambda x, y, t: x[t] + x[t + 1], "reads other elements of an array that is read already"),
    ],
)
def test_why_elements_keep_a_loop(element: Any, reason: str) -> None:
    fetches, feeds = _loop_over_elements(element, _MORE)
    assert reason in why_not(fetches, feeds)
    check(fetches, feeds)
