"""`Rewriter`: uses that no operation shows, changes that keep both sides in line; patterns and the driver of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.common.identity import is_among
from anabranch.engine.control_flow.frames import History
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Graph, Operation
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.joining import Split
from anabranch.engine.ops.math.elementwise import Add, Multiply, Negative
from anabranch.engine.ops.math.mathematics import Exp
from anabranch.engine.ops.math.trigonometry import Cos, Sin
from anabranch.engine.passes.framework import limits, verify
from anabranch.engine.passes.framework.driver import Change, GroupRule, Rule, apply_group_rules, apply_rules
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.patterns import ANY, Match, any_of, only_use, op, outer, tensor
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.passes.framework.rewriter import Rewriter
from anabranch.engine.passes.framework.specialise import Specialised
from anabranch.engine.runtime.interpreter import Interpreter

ops = ab.ops


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def step_of(*fetches: Any, feeds: tuple[Any, ...] = ()) -> Rewriter:
    """The step of some fetches, copied and not yet rewritten."""
    targets = [symbol_of(fetch) for fetch in fetches]
    copy = Specialised(share=False)
    operations = needed_operations(targets[0].graph, targets, feeds)
    copy.copy_step(operations, {feed: feed.spec for feed in feeds}, targets)
    fed, fetched = [copy.tensors[feed] for feed in feeds], [copy.tensors[target] for target in targets]
    step = Rewriter(copy, [], fed, fetched, [])
    step.settle()
    return step


def one(step: Rewriter, kind: type, number: int = 0) -> Operation:
    """An operation by its op, inside of regions too; of several, in the order of the driver."""
    return [operation for operation in step.walk() if isinstance(operation.op, kind)][number]


def loop_with_gradient() -> Rewriter:
    x, w = ab.placeholder((3,), "float32", "x"), ab.placeholder((3,), "float32", "w")
    _, y = ab.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, ops.sin(y) * w), (0, x))
    loss = ops.sum(y)
    return step_of(loss, *ab.gradients(loss, [w]), feeds=(x, w))


def values_of(step: Rewriter, *values: Any) -> list[Any]:
    step.settle()
    assert list(verify.verify(step, is_placed=False)) == []
    return Interpreter().run(step.graph, step.fetches, dict(zip(step.fed, values, strict=True)))


# --- uses -----------------------------------------------------------------------------------------------------------


def test_uses_that_no_operation_shows_are_counted():
    step = loop_with_gradient()
    body = next(operation.op for operation in step.operations if isinstance(operation.op, While)).body
    recorded = [operation.op.inner for operation in step.operations if isinstance(operation.op, History)]
    assert recorded
    for inner in recorded:
        assert step.has_hidden_use(inner)
    result = body.results[-1]
    assert step.has_hidden_use(result)
    assert step.count_uses(result) == len(step.users(result)) + 1 + is_among(result, recorded)
    assert step.count_uses(step.fetches[0]) == 1 + len(step.users(step.fetches[0]))
    assert not step.has_hidden_use(step.fed[0])


def test_an_input_taken_twice_is_two_uses_and_one_user():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(x) * ops.sin(x), feeds=(x,))
    product = one(step, Multiply)
    step.set_inputs(product, [product.inputs[0]] * 2)
    assert step.count_uses(product.inputs[0]) == 2
    assert step.users(product.inputs[0]) == [product]


def test_operations_that_are_awaited_and_that_write_are_known():
    x, total = ab.placeholder((3,), "float32", "x"), ab.Variable(np.zeros(3, "float32"))
    first = ops.sin(x)
    with ab.control_dependencies([first]):
        second = total.assign(x)
    copy = Specialised(share=False)
    copy.copy_step(x.graph.operations, {x: x.spec}, [])
    step = Rewriter(copy, copy.graph.operations, [copy.tensors[x]], [], [copy.operations[second.operation]])
    sin = one(step, Sin)
    assert step.is_awaited(sin)
    assert step.writes_in(copy.graph) == [copy.operations[second.operation].index]
    with pytest.raises(ValueError, match="can't be erased: it is used by an operation that waits for it"):
        step.erase(sin)


def test_regions_come_before_what_holds_them():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ab.cond(x[0] > 0, lambda: ops.sin(x), lambda: x) * 2.0, feeds=(x,))
    types = [operation.type for operation in step.walk()]
    assert types.index("sin") < types.index("cond") < types.index("multiply")


# --- changes --------------------------------------------------------------------------------------------------------


def test_an_update_keeps_name_line_and_users():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(x) * 2.0, feeds=(x,))
    sin = one(step, Sin)
    name, location = sin.name, sin.location
    step.update(sin, Cos())
    assert (sin.name, sin.location) == (name, location)
    np.testing.assert_allclose(values_of(step, np.zeros(3, "float32"))[0], np.full(3, 2.0))


def test_replaced_uses_are_replaced_in_captures_and_their_inputs_alike():
    x, w = ab.placeholder((3,), "float32", "x"), ab.placeholder((3,), "float32", "w")
    late = ops.sin(w)
    _, y = ab.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, y * late), (0, x))
    step = step_of(y, feeds=(x, w))
    step.replace_uses(one(step, Sin).outputs[0], step.fed[1])
    holder = one(step, While)
    assert isinstance(holder.op, While)
    assert [outer.name for outer, _ in holder.op.body.captures] == ["w:0"]
    assert holder.inputs[-1] is step.fed[1]
    found = values_of(step, np.ones(3, "float32"), np.full(3, 2.0, "float32"))
    np.testing.assert_allclose(found[0], np.full(3, 2.0**9))
    assert not [operation for operation in step.operations if isinstance(operation.op, Sin)]


def test_replaced_uses_are_replaced_in_fetches_results_and_records():
    step = loop_with_gradient()
    values = np.full(3, 0.5, "float32"), np.full(3, 0.9, "float32")
    expected = values_of(step, *values)
    body = one(step, While).op.regions[1]
    old = body.results[-1]
    twice = step.insert(body, Negative(), [old], old.operation)
    again = step.insert(body, Negative(), twice.outputs, old.operation)
    users = step.users(old)
    step.replace_uses(old, again.outputs[0])
    assert body.results[-1] is again.outputs[0]
    step.set_inputs(twice, [old])  # which took itself
    assert users
    assert all(not isinstance(o.op, History) or o.op.inner is not old for o in step.operations)
    for value, other in zip(values_of(step, *values), expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_what_is_inserted_stands_before_what_it_is_for():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(x) * 2.0, feeds=(x,))
    sin = one(step, Sin)
    new = step.insert(step.graph, Exp(), sin.inputs, sin)
    assert new.outputs[0].spec == TensorSpec((3,), np.dtype("float32"))
    step.set_inputs(sin, new.outputs)
    step.settle()
    assert new.index < sin.index
    assert (new.name, new.location) == (sin.name, sin.location)
    np.testing.assert_allclose(values_of(step, np.zeros(3, "float32"))[0], np.full(3, 2 * np.sin(1)), rtol=1e-6)


def test_what_waited_for_an_erased_operation_waits_for_another_one():
    x = ab.placeholder((3,), "float32", "x")
    first, second = ops.sin(x), ops.exp(x)
    with ab.control_dependencies([first]):
        third = ops.cos(x)
    step = step_of(third, second, feeds=(x,))
    step.erase(one(step, Sin), instead=one(step, Exp))
    assert step.is_awaited(one(step, Exp))
    step.settle()
    assert one(step, Cos).control_inputs == (one(step, Exp),)
    assert [operation.type for operation in step.graph.operations] == ["placeholder", "exp", "cos"]


def test_only_what_is_not_used_can_be_erased():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(ops.exp(x)), feeds=(x,))
    exp, sin = one(step, Exp), one(step, Sin)
    with pytest.raises(ValueError, match="can't be erased: it is used by sin"):
        step.erase(exp)
    with pytest.raises(ValueError, match="can't be erased: it is used by a fetch or a region"):
        step.erase(sin)
    step.set_inputs(sin, exp.inputs)
    step.erase(exp)
    assert exp not in list(step.walk())
    np.testing.assert_allclose(values_of(step, np.ones(3, "float32"))[0], np.sin(np.ones(3)), rtol=1e-6)


# --- patterns -------------------------------------------------------------------------------------------------------


def test_a_pattern_is_the_expression_that_it_matches():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(x) * 2.0 + ops.exp(x), feeds=(x,))
    pattern = op(Add, of=[op(Multiply, of=[op(Sin, name="sin"), tensor("factor")]), op(Exp)], name="sum")
    match = pattern.match(one(step, Add), step)
    assert match is not None
    assert match["sin"] is one(step, Sin)
    assert match["factor"].operation.type == "constant"
    assert match["sum"] is one(step, Add)
    assert op(Add, of=[op(Exp)]).match(one(step, Add), step) is None
    assert op(Multiply).match(one(step, Add), step) is None
    assert op(Sin, of=[ANY, ANY]).match(one(step, Sin), step) is None
    assert op(Sin, where=lambda operation: operation.name == "cosine").match(one(step, Sin), step) is None


def test_a_pattern_from_outside_follows_captures_through_all_regions():
    x, w = ab.placeholder((3,), "float32", "x"), ab.placeholder((3,), "float32", "w")
    late = ops.sin(w)

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        return i + 1, ab.cond(y[0] > 0, lambda: y * late, lambda: y)

    _, y = ab.while_loop(lambda i, _: i < 9, body, (0, x))
    step = step_of(y, feeds=(x, w))
    product = one(step, Multiply)
    match = op(Multiply, of=[ANY, outer(op(Sin, name="sin"))]).match(product, step)
    assert match == {"sin": one(step, Sin)}
    assert op(Multiply, of=[ANY, op(Sin)]).match(product, step) is None
    nearest = op(Multiply, of=[ANY, outer(tensor("late"))]).match(product, step)
    assert nearest is not None
    assert nearest["late"].operation.graph is product.graph.parent


def test_the_only_use_is_no_use_of_a_fetch():
    x = ab.placeholder((3,), "float32", "x")
    sin = ops.sin(x)
    pattern = op(Negative, of=[only_use(op(Sin))])
    alone = step_of(-sin, feeds=(x,))
    assert pattern.match(one(alone, Negative), alone) is not None
    fetched = step_of(-sin, sin, feeds=(x,))
    assert pattern.match(one(fetched, Negative), fetched) is None


def test_what_waits_is_no_match_unless_the_pattern_says_so():
    x = ab.placeholder((3,), "float32", "x")
    with ab.control_dependencies([ops.exp(x)]):
        waiting = ops.sin(x)
    step = step_of(waiting, feeds=(x,))
    assert op(Sin).match(one(step, Sin), step) is None
    assert op(Sin, may_wait=True).match(one(step, Sin), step) is not None


def test_of_alternatives_the_first_that_matches_counts():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(x) * ops.exp(x), feeds=(x,))
    product = one(step, Multiply)
    either = any_of(op(Negative, of=[tensor("y")]), op(Sin, of=[tensor("x")]), ANY, name="either")
    match = op(Multiply, of=[either]).match(product, step)
    assert match == {"x": step.fed[0], "either": product.inputs[0]}
    fails = any_of(op(Multiply, of=[tensor("y"), op(Sin)]), op(Multiply, of=[ANY, tensor("z")]))
    assert fails.match(product, step) == {"z": product.inputs[1]}
    assert any_of(op(Negative), op(Cos)).match(product, step) is None
    assert not any_of(op(Negative), op(Cos)).can_match({Multiply, Sin})
    assert op(Multiply, of=[any_of(op(Negative), op(Exp)), op(Exp)]).match(product, step) is None
    only = op(Multiply, of=[only_use(any_of(op(Cos), op(Sin)))])
    assert only.match(product, step) == {}
    sin = ops.sin(x)
    needed_besides = step_of(sin * ops.exp(x), sin, feeds=(x,))
    assert only.match(one(needed_besides, Multiply), needed_besides) is None


def test_a_pattern_names_the_output_and_one_operation_in_two_places():
    x, y = ab.placeholder((6,), "float32", "x"), ab.placeholder((6,), "float32", "y")
    first, second = ops.split(x, 2)
    other = ops.split(y, 2)[1]
    step = step_of(first * second, second * first, first * other, feeds=(x, y))
    halves = [op(Split, name="split", output=0), op(Split, name="split", output=1)]
    found = [op(Multiply, of=halves).match(one(step, Multiply, number), step) for number in range(3)]
    assert [match is not None for match in found] == [True, False, False]


# --- the driver -----------------------------------------------------------------------------------------------------


def _to_cosine(match: Match, step: Rewriter) -> Change:
    step.update(match["sin"], Cos())
    return Change(match["sin"], "is a cosine")


RULES = (
    Rule("leave alone", op(Sin), lambda match, step: None),
    Rule("to cosine", op(Sin, name="sin"), _to_cosine),
    Rule("never", op(Sin), lambda match, step: pytest.fail("a rule was tried after one that applied")),
)


def test_the_first_rule_that_applies_is_noted_and_counted():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(ops.sin(x)), feeds=(x,))
    with recording() as log, limits.counted():
        apply_rules(step, RULES, "fuse")
    assert [(note.operation, note.text) for note in log.changes] == [("sin", "is a cosine"), ("sin_1", "is a cosine")]
    assert limits.rewrites_done() == 2


def test_the_driver_stops_at_the_limit():
    x = ab.placeholder((3,), "float32", "x")
    step = step_of(ops.sin(ops.sin(x)), feeds=(x,))
    with limits.at_most(1), limits.counted():
        apply_rules(step, RULES, "fuse")
    assert [operation.type for operation in step.operations] == ["cos", "sin"]


def test_a_group_rule_gets_what_has_a_key_in_common():
    x, y = ab.placeholder((3,), "float32", "x"), ab.placeholder((3,), "float32", "y")
    step = step_of(ops.sin(x), ops.cos(x), ops.sin(y), ops.cos(ops.exp(x)), feeds=(x, y))
    groups: list[list[str]] = []

    def rewrite(matches: Sequence[Match], step: Rewriter) -> Change | None:
        groups.append([match["taker"].name for match in matches])
        step.replace_uses(matches[1]["taker"].outputs[0], matches[0]["taker"].outputs[0])
        step.erase(matches[1]["taker"])
        return Change(matches[0]["taker"], "is used twice")

    def key(match: Match) -> Any:
        taken = match["taker"].inputs[0]
        return taken if is_among(taken, step.fed) else None

    rule = GroupRule("one for two", op(Sin, Cos, name="taker"), key, rewrite)
    with recording() as log, limits.counted():
        apply_group_rules(step, [rule, GroupRule("never", op(Negative), key, rewrite)], "fuse")
        assert limits.rewrites_done() == 1
    assert groups == [["sin", "cos"]]
    assert [(note.operation, note.text) for note in log.changes] == [("sin", "is used twice")]
    assert step.fetches[0] is step.fetches[1]
    step.settle()
    types = [operation.type for operation in step.graph.operations]
    assert types == ["placeholder", "placeholder", "sin", "sin", "exp", "cos"]
