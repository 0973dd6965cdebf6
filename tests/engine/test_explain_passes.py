"""`explain(passes=True)` and `profile`: what passes did, what lines take."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework import limits
from anabranch.engine.passes.framework.log import PassLog, note_change, note_kept, recording
from anabranch.engine.passes.framework.switches import PASSES, without
from anabranch.engine.passes.memory.memory_budget import within_memory_budget
from anabranch.engine.runtime.analyses import ANALYSES
from anabranch.engine.runtime.program import Program
from anabranch.engine.session.explain import format_pass_log
from anabranch.engine.session.profile import Profile, ProfiledLine, _bytes_of, _own_times, _size, _time
from anabranch.engine.tracing import Slice
from anabranch.engine.tracing.recorder import Lane

ops = ab.ops
FILE = __file__.rpartition("/")[2]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def line_of_caller() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def section(text: str, name: str) -> list[str]:
    """Return the lines about one pass."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{name}: "))
    rest = lines[start + 1 :]
    return rest[: next((number for number, line in enumerate(rest) if not line.startswith(" ")), len(rest))]


# --- explain --------------------------------------------------------------------------------------------------------


def test_every_pass_has_a_section_with_what_it_does():
    x = ab.placeholder((), "float32", "x")
    titles = [line for line in ab.explain(x + 1, [x], passes=True).splitlines() if not line.startswith(" ")]
    assert titles == [f"{known.name}: {known.description}" for known in PASSES.values()]


def test_what_was_rewritten_is_told_with_the_users_line():
    x = ab.placeholder((3,), "float32", "x")
    y, line = ops.negative(-x) * 1, line_of_caller()
    z = ops.exp(ab.constant(1.0)) * y + ops.exp(ab.constant(1.0)) * y
    told = ab.explain(z, [x], passes=True)
    assert f"    negative_1 ({FILE}:{line}): -(-x)" in section(told, "simplify")
    assert f"    multiply ({FILE}:{line}): x * 1" in section(told, "simplify")
    assert any(" is computed once, when the step is prepared" in each for each in section(told, "fold"))
    assert f"    multiply_2 ({FILE}:{line + 1}): is what multiply_1 computes" in section(told, "cse")
    assert section(told, "simplify")[0].startswith("    2 changes")
    (line_of_sink,) = section(told, "sink")
    assert re.fullmatch(r"    no changes, \d+\.\d ms", line_of_sink)


def test_what_is_turned_off_says_so():
    x = ab.placeholder((3,), "float32", "x")
    with without("simplify"):
        told = ab.explain(x * 1, [x], passes=True)
    assert section(told, "simplify") == ["    turned off"]


def test_what_sinks_into_a_branch_is_told():
    x = ab.placeholder((3,), "float32", "x")
    late = ops.exp(x)
    told = ab.explain(ab.cond(x[0] > 0, lambda: late, lambda: x), [x], passes=True)
    assert any(
        "exp" in line and "runs only in the branch of 'cond/cond' that needs it" in line
        for line in section(told, "sink")
    )


def test_why_a_product_stays_in_a_loop():
    x, w = ab.placeholder((5, 2, 3), "float32", "x"), ab.placeholder((3, 3), "float32", "w")
    _, h = ab.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, ops.tanh(x[i] + h @ w)), (0, ops.zeros((2, 3))))
    told = section(ab.explain(h, [x, w], passes=True), "fission")
    assert "  not moved:" in told
    assert any("matmul" in line and "'h'" in line for line in told[told.index("  not moved:") :])


def test_the_same_said_of_many_operations_is_one_line():
    with recording() as log:
        for number in range(6):
            note_change("fold", symbol_of(ab.constant(1.0, name=f"c{number}")).operation, "is folded")
        note_kept("fold", None, "nothing else")
    told = section(format_pass_log(log), "fold")
    assert told[0] == "    6 changes"
    assert told[1].startswith("    c0 (")
    assert told[1].endswith(", and 2 more: is folded")
    assert told[2:] == ["  not moved:", "    nothing else"]
    assert "no changes" in format_pass_log(PassLog())


def test_how_often_a_rule_applied_to_one_operation_is_told():
    operation = symbol_of(ab.constant(1.0, name="c")).operation
    with recording() as log:
        for _ in range(3):
            note_change("fold", operation, "is folded")
    assert section(format_pass_log(log), "fold")[1].endswith(": is folded (3 times)")


