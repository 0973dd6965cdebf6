"""Profiles that repeat, explanations in short, pages and speedscope files, what notebooks show, and the log."""

from __future__ import annotations

import json
import logging
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.common.html import STYLE, array_view, flame_graph
from anabranch.engine.graph.op import registered_ops
from anabranch.engine.passes.framework.pipeline import PIPELINE
from anabranch.engine.passes.framework.switches import PASSES
from anabranch.engine.session import explanation as explaining
from anabranch.engine.session import profile as profiling
from anabranch.framework.models.history_view import history_html
from anabranch.framework.models.sequential import Sequential
from anabranch.framework.training import progress
from anabranch.framework.training.step_report import ModelExplanation, ModelProfile

RNG = np.random.default_rng(1)
X = RNG.normal(size=(16, 4, 4)).astype("float32")
Y = RNG.integers(0, 3, size=16)


class Checked(HTMLParser):
    """Notes the tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "meta", "path", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def model() -> Sequential:
    made = ab.Sequential(
        [ab.Input((4, 4)), layers.SimpleRNN(5, name="memory"), layers.Dense(3, "softmax", name="head")], name="small"
    )
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


@pytest.fixture(scope="module")
def profiled(model: Sequential) -> ModelProfile:
    return model.profile(X, Y, runs=2)


@pytest.fixture(scope="module")
def explained(model: Sequential) -> ModelExplanation:
    return model.explain(X, Y)


# --- profile --------------------------------------------------------------------------------------------------------


def profile_of(noise: list[float], monkeypatch: pytest.MonkeyPatch) -> profiling.Profile:
    """A profile by a clock on which every run takes what it is to take, times what others at work make of it."""
    with ab.Graph().as_default():
        x = ab.placeholder((2, 2), "float32", "x")
        y = ops.sort(x) @ x
        seconds = iter(1e-3 * factor for factor in noise)
        spent = {"sort": 3e-3, "matmul": 1e-3}
        factors = iter(noise)

        def summed_up(slices: Any, clock: float) -> Any:
            factor, found = next(factors), {}
            for event in slices:
                operation = profiling.operation_of(event)
                if operation is not None and operation.type in spent:
                    made = profiling._Spent(operation.name, spent[operation.type] * factor, 1, 8)  # pyright: ignore[reportPrivateUsage]
                    found[operation] = made
            return found, 0.0, 1e-4

        monkeypatch.setattr(profiling, "_seconds_of", lambda run: next(seconds))
        monkeypatch.setattr(profiling, "_summed_up", summed_up)
        return ab.profile(y, {x: np.eye(2)}, runs=len(noise))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_disturbs_two_runs_of_three_changes_no_time_by_a_tenth(seed: int, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(seed)
    noise = np.where(random.random(40) < 2 / 3, random.uniform(1.5, 9, 40), random.uniform(1, 1.05, 40)).tolist()
    found = profile_of(noise, monkeypatch)

    assert found.seconds == pytest.approx(1e-3, rel=0.1)
    times = {line.operation: line.seconds for line in found.lines}
    assert times == {"sort": pytest.approx(7.5e-4, rel=0.1), "matmul": pytest.approx(2.5e-4, rel=0.1)}


def test_lines_are_scaled_to_the_step_and_slow_clocks_are_warned_of(monkeypatch: pytest.MonkeyPatch):
    found = profile_of([1.0] * 8, monkeypatch)

    assert sum(line.seconds for line in found.lines) + found.between == pytest.approx(found.seconds)
    assert found.clocked == pytest.approx(4e-3)
    assert found.warning.startswith("Warning: with clocks a run takes 4.1 times as long.")
    assert found.warning in str(found)


def test_clocks_that_take_little_are_not_warned_of():
    assert profiling.Profile(1.0, (), "", 1, clocks=0.4, clocked=1.5).warning == ""
    assert profiling.Profile(1.0, (), "", 1, clocks=0.6, clocked=1.5).warning != ""


def test_a_profile_is_of_the_step_as_it_is_after_many_runs():
    with ab.Graph().as_default():
        n = ab.placeholder((), "int32", "n")
        _, y = ab.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.5 + 1.0), (0, 1.0))
        program: Any = ab.Session().program_for(y, {n: 9})
        waiting = program._tiers
        with program.settled() as settled:
            assert (settled is program) == (waiting is None)
        assert (program._tiers, program._often) == (waiting, None)


def test_phases_and_other_views_add_up_to_the_step(profiled: ModelProfile):
    phases = profiled.phases()

    assert {"forward", "backward", "optimizer", "metrics"} <= set(phases)
    assert sum(phases.values()) - profiled.data == pytest.approx(profiled.seconds)
    of_lines = sum(line.seconds for line in profiled.by_user_line())
    assert sum(line.seconds for line in profiled.by_kernel()) == pytest.approx(of_lines)
    assert of_lines + profiled.between == pytest.approx(profiled.seconds)
    assert any("test_looking_inside.py:" in line.location for line in profiled.by_user_line())
    assert "matmul" in {line.kernel for line in profiled.by_kernel()}


def test_memory(model: Sequential, profiled: ModelProfile):
    assert profiled.weights_bytes == 4 * model.count_params()
    assert profiled.optimizer_bytes >= 2 * profiled.weights_bytes  # Adam's two averages
    with ab.Graph().as_default():
        x = ab.placeholder((1000, 100), "float32", "x")
        found = ab.profile(ops.sort(x) @ ops.transpose(ops.sort(-x)), {x: np.ones((1000, 100))}, runs=1)
    assert 4e6 < found.peak_bytes < 8e6  # the result of a million elements, and two sorted arrays


def test_flame_graphs_in_a_file_for_speedscope(profiled: ModelProfile, tmp_path: Path):
    path = tmp_path / "step.speedscope.json"
    profiled.to_speedscope(path)
    written = json.loads(path.read_text(encoding="utf-8"))
    frames = written["shared"]["frames"]
    time, size = written["profiles"]

    assert written["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert (time["type"], time["unit"], size["unit"]) == ("sampled", "microseconds", "bytes")
    assert sum(time["weights"]) == pytest.approx(1e6 * (profiled.seconds + profiled.data))
    assert time["endValue"] == pytest.approx(sum(time["weights"]))
    stacks = [[frames[place]["name"] for place in sample] for sample in time["samples"]]
    assert {"forward", "backward", "optimizer", "metrics"} <= {stack[0] for stack in stacks}
    assert any(stack[:2] == ["backward", "head"] for stack in stacks)
    assert any(re.fullmatch(r"test_looking_inside\.py:\d+", name) for stack in stacks for name in stack)


def test_pages(profiled: ModelProfile, explained: ModelExplanation, tmp_path: Path):
    text = Checked(profiled.to_html(tmp_path / "profile.html")).text
    for part in ("One train step of 'small'", "memory (SimpleRNN)", "By your line", "By kernel", "Flame graph"):
        assert part in text
    assert (tmp_path / "profile.html").read_text(encoding="utf-8") == profiled.to_html()

    page = explained.to_html(tmp_path / "step.html")
    assert "@media (max-width: 800px) {.columns {grid-template-columns: 100%}" in page  # of phones: one below the other
    text = Checked(page).text
    for part in ("Your lines", "The program", "Its kernels", "def step(x, y):", "model.explain(X, Y)"):
        assert part in text
    linked = set(re.findall(r'data-u="([^"]+)"', page))
    assert len(linked) > 0


def test_the_time_with_clocks_is_the_one_that_is_warned_of(profiled: ModelProfile):
    (shown,) = re.findall(r"with clocks ([\d.]+) ms", str(profiled))
    assert float(shown) == pytest.approx(1e3 * (profiled.steps.clocked + profiled.steps.clocks), abs=6e-4)


def test_long_names_of_kernels_end_in_dots():
    line = profiling.ProfiledLine(1, "code", "op", "x.py:1", 1, 1.0, 8, kernel="fused (" + "multiply, " * 50 + ")")
    found = profiling.Profile(1.0, (line,), "code", 1)
    (cell,) = re.findall(r"<td>(fused[^<]*)</td>", "".join(found.html_tables(found.stacks())))
    assert cell.endswith("...")
    assert len(cell) == 2 * 48
    assert f"  {cell}\n" in str(found)


def test_flame_graphs_leave_out_what_is_too_narrow():
    drawn = flame_graph([(("a", "b"), 1.0), (("a", "c"), 1e-6), (("<d>",), 1.0)])

    assert drawn.count("<div style") == 3
    assert "&lt;d&gt;" in drawn


@pytest.mark.parametrize(("x", "y", "kind"), [(X, Y, "train"), (X, None, "predict"), ([(X, Y)], None, "train")])
def test_the_kind_of_step_follows_from_the_data(model: Sequential, x: Any, y: Any, kind: str):
    assert model.profile(x, y, runs=1).kind == kind


# --- explain --------------------------------------------------------------------------------------------------------


def looping() -> tuple[Any, Any]:
    x, w = ab.placeholder((6, 3, 4), "float32", "x"), ab.placeholder((4, 4), "float32", "w")

    def body(i: Any, h: Any) -> tuple[Any, Any]:
        return i + 1, ops.tanh(x[i] @ w + h @ w)

    _, h = ab.while_loop(lambda i, h: i < 6, body, (0, ops.zeros((3, 4))))
    return h, ab.gradients(h, [w])[0]


def test_explain_leads_with_fifteen_lines():
    with ab.Graph().as_default():
        told = ab.explain(looping())
    lines = told.summary.splitlines()

    assert str(told).startswith(told.summary + "\ndef step(")
    assert len(lines) <= 15
    assert re.match(r"a step of \d+ operations, 2 loops, ", lines[0])
    assert sum(line.startswith("loop ") for line in lines) == 2
    assert any(line.startswith("moved: ") and "for all iterations before the loop" in line for line in lines)
    assert any(line.startswith("products: 2 in loops, ") for line in lines)
    assert any(line.startswith("stayed: ") and "which the iteration before makes" in line for line in lines)
    assert "fission: batch, before or after" in told.passes
    assert told.source in str(ab.explain(told._program._origin[1], lines=False))


def test_the_names_that_a_summary_looks_for_exist():
    passes = {*explaining._STAYING, *explaining._MOVING}
    assert passes <= {*PASSES, *(each.name for each in PIPELINE)}
    assert {*explaining._PRODUCTS} <= registered_ops().keys()


@pytest.mark.kernels
def test_kernels_of_a_step_are_there_as_llvm_by_their_names():
    with ab.Graph().as_default():
        x = ab.placeholder((64, 64), "float32", "x")
        told = ab.explain(ops.tanh(x) * 2 + ops.sort(x))
    names = set(re.findall(r"\b(kernel(?:_\d+)?)\(", told.source))

    assert names
    assert {line.split()[2] for line in told.llvm.splitlines() if line.startswith("; --- ")} == names
    assert "fmul" in told.llvm
    assert 'class="l b"' in told.to_html().split("Its kernels")[1]


def test_a_step_of_no_kernels_has_no_llvm():
    with ab.Graph().as_default():
        told = ab.explain(ops.sort(ab.placeholder((3,), "float32", "x")))

    assert told.llvm == ""
    Checked(told.to_html())


# --- notebooks ------------------------------------------------------------------------------------------------------


def test_what_notebooks_show(model: Sequential, profiled: ModelProfile, explained: ModelExplanation):
    history = ab.callbacks.History()
    history.epoch, history.history = [0, 1], {"loss": [2.0, 1.0], "val_loss": [3.0, float("nan")]}
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, 3), "float32", "<x>")
        explanation = ab.explain(symbol + 1)
    shown: list[tuple[Any, str]] = [
        (ops.ones((2, 3)), "Tensor float32[2, 3]"),
        (symbol, "<Tensor <x>:0 float32[?,3]>"),
        (ab.Variable([1.0], name="v"), "<Variable v float32[1]>"),
        (model, "memory (SimpleRNN)"),
        (history, "val_loss"),
        (profiled, "memory (SimpleRNN)"),
        (profiled.steps, "your line"),
        (explained, "products:"),
        (explanation, "a step of"),
        (ab.utils.timeseries_dataset_from_array(np.arange(9.0), None, 2), "Dataset: 1 batches of 128, 8 samples"),
        (ab.tf.data.Dataset.from_tensor_slices([1, 2, 3]), "ElementDataset: 3 elements"),
        (ab.utils.Prefetch([1, 2]), "Prefetch of list: 10 ahead"),
    ]
    for found, text in shown:
        assert text in Checked(found._repr_html_()).text, found


def test_rules_of_notebooks_do_not_move_names_and_bars_to_the_right():
    rules = re.findall(r"text-align: [^;}]*", STYLE)
    assert rules == ["text-align: left !important"] * 2 + ["text-align: right !important"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (30, 40), (2, 3, 4), (0, 3), (2, 0)])
def test_arrays_of_any_shape(shape: tuple[int, ...]):
    text = Checked(array_view("title", np.full(shape, 7.5))).text

    assert text.startswith("\n") or "title" in text
    assert ("7.5" in text) == (0 not in shape)
    assert text.count("7.5") <= 10 * 12


def test_histories_without_epochs_and_of_many():
    assert "no epoch has ended" in history_html([], {})
    shown = Checked(history_html(list(range(50)), {"loss": [float(each) for each in range(50)]})).text
    assert "the last 20 of 50 epochs" in shown


def test_names_of_curves_are_above_them():
    chart = history_html([0, 1], {"loss": [2.0, 1.0], "val_loss": [1.0, 2.0]})
    names = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>(?:val_)?loss<', chart)]
    heights = [float(y) for points in re.findall(r'points="([^"]+)"', chart) for y in re.findall(r",([\d.]+)", points)]
    assert len(names) == 2
    assert max(names) < min(heights)


def test_a_drawing_has_a_short_repr(model: Sequential):
    assert re.fullmatch(r"<Drawing of a model: [\d,]+ characters of SVG>", repr(ab.utils.plot_model(model, None)))


def test_bars_are_those_of_notebooks_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    import tqdm

    assert progress._bar_class() is tqdm.tqdm  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(progress, "_is_notebook", lambda: True)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert progress._bar_class() is tqdm.tqdm  # pyright: ignore[reportPrivateUsage] - without widgets
    monkeypatch.setattr(progress, "find_spec", lambda name: sys)
    import tqdm.auto

    assert progress._bar_class() is tqdm.auto.tqdm  # pyright: ignore[reportPrivateUsage]


# --- the log --------------------------------------------------------------------------------------------------------


def told_by(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == f"anabranch.{topic}"]


def test_retraces_say_what_changed(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "anabranch")

    @ab.function(relax_shapes=2)
    def scaled(x: Any, factor: str = "one") -> Any:
        return ops.sum(x) * (2.0 if factor == "two" else 1.0)

    scaled(np.ones(3, "float32"))
    assert told_by(caplog, "trace") == []
    scaled(np.ones(4, "float32"))
    scaled(np.ones(4, "float32"), "two")
    scaled(np.ones(5, "float32"))

    told = told_by(caplog, "trace")
    assert told[0] == "function 'scaled' is traced again (trace 2): x: float32[3] before, float32[4] now"
    assert told[1] == "function 'scaled' is traced again (trace 3): factor: not given before, 'two' now"
    assert told_by(caplog, "fallback") == [
        "function 'scaled' was traced for 2 shapes: it is traced for any size of each axis, and runs slower"
    ]
    compiled = told_by(caplog, "compile")
    assert len(compiled) == 4
    expected = r"function 'scaled' was compiled in [\d.]+ ms: \d+ operations, \d+ lines, fed argument_0 float32"
    assert re.match(expected, compiled[0])


def test_retraces_are_compared_with_the_trace_that_is_most_like_them(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "anabranch")
    total = ab.function(lambda x, y=0: ops.sum(x) + y)
    total(np.ones(3, "float32"))
    total(np.ones(4, "float32"))
    total(np.ones(4, "int32"))
    total(np.ones(4, "int32"), y=1)
    with ab.device("cpu:0"):
        total(np.ones(4, "int32"), y=1)

    assert [told.partition("): ")[2] for told in told_by(caplog, "trace")] == [
        "x: float32[3] before, float32[4] now",
        "x: float32[4] before, int32[4] now",
        "y: not given before, int32[] now",
        "the device, or the order of the arguments",
    ]


def test_shapes_that_are_fed_anew_and_steps_of_models(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "anabranch")
    with ab.Graph().as_default():
        x = ab.placeholder((None,), "float32", "x")
        session, y = ab.Session(), x + 1
        for size in range(1, 11):
            session.run(y, {x: np.ones(size)})
    told = told_by(caplog, "cache")
    assert told[0] == "a step has no program for shapes that are fed now, beside 1 others: x: (1,) before, (2,) now"
    assert len(told) == 7
    assert told_by(caplog, "fallback") == [
        "a step was fed more than 8 combinations of shapes: one program for all runs slower"
    ]

    caplog.clear()
    small = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    for rows in (3, 4):
        small.predict(np.ones((rows, 2)), verbose=0)
    (told,) = told_by(caplog, "trace")
    assert told.startswith("a step of a model is traced again (trace 2): array 0: float32[3,2] before, float32[4,2]")


def test_placement_is_told(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "anabranch")
    ab.config.set_devices(cpu=2)
    try:
        with ab.Graph().as_default():
            x = ab.placeholder((2,), "float32", "x")
            with ab.device("cpu:1"):
                y = ops.sort(x)
            ab.Session().run(y + 1, {x: [2.0, 1.0]})
    finally:
        ab.config.set_devices()

    assert any(re.match(r"\d+ operations were placed: .*on cpu:1", told) for told in told_by(caplog, "placement"))


@pytest.mark.kernels
def test_operands_that_are_laid_out_anew_are_told(caplog: pytest.LogCaptureFixture):
    with ab.Graph().as_default():
        x = ab.placeholder((8, 8), "float32", "x")
        call = ab.Session().make_callable(ops.tanh(x) * 2, [x])
        call(np.ones((8, 8), "float32"))
        caplog.set_level(logging.DEBUG, "anabranch")
        call(np.asfortranarray(RNG.normal(size=(8, 8)).astype("float32")))

    assert all("copied to another layout" in told for told in told_by(caplog, "fallback"))
