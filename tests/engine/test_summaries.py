"""`ab.summary`: what is written, from graphs, loops, branches, functions, layers, train steps and plain Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.event_files import CLASSES, decoded_png, events, records, scalars
from shared.examples import examples
from shared.faults import no_space

import anabranch as ab
from anabranch import layers, ops, summary
from anabranch.engine.summaries.event_file import EventFile, bucketed


def written(path: Path) -> list[tuple[int, str, Any]]:
    """Step, tag and number of all scalars, in order."""
    return [(event.step, value.tag, value.simple_value) for event in events(path) for value in event.summary.value]


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    made = summary.create_file_writer(tmp_path / "logs")
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def test_what_is_written_at_once(writer: Any, path: Path) -> None:
    pixels = np.arange(12, dtype="uint8").reshape(2, 2, 3)
    with writer.as_default():
        summary.scalar("loss", ops.constant([0.5]), 3)
        summary.histogram("h", [1.0, 2.0, np.nan, 5.0], 4, buckets=2)
        summary.image("picture", pixels, 5)
        summary.image("several", np.stack([pixels] * 5), 5, max_outputs=2)
        summary.text("note", "a **b**", 6)
        summary.text("notes", ["a", "b"], np.int32(6))
    loss, histogram, picture, first, second, note, notes = [
        value for event in events(path) for value in event.summary.value
    ]
    assert (loss.tag, loss.simple_value) == ("loss", 0.5)
    assert (histogram.histo.min, histogram.histo.max, histogram.histo.num) == (1, 5, 3)
    assert list(histogram.histo.bucket) == [2, 1]
    np.testing.assert_array_equal(decoded_png(picture.image.encoded_image_string), pixels)
    assert [first.tag, second.tag] == ["several/0", "several/1"]
    assert list(note.tensor.string_val) == [b"a **b**"]
    assert list(notes.tensor.string_val) == [b"a", b"b"]
    assert [event.step for event in events(path)] == [3, 4, 5, 5, 5, 6, 6]


def test_a_writer_goes_on_in_a_new_file_after_a_full_disk(writer: Any, path: Path) -> None:
    def write(text: str) -> None:
        with writer.as_default():
            summary.text("text", text, 1)

    write("before")
    with no_space(os.getpid()), pytest.raises(OSError, match="File too large"):
        write("long " * 1000)
    write("after")
    first, last = sorted(path.iterdir(), key=lambda file: int(file.suffixes[-2][1:]))
    (event,) = map(CLASSES["Event"].FromString, records(last.read_bytes())[1:])
    assert event.summary.value[0].tensor.string_val[0] == b"after"
    with pytest.raises(ab.errors.DataLossError):
        list(ab.io.tf_record_iterator(first))


def test_graphs_loops_branches_and_functions(writer: Any, path: Path) -> None:
    with writer.as_default():

        def body(i: Any, s: Any) -> Any:
            summary.scalar("in loop", s, i)
            with summary.record_if(i % 2 == 0):
                summary.scalar("even", s, i)
            ops.convert_to_tensor(0)
            return i + 1, s * 2.0

        @ab.function
        def run(count: Any) -> Any:
            _, s = ab.while_loop(lambda i, s: i < count, body, (0, 1.0))
            ab.cond(s > 5.0, lambda: summary.scalar("large", s, 9), lambda: summary.scalar("small", s, 9))
            return s

        assert [float(run(count)) for count in (0, 3)] == [1, 8]
        with ab.Graph().as_default():
            x = ab.placeholder((), "float32")
            fetched, other = summary.scalar("fetched", x, 1), summary.scalar("not fetched", x, 1)
            assert other is not None
            session = ab.Session()
            session.run(fetched, {x: 2.5})
    loop = [(i, "in loop", 2.0**i) for i in range(3)]
    even = [(i, "even", 2.0**i) for i in (0, 2)]
    expected = [(9, "small", 1), loop[0], even[0], loop[1], loop[2], even[1], (9, "large", 8), (1, "fetched", 2.5)]
    assert written(path) == expected


def test_gradients_pass_by(writer: Any) -> None:
    with writer.as_default(step=0), ab.Graph().as_default():
        x = ab.placeholder((3,), "float64")

        def body(i: Any, h: Any) -> Any:
            summary.histogram("h", h)
            return i + 1, ops.tanh(h)

        _, y = ab.while_loop(lambda i, h: i < 3, body, (0, x))
        (gradient,) = ab.gradients(y, [x])
        found = ab.Session().run(gradient, {x: np.array([0.1, 0.2, 0.3])})
    h, expected = np.array([0.1, 0.2, 0.3]), np.ones(3)
    for _ in range(3):
        h = np.tanh(h)
        expected = expected * (1 - h * h)
    np.testing.assert_allclose(found, expected, 1e-12)


class Watched(layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.dense = layers.Dense(2)

    def call(self, x: Any) -> Any:
        found = self.dense(x)
        summary.scalar("mean", ops.mean(found))
        return found


@pytest.mark.parametrize("steps", [1, 2])
def test_layers_write_at_the_steps_of_the_optimizer(steps: int, writer: Any, path: Path) -> None:
    model = ab.Sequential([Watched(name="watched"), layers.Dense(1)], name="model")
    model.compile(ab.optim.SGD(0.0), "mse", steps_per_execution=steps)
    x = np.arange(16.0, dtype="float32").reshape(8, 2)
    model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0)  # before there is a writer
    with writer.as_default(), summary.record_if(True):
        model.fit(x, x[:, :1], batch_size=2, epochs=1, shuffle=False, verbose=0)
    with summary.record_if(False), writer.as_default():
        model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0)
    kernel, bias = model.layers[0].get_weights()
    expected = [(x[k : k + 2] @ kernel + bias).mean() for k in range(0, 8, 2)]
    found = written(path)
    assert [(step, tag) for step, tag, _ in found] == [(4 + k, "model/watched/mean") for k in range(4)]
    np.testing.assert_allclose([value for _, _, value in found], expected, 1e-5)


def test_a_train_step_of_ones_own(writer: Any, path: Path) -> None:
    class Own(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with ab.GradientTape() as tape:
                loss = ops.mean(ops.square(y - self(x)))
            found = tape.gradient(loss, self.trainable_variables)
            with summary.record_if(self.optimizer.iterations % 2 == 0):
                summary.scalar("norm", ops.sqrt(sum(ops.sum(ops.square(g)) for g in found)))
                summary.histogram("kernel gradient", found[0])
            self.optimizer.apply(found, self.trainable_variables)
            return {"loss": loss}

    model = Own()
    model.compile("sgd")
    with writer.as_default():
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=2, epochs=1, verbose=0)
    assert [(step, tag) for step, tag, _ in written(path)] == [
        (step, tag) for step in (0, 2) for tag in ("norm", "kernel gradient")
    ]


def test_scopes(writer: Any, path: Path, tmp_path: Path) -> None:
    other = summary.create_file_writer(tmp_path / "other")
    assert summary.scalar("nowhere", 1.0, 1) is None
    assert summary.should_record_summaries() is False
    with writer.as_default(step=1):
        with ab.name_scope("a"), ab.name_scope("b"):
            summary.scalar("x", 1.0)
        with other.as_default(step=2):
            summary.scalar("y", 1.0)
        with summary.record_if(lambda: False):
            assert summary.should_record_summaries() is False
            summary.scalar("z", 1.0)
        summary.set_step(ops.constant(7))
        summary.scalar("last", 1.0)
    with writer.as_default(), pytest.raises(ValueError, match=r"Summary 'loss' has no step\. Give step="):
        summary.scalar("loss", 1.0)
    other.close()
    assert [(step, tag) for step, tag, _ in written(path)] == [(1, "a/b/x"), (7, "last")]
    assert scalars(tmp_path / "other") == {"y": {2: 1}}


def test_the_only_optimizer_of_a_graph_gives_the_step(writer: Any, path: Path) -> None:
    with ab.Graph().as_default(), writer.as_default():
        w = ab.Variable(4.0)
        loss = w * w
        with pytest.raises(ValueError, match="has no step"):
            summary.scalar("loss", loss)
        train = ab.optim.SGD(0.25).minimize(loss, [w])
        with ab.control_dependencies([train]):
            note = summary.scalar("loss", loss)
        with ab.Session() as session:
            for _ in range(3):
                session.run(note)
        ab.optim.SGD(0.25).minimize(w * 2.0, [w])
        with pytest.raises(ValueError, match="has no step"):
            summary.scalar("loss", loss)
        summary.scalar("loss", loss, 7)
    assert written(path) == [(1, "loss", 16.0), (2, "loss", 4.0), (3, "loss", 1.0)]
    with ab.Graph().as_default():
        assert summary.get_step() is None


def test_what_can_not_be_written(writer: Any) -> None:
    with writer.as_default(step=1):
        with pytest.raises(ValueError, match="scalar 'x' must be one number"):
            summary.scalar("x", [1.0, 2.0])
        with pytest.raises(ValueError, match=r"An image must have shape .* got \[3,2\]"):
            summary.image("x", np.zeros((3, 2)))
        with pytest.raises(TypeError, match="text 'x' must be strings, got int32"):
            summary.text("x", ops.constant([1]))
        with pytest.raises(TypeError, match="The step of summary 'x' must be an integer"):
            summary.scalar("x", 1.0, [1, 2])
        with pytest.raises(ValueError, match="buckets must be at least 1"):
            summary.histogram("x", [1.0], buckets=0)
        summary.histogram("x", [np.nan])
        summary.image("x", np.zeros((0, 2, 2, 1)))
    writer.close()
    with writer.as_default(step=1), pytest.raises(RuntimeError, match=r"The writer of .* is closed: make another one"):
        summary.scalar("x", 1.0)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: ab.summary.scalar(cast(Any, 3), 1.0, step=1), "Summary 3: the name must be a str, got an int"),
        (lambda: ab.summary.scalar("x", "a", step=1), "scalar 'x' must be a number, got string"),
        (lambda: ab.summary.histogram("x", ["a"], step=1), "histogram 'x' must be of numbers, got string"),
        (
            lambda: ab.summary.image("x", np.zeros((4, 4, 3), "int32"), step=1),
            "image 'x' must be of uint8, or of floats",
        ),
        (lambda: ab.summary.text("x", 3, step=1), "text 'x' must be strings, got int64"),
        (lambda: ab.summary.record_if("always").__enter__(), "record_if: expected a boolean, a tensor or a function"),
    ],
)
def test_what_is_of_another_type_is_named(writer: Any, write: Any, message: str) -> None:
    with writer.as_default(), pytest.raises(TypeError, match=message):
        write()


def test_a_graph_with_summaries_is_saved(writer: Any, path: Path, tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph, writer.as_default():
        x = ab.placeholder((None,), "float32", "x")
        fetched = summary.histogram("h", x, 3)
        assert fetched is not None
        name = fetched.name
    graph.save(tmp_path / "saved.npz")
    again = ab.load_graph(tmp_path / "saved.npz")
    session = ab.Session(again)
    session.run(again.get_operation_by_name(name), {again.get_tensor_by_name("x:0"): [1.0, 2.0]})
    for each in again.get_operation_by_name(name).effects:
        each.resource.close()
    (event,) = events(path)
    assert (event.step, event.summary.value[0].histo.num) == (3, 2)


@given(st.lists(st.floats(width=32), max_size=20), st.integers(1, 5))
@settings(max_examples=examples(15, 60), deadline=None)
def test_buckets_count_each_finite_number_once(values: Any, buckets: int) -> None:
    numbers, limits, counts = bucketed(np.array(values, "float32"), buckets)
    finite = [value for value in values if np.isfinite(value)]
    assert counts.sum() == len(finite)
    assert len(limits) == len(counts)
    if finite:
        assert (numbers[0], numbers[1], numbers[2]) == (min(finite), max(finite), len(finite))
        assert limits[-1] == max(finite)


# Read by TensorBoard 2.20's EventFileLoader as one event of the version, then scalar 0.5 at step 1 under "loss",
# histogram of 1, 2 and 5 in two buckets at step 2 under "h", text "hi" at step 3 under "t".
GOLDEN = """
1800000000000000a37f4b22090000000084d7d7411a0d627261696e2e4576656e743a32253c71d01a00000000000000129bd82d09000000
0084d7d74110012a0d0a0b0a046c6f7373150000003f0854d3fd6500000000000000ebd05a69090000000084d7d74110022a580a560a0168
2a5109000000000000f03f110000000000001440190000000000000840210000000000002040290000000000003e40321000000000000008
4000000000000014403a100000000000000040000000000000f03f3401ce3a2800000000000000ff70164a090000000084d7d74110032a1b
0a190a01744a0a0a060a04746578742002420808071200420268690e1f1ac2
"""


def test_the_bytes_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.engine.summaries.event_file.time.time", lambda: 1_600_000_000.0)
    with EventFile(tmp_path / "logs") as file:
        file.scalar("loss", 0.5, 1)
        file.histogram("h", np.array([1.0, 2.0, 5.0]), 2, buckets=2)
        file.text("t", "hi", 3)
    (found,) = (tmp_path / "logs").iterdir()
    assert found.read_bytes().hex() == "".join(GOLDEN.split())