def test_why_a_pass_did_not_run_is_told():
    x = ab.placeholder((3,), "float32", "x")
    with recording() as log:
        Program(x.graph, [symbol_of(ops.sin(x))], [x], exact=True)
    told = format_pass_log(log)
    for name in ("ragged_batches", "slices", "fuse", "epilogues", "native", "parallel"):
        assert section(told, name) == ["    left out: the step keeps the interpreter's bits"]
    assert section(told, "same_shapes") == ["    left out: all sizes are known"]
    with recording() as log, within_memory_budget(100):
        Program(x.graph, [symbol_of(ops.sin(x))], [x])
    assert section(format_pass_log(log), "unroll") == [
        "    left out: the step keeps to a memory budget, which bounds what loops save; copies of a body keep all of it"
    ]
    with recording() as log, without("fuse"):
        Program(x.graph, [symbol_of(ops.sin(x))], [x])
    assert section(format_pass_log(log), "horizontal_fusion") == ["    left out: the pass `fuse` is turned off"]
    with recording() as log:
        Program(x.graph, [symbol_of(ops.sin(x))], [x], timed=True)
    for name in ("native", "parallel"):
        assert section(format_pass_log(log), name) == ["    left out: operations are timed one by one"]
    with recording() as log, without("memory"):
        Program(x.graph, [symbol_of(ops.sin(x))], [x])
    analyses = {each.name for each in ANALYSES if each.switch == "memory"}
    assert {name for name, why in log.left_out.items() if why == "turned off"} == analyses
    with recording() as log, limits.at_most(0):
        Program(x.graph, [symbol_of(ops.sin(x))], [x])
    assert section(format_pass_log(log), "sink") == [f"    left out: {limits.REASON}"]


def test_with_values_the_program_for_their_shapes_is_explained():
    n = ab.placeholder((None,), "float32", "n")
    y = n * ops.cast(ops.shape(n)[0], "float32")
    assert "shape" in ab.explain(y, [n])
    assert "shape" not in ab.explain(y, {n: np.ones(3)})


# --- profile --------------------------------------------------------------------------------------------------------


def loop_of(x, w):
    def body(i, h):
        return i + 1, ops.tanh(x[i] + h @ w)

    return ab.while_loop(lambda i, h: i < 5, body, (0, ops.zeros((2, 3), "float64")))[1]


def test_lines_have_calls_bytes_and_the_users_line():
    x, w = ab.placeholder((5, 2, 3), "float64", "x"), ab.placeholder((3, 3), "float64", "w")
    h = loop_of(x, w)
    found = ab.profile(h, {x: np.ones((5, 2, 3)), w: np.eye(3)}, runs=3)
    assert found.runs == 3
    assert found.seconds > 0
    (product,) = [line for line in found.lines if "matmul" in line.operation]
    assert product.calls == 5
    assert product.bytes == 5 * 8 * (6 + 9 + 6)
    assert product.location == f"{__file__}:{loop_of.__code__.co_firstlineno + 2}"
    assert found.source.splitlines()[product.number - 1].strip() == product.text
    assert "matmul" in product.text
    (loop,) = [line for line in found.lines if line.text.startswith("while") or "i, h =" in line.text][:1]
    assert loop.calls >= 1
    assert all(line.seconds >= 0 for line in found.lines)


def test_the_users_lines_add_up_to_all():
    x, w = ab.placeholder((5, 2, 3), "float64", "x"), ab.placeholder((3, 3), "float64", "w")
    found = ab.profile(loop_of(x, w), {x: np.ones((5, 2, 3)), w: np.eye(3)}, runs=1)
    own = found.by_user_line()
    assert sum(line.calls for line in own) == sum(line.calls for line in found.lines)
    assert sum(line.bytes for line in own) == sum(line.bytes for line in found.lines)
    assert [line.seconds for line in own] == sorted((line.seconds for line in own), reverse=True)
    assert f"{__file__}:{loop_of.__code__.co_firstlineno + 2}" in [line.location for line in own]


def test_a_forward_and_a_backward_loop_are_told_apart():
    x, w = ab.placeholder((5, 2, 3), "float64", "x"), ab.placeholder((3, 3), "float64", "w")
    (slope,) = ab.gradients(ops.sum(loop_of(x, w)), [w])
    found = ab.profile(slope, {x: np.ones((5, 2, 3)), w: np.eye(3)}, runs=1)
    numbers = [line.number for line in found.lines if "matmul" in line.operation]
    assert len(numbers) >= 2
    assert len(set(numbers)) == len(numbers)


def test_a_step_that_writes_and_one_that_spans_devices():
    v = ab.Variable(np.zeros(3, "float32"))
    written = ab.profile(v.assign_add(ops.ones((3,))), runs=2)
    assert float(v.numpy()[0]) == 3 + 2 + 2 + 1  # to begin with, without clocks, with clocks, and for memory
    assert written.lines
    ab.config.set_devices(cpu=2)
    try:
        with ab.device("cpu:1"):
            y = ops.exp(ab.placeholder((2, 2), "float64", "x"))
        with ab.device("cpu:0"):
            z = ops.sin(y)
        found = ab.profile(z, {symbol_of(y).operation.inputs[0]: np.ones((2, 2))}, runs=1)
        assert {"exp", "sin"} <= {line.operation for line in found.lines}
    finally:
        ab.config.set_devices()


