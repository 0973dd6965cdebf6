"""The switches of passes: names, messages, the environment, and that programs follow them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework import switches
from anabranch.engine.passes.framework.log import is_recording, note_change, note_kept, recording
from anabranch.engine.passes.framework.switches import PASSES, is_on, only, turned_off, without


@pytest.fixture(autouse=True)
def _as_before():
    before = ab.config.get_passes()
    yield
    ab.config.set_passes(**before)


def test_all_passes_are_on_at_first_and_each_can_be_turned_off_and_on():
    assert all(ab.config.get_passes().values())
    for name in PASSES:
        ab.config.set_passes(**{name: False})
        assert [other for other in PASSES if not is_on(other)] == [name]
        ab.config.set_passes(**{name: True})
    assert turned_off() == frozenset()


def test_every_pass_has_one_line_that_describes_it():
    assert all(known.name == name and known.description.strip() for name, known in PASSES.items())
    assert len({known.description for known in PASSES.values()}) == len(PASSES)
    assert not PASSES["fission"].is_exact
    assert PASSES["cse"].is_exact


def test_every_pass_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text().partition("### List of passes")[2]
    page = page.partition("\n#")[0]
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == list(PASSES)


def test_turning_one_off_leaves_the_others_as_they_are():
    ab.config.set_passes(cse=False, fuse=False)
    ab.config.set_passes(fuse=True, sink=False)
    assert turned_off() == {"cse", "sink"}


def test_the_same_switches_are_the_same_object():
    ab.config.set_passes(cse=False, fuse=False)
    first = turned_off()
    ab.config.set_passes(cse=True, fuse=True)
    ab.config.set_passes(fuse=False)
    ab.config.set_passes(cse=False)
    assert turned_off() is first


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"fision": False}, ValueError, r"set_passes: 'fision' is no pass \(did you mean 'fission'\?\); expected some"),
        ({"xyz": True}, ValueError, "set_passes: 'xyz' is no pass; expected some of simplify, cse, fold"),
        ({"cse": 0}, TypeError, r"set_passes: cse=0 \(int\); expected True or False"),
        ({"cse": None}, TypeError, r"set_passes: cse=None \(NoneType\)"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(wrong, error, match):
    with pytest.raises(error, match=match):
        ab.config.set_passes(sink=False, **wrong)
    assert turned_off() == frozenset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("-fission,-fuse", {"fission", "fuse"}),
        (" -fission , +fuse,", {"fission"}),
        ("-fuse,+fuse", set()),
        ("+fuse,-fuse", {"fuse"}),
    ],
)
def test_what_the_environment_says(text, expected):
    assert switches._of_environment(text) == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("fuse", "ANABRANCH_PASSES='fuse': 'fuse' has no sign; expected '-fuse' to turn that pass off"),
        ("-fuze", r"ANABRANCH_PASSES: 'fuze' is no pass \(did you mean 'fuse'\?\)"),
        ("-", "ANABRANCH_PASSES: '' is no pass; expected some of"),
    ],
)
def test_what_is_wrong_in_the_environment(text, match):
    with pytest.raises(ValueError, match=match):
        switches._of_environment(text)


def test_a_process_starts_with_what_its_environment_says():
    code = "import anabranch as ab; print(*[name for name, runs in ab.config.get_passes().items() if not runs])"
    environment = {**os.environ, "ANABRANCH_PASSES": "-fission,-fuse"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fission", "fuse"]


def test_blocks_restore_what_was_before():
    with without("cse"):
        with without("sink"):
            assert turned_off() == {"cse", "sink"}
        assert turned_off() == {"cse"}
        with only("fuse"):
            assert {name for name in PASSES if is_on(name)} == {"fuse"}
        assert turned_off() == {"cse"}
    assert turned_off() == frozenset()
    with pytest.raises(ValueError, match="without: 'x' is no pass"), without("x"):
        pass


# --- programs -------------------------------------------------------------------------------------------------------


def test_a_program_is_made_anew_for_other_switches_and_found_again():
    with ab.Graph().as_default():
        x = ab.placeholder((), "float32", "x")
        y = ab.ops.exp(x) + ab.ops.exp(x)
        session = ab.Session()
        program: Any = session.program(y, [x])
        assert program.source.count("exp") < ab_source(y, x, "cse").count("exp")
        values = [program(np.float32(1))[0]]
        with without("cse"):
            values.append(program(np.float32(1))[0])
            values.append(program(np.float32(1))[0])
        assert len(program._others) == 1
        (other,) = program._others.values()
        assert other.source.count("np.exp(x)") == 2
        assert program.source.count("np.exp(x)") == 1
        values.append(program(np.float32(1))[0])
        assert values == [values[0]] * 4
        assert program.statistics.runs == 4


def ab_source(y, x, off):
    """The program of `y` without a pass."""
    with without(off):
        return ab.explain(y, [x], lines=False)


def test_a_program_made_without_a_pass_runs_with_it_when_it_is_on_again():
    with ab.Graph().as_default():
        x = ab.placeholder((), "float32", "x")
        y = ab.ops.exp(x) + ab.ops.exp(x)
        with without("cse"):
            program: Any = ab.Session().program(y, [x])
        assert program.source.count("np.exp(x)") == 2
        program(np.float32(1))
        (other,) = program._others.values()
        assert other.source.count("np.exp(x)") == 1


def test_steps_that_span_devices_follow_too():
    from anabranch.engine.machine.program import MachineProgram

    ab.config.set_devices(cpu=2)
    try:
        with ab.Graph().as_default():
            x = ab.placeholder((), "float32", "x")
            with ab.device("cpu:1"):
                y = ab.ops.exp(x) + ab.ops.exp(x)
            with ab.device("cpu:0"):
                z = y * 2
            program = MachineProgram(symbol_of(z).graph, [symbol_of(z)], [x])
            (first,) = program(np.float32(1))
            with without("cse"):
                assert program(np.float32(1)) == (first,)
            (other,) = program._others.values()
            assert other.source.count("np.exp(") == 2
            assert program.source.count("np.exp(") == 1
    finally:
        ab.config.set_devices()


def test_loops_without_fission_and_fusion_give_the_same_within_rounding():
    with ab.Graph().as_default():
        x = ab.placeholder((6, 3, 4), "float32", "x")
        w = ab.Variable(np.random.default_rng(0).normal(size=(4, 4)).astype("float32"))

        def body(i, state):
            return i + 1, ab.ops.tanh(x[i] @ w + state @ w)

        _, state = ab.while_loop(lambda i, state: i < 6, body, (0, ab.ops.zeros((3, 4))))
        loss = ab.ops.sum(state**2)
        fetches = [loss, *ab.gradients(loss, [w, x])]
        fed = {x: np.random.default_rng(1).normal(size=(6, 3, 4)).astype("float32")}
        session = ab.Session()
        whole = session.run(fetches, fed)
        for name in PASSES:
            with without(name):
                for got, expected in zip(session.run(fetches, fed), whole, strict=True):
                    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def test_results_lie_in_memory_of_their_own_without_memory_planning():
    with ab.Graph().as_default():
        x = ab.placeholder((64, 64), "float32", "x")
        y = ab.ops.tanh(x @ x) * 2.0 + 1.0
        value = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        expected = ab.Session().run(y, {x: value})
        with without("memory"):
            assert "add = empty_float32_64_64()" in ab.explain(y, lines=False)
            np.testing.assert_array_equal(ab.Session().run(y, {x: value}), expected)
        assert "add = matmul" in ab.explain(y, lines=False)


# --- the log --------------------------------------------------------------------------------------------------------


def test_notes_are_dropped_unless_a_log_is_recorded():
    assert not is_recording()
    note_change("cse", None, lambda: pytest.fail("asked for though nothing is recorded"))
    note_kept("cse", None, lambda: pytest.fail("asked for though nothing is recorded"))


def test_a_log_has_what_was_told_while_it_was_recorded():
    with ab.Graph().as_default():
        operation = symbol_of(ab.constant(1.0, name="one")).operation
    with recording() as log:
        assert is_recording()
        note_change("cse", operation, "is the same as two")
        with recording() as inner:
            note_kept("sink", operation, lambda: "is fetched")
        note_change("fold", None, "nothing")
    assert [(note.pass_name, note.operation, note.text) for note in log.changes] == [
        ("cse", "one", "is the same as two"),
        ("fold", "", "nothing"),
    ]
    assert log.kept == []
    assert [note.text for note in inner.kept] == ["is fetched"]
    assert str(log.changes[0].location).startswith(__file__)
    assert log.changes[1].location is None
    assert log.of("cse") == ([log.changes[0]], [])
    assert not is_recording()
