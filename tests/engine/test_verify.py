"""The verifier: each rule has one tiny step that breaks it, with its message; whole steps break none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.control_flow.cond import Branch
from anabranch.engine.control_flow.frames import History
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Graph, Operation
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.math.mathematics import Exp
from anabranch.engine.ops.math.reduction import Max
from anabranch.engine.ops.math.trigonometry import Sin
from anabranch.engine.passes.framework import changes, observe, pipeline, verify
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.passes.framework.rewriter import Rewriter
from anabranch.engine.passes.framework.specialise import Specialised

ops = ab.ops


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def step_of(*fetches: Any, feeds: tuple[Any, ...] = ()) -> Rewriter:
    """The step of some fetches, copied and not yet rewritten."""
    graph = symbol_of(fetches[0]).operation.graph
    targets = [symbol_of(fetch) for fetch in fetches]
    copy = Specialised(share=False)
    copy.copy_step(needed_operations(graph, targets, feeds), {feed: feed.spec for feed in feeds}, targets)
    fed, fetched = [copy.tensors[feed] for feed in feeds], [copy.tensors[target] for target in targets]
    step = Rewriter(copy, [], fed, fetched, [])
    step.settle()
    return step


def chain() -> Rewriter:
    x = ab.placeholder((3,), "float32", "x")
    return step_of(ops.exp(ops.sin(x)), feeds=(x,))


def loop() -> Rewriter:
    x, w = ab.placeholder((3,), "float32", "x"), ab.placeholder((3,), "float32", "w")
    _, y = ab.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, ops.sin(y) * w), (0, x))
    loss = ops.sum(y)
    return step_of(loss, *ab.gradients(loss, [w]), feeds=(x, w))


def branch() -> Rewriter:
    x = ab.placeholder((3,), "float32", "x")
    return step_of(ab.cond(x[0] > 0, lambda: ops.sin(x), lambda: x), feeds=(x,))


def named(step: Rewriter, part: str) -> Any:
    """The first operation, inside of regions too, whose type is `part`."""
    return next(operation for operation in step.walk() if operation.type == part)


def body(step: Rewriter) -> Any:
    return next(operation.op for operation in step.operations if isinstance(operation.op, While)).body


# --- one step that breaks each rule ---------------------------------------------------------------------------------


def not_listed() -> Rewriter:
    step = chain()
    named(step, "sin").index = 0
    return step


def of_another_graph() -> Rewriter:
    step = chain()
    named(step, "sin").graph = Graph()
    return step


def output_of_another() -> Rewriter:
    step = chain()
    named(step, "sin").outputs[0].operation = named(step, "exp")
    return step


def before_its_input() -> Rewriter:
    step = chain()
    sin, exp = named(step, "sin"), named(step, "exp")
    step.graph.operations[-2:] = [exp, sin]
    sin.index, exp.index = exp.index, sin.index
    step.operations = [exp, sin]
    return step


def tensor_of_a_region() -> Rewriter:
    step = branch()
    cond = named(step, "cond")
    inside = next(o for o in cond.op.regions[0].operations if o.type == "sin")
    cond.inputs = (inside.outputs[0], *cond.inputs[1:])
    return step


def waits_for_what_comes_later() -> Rewriter:
    step = chain()
    named(step, "sin").control_inputs = (named(step, "exp"),)
    return step


def waits_in_another_graph() -> Rewriter:
    step = branch()
    cond = named(step, "cond")
    cond.control_inputs = (cond.op.regions[0].operations[0],)
    return step


def effect_too_many() -> Rewriter:
    step, variable = chain(), ab.Variable(1.0)
    named(step, "sin").effects = tuple(variable.assign(2.0).operation.effects)
    return step


def another_shape() -> Rewriter:
    step = chain()
    named(step, "exp").outputs[0].spec = TensorSpec((4,), np.dtype("float32"))
    return step


def refused_inputs() -> Rewriter:
    step = chain()
    sin = named(step, "sin")
    sin.op, sin.inputs = MatMul(), (*sin.inputs, *sin.inputs)
    step.fed[0].spec = TensorSpec((), np.dtype("float32"))
    return step


def too_many_outputs() -> Rewriter:
    step = chain()
    sin = named(step, "sin")
    more = Operation(step.graph, Exp(), sin.inputs, (sin.outputs[0].spec,) * 2, "two", "", (), None).outputs
    more[0].operation = more[1].operation = sin
    sin.outputs = more
    named(step, "exp").inputs = more[:1]
    return step


def inputs_without_a_capture() -> Rewriter:
    step = loop()
    holder = named(step, "while")
    holder.inputs = (*holder.inputs[:-1], holder.inputs[0])
    return step


def capture_of_another_shape() -> Rewriter:
    step = loop()
    body(step).captures[0][1].spec = TensorSpec((7,), np.dtype("float32"))
    return step


def region_elsewhere() -> Rewriter:
    step = loop()
    body(step).move_into(Graph())
    return step


def operation_that_nothing_needs() -> Rewriter:
    step = loop()
    named_in(body(step), "multiply", lambda operation: ops_max(body(step), operation))
    return step


def capture_that_nothing_takes() -> Rewriter:
    step = loop()
    holder, inside = named(step, "while"), body(step)
    own, inside.is_built = holder.own_inputs, False
    inside.add_capture(step.fed[1])
    holder.inputs = (*own, *holder.op.captured_inputs())
    return step


def result_less() -> Rewriter:
    step = loop()
    body(step).results.pop()
    return step


def variable_of_another_shape() -> Rewriter:
    step = loop()
    body(step).results[-1] = named_in(body(step), "multiply", lambda operation: ops_max(body(step), operation))
    return step


def named_in(region: Any, kind: str, change: Callable[[Any], Any]) -> Any:
    return change(next(operation for operation in region.operations if operation.type == kind))


def ops_max(region: Any, operation: Any) -> Any:
    reduced = region.adopt(Max(None), operation.outputs, (TensorSpec((), np.dtype("float32")),), operation)
    return reduced.outputs[0]


def branch_with_a_result_less() -> Rewriter:
    step = branch()
    named(step, "cond").op.regions[0].results.pop()
    return step


def result_of_another_graph() -> Rewriter:
    step = loop()
    body(step).results[-1] = step.fed[0]
    return step


def wider_than_inferred() -> Rewriter:
    step = chain()
    named(step, "exp").outputs[0].spec = TensorSpec((None,), np.dtype("float32"))
    return step


def narrower_than_inferred() -> Rewriter:
    x = ab.placeholder((None,), "float32", "x")
    step = step_of(ops.exp(ops.sin(x)), feeds=(x,))
    named(step, "exp").outputs[0].spec = TensorSpec((3,), np.dtype("float32"))
    return step


def history_of_another_loop() -> Rewriter:
    step = loop()
    history = next(o for o in step.operations if isinstance(o.op, History))
    history.op = History(step.fed[0])
    return step


def fetch_that_is_gone() -> Rewriter:
    step = chain()
    step.operations = [operation for operation in step.operations if operation.type != "exp"]
    return step


def device_in_a_step_without() -> Rewriter:
    step = chain()
    named(step, "sin").device = "cpu:1"
    return step


BROKEN = {
    not_listed: "listed: 'sin' (sin) is not listed at its index, 0",
    of_another_graph: "listed: 'sin' (sin) says that it is of <Graph of 0 operations>",
    output_of_another: "back_pointers: output 0 of 'sin' (sin) points to 'exp':0",
    before_its_input: "defined_before: 'exp' (exp) takes 'sin:0', which is not computed before",
    tensor_of_a_region: "takes 'sin:0', a tensor of another graph",
    waits_for_what_comes_later: "waits: 'sin' (sin) waits for 'exp', which comes later",
    waits_in_another_graph: "an operation of another graph",
    effect_too_many: "effects: 'sin' (sin) is noted with 1 effects, its op has 0, or others",
    another_shape: "specs: output 0 of 'exp' (exp) is float32[4], its op gives float32[3]",
    refused_inputs: "specs: 'sin' (matmul) does not take its inputs: ",
    too_many_outputs: "specs: 'sin' (sin) has 2 outputs, its op gives 1",
    inputs_without_a_capture: "do not end with what its regions capture",
    capture_of_another_shape: "float32[3], as float32[7]",
    region_elsewhere: "belongs to <Graph of 0 operations>",
    operation_that_nothing_needs: "needed: 'multiply' (max) in 'body' is needed by nothing",
    capture_that_nothing_takes: "captures_taken: 'body' captures 'w:0', which nothing in it takes",
    result_less: "2 first values, 2 parameters of the body, 1 results, 2 parameters of the condition",
    variable_of_another_shape: "is float32[3], and becomes float32[]",
    branch_with_a_result_less: "give [0, 1] results, it has 1 outputs",
    result_of_another_graph: "gives 'x:0', a tensor of another graph",
    wider_than_inferred: "specs: output 0 of 'exp' (exp) is float32[?], its op gives float32[3]",
    narrower_than_inferred: "float32[3], its op gives float32[?], and no pass declares a fact (`Pass.narrows`)",
    history_of_another_loop: "is of 'x:0', which no region of the frame's loop computes",
    fetch_that_is_gone: "fetched: 'exp' (exp) is wanted of the step, and is not among its operations",
    device_in_a_step_without: "on_devices: 'sin' (sin) is on cpu:1 in a step that is not placed",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_rule_is_found_and_named(broken: Callable[[], Rewriter]):
    messages = list(verify.verify(broken(), is_placed=False))
    assert any(BROKEN[broken] in message for message in messages), messages


def test_every_rule_has_a_step_that_breaks_it():
    found = {message.partition(":")[0] for broken in BROKEN for message in verify.verify(broken(), is_placed=False)}
    assert found == {*[rule.__name__ for rule in verify.RULES], "fetched"}


@pytest.mark.parametrize("whole", [chain, loop, branch])
def test_whole_steps_break_no_rule(whole: Callable[[], Rewriter]):
    assert list(verify.verify(whole(), is_placed=False)) == []


def test_what_a_branch_can_not_do_is_no_broken_rule():
    x = ab.placeholder((3,), "float32", "x")
    y = ab.placeholder((None,), "float32", "y")
    step = step_of(ab.cond(x[0] > 0, lambda: ops.sum(x + y), lambda: x[0]), feeds=(x, y))
    branch = next(operation.op for operation in step.operations if isinstance(operation.op, Branch))
    changes.set_spec(branch.regions[0].captures[1][1], TensorSpec((5,), np.dtype("float32")))
    assert not [message for message in verify.verify(step) if message.startswith("specs")]


def change_output(step: Rewriter) -> None:
    named(step, "exp").outputs[0].spec = TensorSpec((4,), np.dtype("float32"))


def change_input(step: Rewriter) -> None:
    named(step, "sin").outputs[0].spec = TensorSpec((4,), np.dtype("float32"))


def change_op(step: Rewriter) -> None:
    named(step, "exp").op = MatMul()


@pytest.mark.parametrize("change", [change_output, change_input, change_op])
def test_specs_that_were_found_right_are_inferred_again_after_a_change(change: Callable[[Rewriter], None]):
    step, inferred = chain(), {}
    assert list(verify.verify(step, inferred=inferred)) == []
    assert {operation.name for operation in inferred} >= {"sin", "exp"}
    change(step)
    assert any("'exp'" in message for message in verify.verify(step, inferred=inferred))


def test_specs_that_follow_from_a_region_are_inferred_each_time():
    step, inferred = loop(), {}
    assert list(verify.verify(step, inferred=inferred)) == []
    assert not any(isinstance(operation.op, While) for operation in inferred)


# --- after passes ---------------------------------------------------------------------------------------------------


def swapped_writes(step: Rewriter, options: pipeline.Options) -> None:
    del options
    writes = [operation for operation in step.graph.operations if operation.writes]
    for operation, place in zip(writes, reversed([o.index for o in writes]), strict=True):
        step.graph.operations[place], operation.index = operation, place


def broken_spec(step: Rewriter, options: pipeline.Options) -> None:
    del options
    step.operations[-1].outputs[0].spec = TensorSpec((9,), np.dtype("float32"))


def short_cut(step: Rewriter, options: pipeline.Options) -> None:
    del options
    step.operations[-1].inputs = tuple(step.fed)


def prepared_by(
    monkeypatch: pytest.MonkeyPatch, run: Any, *targets: Any, feeds: tuple[Any, ...] = (), **facts: Any
) -> None:
    row = pipeline.Pass("example", "an example", True, (), run, **facts)
    monkeypatch.setattr(pipeline, "PIPELINE", (row,))
    monkeypatch.setenv(observe.VERIFY, "1")
    prepare(ab.get_default_graph(), list(targets), list(feeds))


def test_specs_are_inferred_once_for_what_is_copied(monkeypatch: pytest.MonkeyPatch):
    """Copies have the specs that were inferred for them: the verifier takes those for right as long as they stay."""
    x = ab.placeholder((3,), "float32", "x")
    y = symbol_of(ops.cond(ops.sum(x) > 0.0, lambda: ops.exp(x), lambda: x))
    inferred: list[Any] = []

    def infer(self: Exp, *given: Any) -> Any:
        inferred.append(given)
        return real(self, *given)

    real = Exp.infer
    monkeypatch.setattr(Exp, "infer", infer)
    monkeypatch.setattr(pipeline, "PIPELINE", ())
    for verified in ("0", "1"):
        monkeypatch.setenv(observe.VERIFY, verified)
        inferred.clear()
        prepare(y.graph, [y], [symbol_of(x)])
        assert len(inferred) == 1


def test_a_pass_that_breaks_a_rule_is_named(monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((3,), "float32", "x")
    with pytest.raises(verify.BrokenStepError, match=r"pass 'example' left a step behind.*ANABRANCH_DUMP=example"):
        prepared_by(monkeypatch, broken_spec, symbol_of(ops.sin(x)), feeds=(x,))


def known_size(step: Rewriter, options: pipeline.Options) -> None:
    del options
    changes.set_spec(step.operations[-1].outputs[0], TensorSpec((3,), np.dtype("float32")))


def test_a_pass_declares_whose_specs_it_narrows(monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((None,), "float32", "x")
    y = symbol_of(ops.sin(x))
    prepared_by(monkeypatch, known_size, y, feeds=(x,), narrows=(Sin,))
    with pytest.raises(verify.BrokenStepError, match=r"specs: output 0 of 'sin' .* no pass declares a fact"):
        prepared_by(monkeypatch, known_size, y, feeds=(x,), narrows=(Exp,))


def test_a_pass_by_rules_changes_steps_by_the_rewriter_alone(monkeypatch: pytest.MonkeyPatch):
    x = ab.placeholder((3,), "float32", "x")
    y = symbol_of(ops.sin(ops.cos(x)))
    prepared_by(monkeypatch, short_cut, y, feeds=(x,))
    with pytest.raises(verify.BrokenStepError, match=r"'example' changed the step in another way.*says `by_rules`"):
        prepared_by(monkeypatch, short_cut, y, feeds=(x,), by_rules=True)


def test_a_pass_runs_in_steps_that_have_its_ops(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    x = ab.placeholder((3, 3), "float32", "x")
    y, product = symbol_of(ops.sin(x)), symbol_of(x @ ops.sin(x))
    inside = symbol_of(ab.while_loop(lambda i, _: i < 9, lambda i, s: (i + 1, s @ x), (0, x))[1])
    for number, target in enumerate((y, product, inside)):
        for of in ((MatMul,), (MatMul, Sin)):
            prepared_by(monkeypatch, lambda *_, k=number: seen.append(k), target, feeds=(x,), of=of)
    assert seen == [1, 1, 2]


def test_writes_of_a_variable_stay_in_order(monkeypatch: pytest.MonkeyPatch):
    variable = ab.Variable(0.0, name="total")
    value = ab.constant(1.0)
    first, second = (variable.assign(value).operation for _ in range(2))
    with pytest.raises(verify.BrokenStepError, match="'total' is written in another order than before"):
        prepared_by(monkeypatch, swapped_writes, first, second)


def test_one_of_some_steps_is_verified_always_the_same(monkeypatch: pytest.MonkeyPatch):
    def verified() -> list[bool]:
        found: list[bool] = []
        for number in range(40):
            with Graph().as_default():
                x = ab.placeholder((3,), "float32", f"x{number}")
                found.append(observe.is_verified(step_of(ops.sin(x + number), feeds=(x,)), "4"))
        return found

    first = verified()
    assert 3 <= sum(first) <= 20
    assert verified() == first
    with pytest.raises(ValueError, match="ANABRANCH_VERIFY='yes': expected 1 to verify every step"):
        observe.is_verified(chain(), "yes")


def test_a_dump_of_no_pass_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_DUMP", "all,unrol")
    y = symbol_of(ops.sin(ab.placeholder((3,), "float32", "x")))
    with pytest.raises(ValueError, match=r"ANABRANCH_DUMP: there is no pass 'unrol'; .*'llvm'.*Did you mean 'unroll'"):
        prepare(ab.get_default_graph(), [y], [])


def test_what_a_pass_changed_is_printed_as_a_diff(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("ANABRANCH_DUMP", "sink")
    x = ab.placeholder((3,), "float32", "x")
    late = ops.exp(x)
    prepare(ab.get_default_graph(), [symbol_of(ab.cond(x[0] > 0, lambda: late, lambda: x))], [x])
    text = capsys.readouterr().err
    assert text.startswith("--- before sink\n+++ after sink\n")
    assert "-exp: float32[3] = exp(x)" in text
    assert "+        exp: float32[3] = exp(" in text
