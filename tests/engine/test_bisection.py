"""`ab.testing.bisect` names the rewrite that is wrong, and gives a test that shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.math.mathematics import Exp
from anabranch.engine.ops.math.trigonometry import Cos, Sin
from anabranch.engine.passes.framework import limits, pipeline
from anabranch.engine.passes.framework.driver import Change, Rule, apply_rules
from anabranch.engine.passes.framework.patterns import Match, op
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.rewriter import Rewriter

ops = ab.ops


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def _wrong(match: Match, step: Rewriter) -> Change:
    step.update(match["sin"], Cos())
    return Change(match["sin"], "is a cosine, wrongly")


WRONG = (Rule("sine to cosine", op(Sin, name="sin"), _wrong),)


@pytest.fixture
def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass in front of the others that makes cosines of sines."""

    def run(step: Rewriter, options: pipeline.Options) -> None:
        del options
        apply_rules(step, WRONG, "sink")

    row = pipeline.Pass("wrong", "an example of a wrong pass", True, (), run)
    monkeypatch.setattr(pipeline, "PIPELINE", (row, *pipeline.PIPELINE))


def test_steps_that_agree_have_no_rewrite_to_blame():
    x = ab.placeholder((4,), "float32", "x")
    assert ab.testing.bisect([ops.sin(x) * 2, ops.exp(x)], {x: np.ones(4)}) is None


@pytest.mark.usefixtures("wrong_pass")
def test_the_wrong_rewrite_is_named_and_the_operations_are_few():
    x = ab.placeholder((4,), "float32", "x")
    h = ops.exp(x * 1.0) + 1.0  # a rewrite that is right
    y = ops.tanh(ops.sin(h * 2.0) * ops.exp(h))
    blame = ab.testing.bisect(y, {x: np.linspace(0, 1, 4)})
    assert blame is not None
    assert blame.notes == ("sink: sin: is a cosine, wrongly",)
    assert blame.operations == "sin: float32[4] = sin(multiply_1)\n"
    assert 1 < blame.number <= blame.rewrites
    assert "is a cosine, wrongly\nIt shows in:\n    sin: float32[4] = sin(multiply_1)" in str(blame)


@pytest.mark.usefixtures("wrong_pass")
def test_the_text_is_a_test_that_fails_until_the_pass_is_mended(monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((4,), "float32", "x")
    blame = ab.testing.bisect(ops.sin(x) + 1.0, {x: np.ones(4)})
    assert blame is not None
    scope: dict[str, Any] = {}
    exec(blame.test, scope)
    with pytest.raises(AssertionError):
        scope["test_no_rewrite_changes_the_results"]()
    monkeypatch.setattr(pipeline, "PIPELINE", pipeline.PIPELINE[1:])
    scope["test_no_rewrite_changes_the_results"]()


@pytest.mark.usefixtures("wrong_pass")
def test_a_rewrite_in_a_loop_is_found_and_variables_are_as_before():
    x, total = ab.placeholder((), "float64", "x"), ab.Variable(np.float64(1.0), name="total")

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        total.assign_add(1.0)
        return i + 1, ops.sin(y) + total

    _, y = ab.while_loop(lambda i, _: i < 7, body, (0, x))
    blame = ab.testing.bisect(y * 2.0, {x: 0.5})
    assert blame is not None
    assert blame.notes == ("sink: sin: is a cosine, wrongly",)
    assert "while" in blame.operations
    assert "multiply" not in blame.operations
    assert total.numpy() == 1.0


def test_a_kernel_that_is_wrong_is_no_rewrite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Exp, "emit", lambda self, arguments: f"np.cos({arguments[0]})")
    x = ab.placeholder((), "float32", "x")
    blame = ab.testing.bisect(ops.exp(x), {x: 1.0})
    assert blame is not None
    assert blame.number == 0
    assert "what prints or runs the step is to blame" in str(blame)


def test_nothing_to_fetch_is_refused():
    with pytest.raises(ValueError, match="there is nothing to fetch"):
        ab.testing.bisect([])


def test_a_step_gets_as_many_rewrites_as_the_environment_allows(monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((3,), "float32", "x")
    y = symbol_of(ops.exp(x * 1.0) + ops.exp(x * 1.0))

    def operations() -> int:
        return len(prepare(y.graph, [y], [x]).operations)

    few = operations()
    assert limits.rewrites_done() >= 3
    monkeypatch.setenv(limits.VARIABLE, "0")
    all_of_them = operations()
    assert all_of_them > few
    assert limits.rewrites_done() == 0
    monkeypatch.setenv(limits.VARIABLE, "1")
    assert few < operations() < all_of_them
    monkeypatch.setenv(limits.VARIABLE, "-1")
    assert operations() == few
    monkeypatch.setenv(limits.VARIABLE, "few")
    with pytest.raises(ValueError, match="ANABRANCH_REWRITES='few': expected how many rewrites"):
        operations()


@pytest.mark.usefixtures("wrong_pass")
@pytest.mark.parametrize("grouped", [False, True])
def test_what_operations_write_is_compared(grouped: bool):
    x, v = ab.placeholder((2,), "float32", "x"), ab.Variable([1.0, 2.0], name="v")
    update = v.assign_sub(ops.sin(x)).operation
    blame = ab.testing.bisect([x * 1, ab.group(update) if grouped else update], {x: [0.5, 1.0]})
    assert blame is not None
    assert "is a cosine, wrongly" in str(blame)
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