def test_the_table():
    lines = (
        ProfiledLine(2, "y = np.exp(x)", "exp", "/home/me/model.py:7", 1, 3e-6, 48),
        ProfiledLine(0, "", "sum", "", 10, 1e-6, 2_000_000),
    )
    assert str(Profile(4e-6, lines, "", 4, clocked=5e-6, saved_bytes=3, peak_bytes=4000)) == "\n".join(
        [
            "4.0 us a run (median of 4); with clocks 5.0 us:",
            "      time  share   calls     bytes  line",
            "    3.0 us  75.0%       1      48 B  2: y = np.exp(x)                                  # exp, model.py:7",
            "    1.0 us  25.0%      10    2.0 MB  -                                                 # sum",
            "    0.0 us   0.0%                    -: between operations",
            "by your lines:",
            "    3.0 us  75.0%       1      48 B  /home/me/model.py:7",
            "    1.0 us  25.0%      10    2.0 MB  elsewhere",
            "by kernel:",
            "    3.0 us  75.0%       1      48 B  exp",
            "    1.0 us  25.0%      10    2.0 MB  sum",
            "memory: at most 4.0 kB at once, 3 B kept by loops for the backward pass",
            "",
        ]
    )
    assert "0.0 us a run" in str(Profile(0.0, (), "", 1))


def test_units():
    assert [_time(seconds) for seconds in (2.0, 0.5, 1e-3, 2e-7)] == ["2.00 s", "500.00 ms", "1.00 ms", "0.2 us"]
    assert [_size(count) for count in (0, 999, 1000, 2_500_000, 3 * 10**9)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "3.0 GB",
    ]
    assert _bytes_of("float32[2,3], bfloat16[], string[4], ArrayValue bool[0,7]") == 24 + 2


def test_own_times_leave_out_what_lies_inside():
    lane = Lane("cpu:0", "compute")
    slices = [Slice(lane, name, start, end, None, True) for name, start, end in
              [("inner", 1, 2), ("outer", 0, 10), ("second", 3, 7), ("deep", 4, 5), ("after", 10, 12)]]  # fmt: skip
    found = {event.name: seconds for event, seconds in _own_times(slices)}
    assert found == {"outer": 5, "inner": 1, "second": 3, "deep": 1, "after": 2}


def test_what_clocks_take_counts_for_no_operation():
    lane = Lane("cpu:0", "compute")
    slices = [Slice(lane, name, start, end, None, True) for name, start, end in
              [("outer", 0, 10), ("first", 1, 2), ("second", 3, 7), ("deep", 4, 5)]]  # fmt: skip
    found = {event.name: seconds for event, seconds in _own_times(slices, clock=0.5)}
    assert found == {"outer": 4, "first": 1, "second": 2.5, "deep": 1}


def test_the_clocks_have_a_line_of_their_own():
    n = ab.placeholder((), "int32", "n")
    _, y = ab.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v * 0.5 + 1.0), (0, 0.0))
    found = ab.profile(y, {n: 200}, runs=1)
    assert found.clocks > 0
    assert " of the clocks themselves, about:\n" in str(found)


@pytest.mark.parametrize("nothing", [[], {}, ()])
def test_nothing_is_not_profiled(nothing):
    with pytest.raises(ValueError, match="holds nothing to run; expected tensors or operations"):
        ab.profile(nothing, {})


@pytest.mark.parametrize(
    ("runs", "error", "match"),
    [(0, ValueError, "profile: runs=0; expected at least 1"), (1.5, TypeError, r"profile: runs=1.5 \(float\)")],
)
def test_runs_are_checked(runs, error, match):
    with pytest.raises(error, match=match):
        ab.profile(ab.constant(1.0) + 1, runs=runs)


def test_a_profile_counts_operands_that_are_laid_out_anew():
    matrix, wide = np.ones((90, 80), "float32"), np.ones((80, 180), "float32")
    with ab.Graph().as_default():
        x, y = ab.placeholder((90, 80), "float32"), ab.placeholder((80, 180), "float32")
        found = ab.profile(x @ y[:, 90:], {x: matrix, y: wide}, runs=2)  # rows may have gaps between them
        assert found.refits == 0
        assert "copied to another layout" not in str(found)
        if library.usable:
            found = ab.profile(x @ y[:, ::2], {x: matrix, y: wide}, runs=2)  # the elements of a row may not
            assert found.refits == 1
            assert "operands of kernels were copied to another layout 1 times a run" in str(found)


def lines_on_rows(fetches, feeds=()):
    return [line for line in ab.explain(fetches, feeds).summary.splitlines() if line.startswith("rows: ")]


def test_the_summary_of_a_step_of_any_batch_names_what_mixes_rows():
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3), "float32", "x")
        centred = x - ab.ops.mean(x, axis=0)
        assert lines_on_rows(ab.ops.tanh(x @ np.ones((3, 2), "float32"))) == ["rows: each is computed for itself"]
        assert lines_on_rows(centred) == ["rows: 'mean' (mean) is not known to compute each row for itself"]
        assert lines_on_rows([x * 2.0, centred]) == lines_on_rows(centred)
        assert lines_on_rows(centred, {x: np.ones((0, 3), "float32")}) == lines_on_rows(centred)
        fixed, scalar = ab.placeholder((2, 3), "float32"), ab.placeholder((), "float32")
        assert lines_on_rows(fixed * 2.0) == lines_on_rows(x * scalar) == lines_on_rows(ab.constant(1.0) * 2.0) == []
        total = ab.Variable(0.0)
        assert lines_on_rows([x * 2.0, total.assign_add(1.0).operation]) == []
