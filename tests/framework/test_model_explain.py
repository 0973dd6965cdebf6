"""`Model.explain` and `Model.profile`: the compiled step, and where its time goes, by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph.provenance import Location, Part, building_part, location_of_several
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session.profile import ProfiledLine
from anabranch.framework.training.step_report import LayerTime, ModelProfile, layer_times

RNG = np.random.default_rng(1)
X = RNG.normal(size=(16, 4, 4)).astype("float32")
Y = RNG.integers(0, 3, size=16)


def classifier(optimizer: Any = "adam") -> ab.Model:
    inputs = ab.Input((4, 4))
    hidden = layers.LSTM(5, name="memory")(layers.Dense(6, activation="relu", name="hidden")(inputs))
    dropped = layers.Dropout(0.5, name="drop")(layers.BatchNormalization(name="norm")(hidden))
    model = ab.Model(inputs, layers.Dense(3, activation="softmax", name="head")(dropped), name="classifier")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def flat(lines: tuple[LayerTime, ...]) -> Iterator[LayerTime]:
    for line in lines:
        yield line
        yield from flat(line.inside)


@pytest.fixture(scope="module")
def profiled() -> tuple[ab.Model, ModelProfile]:
    model = classifier()
    return model, model.profile(X, Y, runs=2)


# --- provenance -----------------------------------------------------------------------------------------------------


def parts_of(operation: ab.Operation) -> tuple[Part, ...]:
    assert operation.location is not None
    return operation.location.parts


def parts_in(graph: ab.Graph) -> dict[str, set[Part]]:
    return {operation.name: set(parts_of(operation)) for operation in graph.operations}


def test_operations_note_what_they_are_built_for():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((2, 3), "float32", "x")
        with building_part("layer", "first"):
            y = ops.tanh(x)
            with building_part("loss"):
                loss = ops.sum(y)
        dx = ab.gradients(loss, [x])[0]
        ddx = ab.gradients(ops.sum(dx), [x])[0]
    parts = parts_in(graph)

    assert parts["x"] == set()
    assert parts[symbol_of(y).operation.name] == {Part("layer", "first")}
    assert parts[symbol_of(loss).operation.name] == {Part("loss")}
    assert parts[dx.operation.name] == parts[ddx.operation.name] == {Part("layer", "first", True)}


def test_bodies_of_loops_note_it_too():
    with ab.Graph().as_default():
        x = ab.placeholder((3,), "float32", "x")
        with building_part("layer", "loop"):
            _, y = ab.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, ops.tanh(h)), (0, x))
        dx = ab.gradients(y, [x])[0]
    forward, backward = y.operation, dx.operation

    assert {op.type for op in forward.op.regions[1].operations} >= {"tanh"}
    for operation, is_backward in ((forward, False), (backward, True)):
        inside = [op for region in operation.op.regions for op in region.operations]
        assert {part for op in [operation, *inside] for part in parts_of(op)} == {Part("layer", "loop", is_backward)}


def test_of_several_operations_that_become_one_all_parts_count():
    first, last = Location("a.py", 1, (Part("layer", "a"),)), Location("a.py", 2, (Part("layer", "b"),) * 2)

    assert location_of_several([first, None, last]) == Location("a.py", 2, (*first.parts, Part(""), *last.parts))
    assert location_of_several([Location("a.py", 1), Location("a.py", 2)]) == Location("a.py", 2)
    assert location_of_several([first, None]) is None


def test_an_error_ends_a_part():
    with pytest.raises(KeyError), building_part("layer", "a"):
        raise KeyError
    with ab.Graph().as_default():
        assert parts_of(symbol_of(ops.ones(3)).operation) == ()


def test_saved_graphs_are_as_before(tmp_path: Any):
    with ab.Graph().as_default() as graph, building_part("layer", "a"):
        x = ab.placeholder((2,), "float32", "x")
        y = x + 1.0
    graph.save(tmp_path / "graph.npz")
    again = ab.load_graph(tmp_path / "graph.npz").get_tensor_by_name(symbol_of(y).name).operation

    location = symbol_of(y).operation.location
    assert location is not None
    assert again.location == location._replace(parts=())


# --- times ----------------------------------------------------------------------------------------------------------


def line(seconds: float, *parts: Part, size: int = 0) -> ProfiledLine:
    return ProfiledLine(1, "", "", "", 1, seconds, size, parts)


def test_times_go_to_the_layers():
    model = classifier()
    hidden, head = Part("layer", "classifier/hidden"), Part("layer", "classifier/head")
    found = layer_times(
        model,
        [
            line(4.0, hidden, hidden, head, Part("", "", True), size=400),  # one kernel of four operations
            line(1.0, head._replace(is_backward=True), size=8),
            line(2.0, Part("layer", "classifier/memory/lstm_cell"), size=3),
            line(0.5, Part("layer", "classifier/memory", True), size=5),
            line(3.0, Part("loss", "", True)),
            line(0.25, Part("optimizer")),
            line(0.75),
            line(1.5, Part("layer", "classifier")),
        ],
    )

    assert [(each.name, each.class_name, each.forward, each.backward, each.bytes) for each in found] == [
        ("classifier", "Functional", 1.5, 0.0, 0),
        ("hidden", "Dense", 2.0, 0.0, 200),
        ("memory", "LSTM", 2.0, 0.5, 8),
        ("head", "Dense", 1.0, 1.0, 108),
        ("loss", "", 0.0, 3.0, 0),
        ("optimizer", "", 0.25, 0.0, 0),
        ("elsewhere", "", 0.75, 1.0, 100),
    ]
    assert found[2].inside == (LayerTime("lstm_cell", "LSTMCell", 2.0, 0.0, 3),)
    assert found[2].seconds == 2.5


def test_every_layer_has_its_line(profiled: tuple[ab.Model, ModelProfile]):
    model, found = profiled
    names = [each.name for each in found.layers]

    assert names == ["hidden", "memory", "norm", "drop", "head", "loss", "optimizer", "metrics"]
    assert (found.model, found.kind, found.steps.runs) == ("classifier", "train", 2)
    for each in found.layers[:5]:
        assert each.class_name == type(model.get_layer(each.name)).__name__
        assert each.forward > 0
        assert each.backward > 0
        assert each.bytes > 0
    loss, optimizer, metrics = found.layers[5:]
    assert loss.backward > 0
    assert (optimizer.backward, metrics.backward) == (0, 0)
    assert [each.name for each in found.layers[1].inside] == ["lstm_cell"]


def test_times_add_up_to_the_step(profiled: tuple[ab.Model, ModelProfile]):
    _, found = profiled
    of_layers, of_lines = sum(each.seconds for each in found.layers), sum(each.seconds for each in found.steps.lines)

    assert of_layers == pytest.approx(of_lines)
    assert found.total == pytest.approx(of_lines + found.between)
    assert 0 <= found.between < found.total  # 0 where clocks, subtracted by the time of one, were all that there was
    assert found.between + found.steps.clocks > 0
    for each in flat(found.layers):
        assert each.seconds + 1e-12 >= sum(inner.seconds for inner in each.inside)


def test_bytes_add_up_to_the_step(profiled: tuple[ab.Model, ModelProfile]):
    _, found = profiled
    rows = len(list(flat(found.layers)))

    assert abs(sum(each.bytes for each in found.layers) - sum(each.bytes for each in found.steps.lines)) <= rows


def test_the_table_can_be_read(profiled: tuple[ab.Model, ModelProfile]):
    _, found = profiled
    told, title, *rows = [line for line in str(found).splitlines() if not line.startswith("Warning: ")]

    assert told.startswith("One train step of 'classifier': ")
    assert "(median of 2); with clocks" in told
    assert title.split() == ["layer", "forward", "ms", "backward", "ms", "share", "bytes"]
    assert [row.split("  ")[0] for row in rows if not row.startswith(" ")][:2] == ["hidden (Dense)", "memory (LSTM)"]
    assert rows[2].startswith("  lstm_cell (LSTMCell)")
    *rows, phases, memory = rows
    assert rows[-1].startswith("between operations")
    assert {len(row) for row in rows} == {len(title)}
    assert phases.startswith("in ms: forward ")
    assert ", backward " in phases
    assert memory.startswith("memory: at most ")
    shares = [float(row.split("%")[0].split()[-1]) for row in rows if not row.startswith(" ")]
    assert sum(shares) == pytest.approx(100, abs=0.06 * len(shares))


def test_a_profile_leaves_the_model_as_it_is():
    model = classifier()
    model.fit(X, Y, verbose=0)
    before = [variable.numpy() for variable in (*model.weights, *model.optimizer.variables)]
    logs, iterations = model.get_metrics_result(), int(model.optimizer.iterations)
    ab.utils.set_random_seed(7)
    expected = np.random.random(), ab.random.normal((2,)).tolist()  # noqa: NPY002
    ab.utils.set_random_seed(7)
    model.profile(X, Y, runs=1)

    assert (np.random.random(), ab.random.normal((2,)).tolist()) == expected  # noqa: NPY002
    after = [variable.numpy() for variable in (*model.weights, *model.optimizer.variables)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.get_metrics_result() == logs
    assert int(model.optimizer.iterations) == iterations


def test_training_goes_on_after_a_profile_as_without():
    losses: list[list[float]] = []
    for looks in (False, True):
        ab.utils.set_random_seed(3)
        model = classifier()
        model.fit(X, Y, batch_size=8, verbose=0)
        if looks:
            model.profile(X, Y, batch_size=8, runs=1)
        losses.append(model.fit(X, Y, batch_size=8, verbose=0).history["loss"])

    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["test", "predict"])
def test_other_steps(kind: str):
    model = classifier()
    found = model.profile(X, Y, kind=kind, runs=1)
    others = {"test": ["loss", "metrics"], "predict": []}[kind]

    assert [each.name for each in found.layers] == ["hidden", "memory", "norm", "head", *others]
    assert all(each.backward == 0 for each in flat(found.layers))


def test_predict_needs_no_compile():
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1, name="only")])

    assert [each.name for each in model.profile(np.ones((3, 2)), kind="predict", runs=1).layers] == ["only"]
    assert "x @" in model.explain(np.ones((3, 2)), kind="predict").source


class Nested(ab.Model):
    """A model inside, an operation of its own, a list of layers, and a step of its own."""

    def __init__(self) -> None:
        super().__init__(name="nested")
        self.encoder = ab.Sequential([ab.Input((16,)), layers.Dense(4, name="inner")], name="encoder")
        self.blocks = [layers.Dense(4, name=f"block_{number}") for number in range(2)]
        self.head = layers.Dense(1, name="head")

    def call(self, x: Any) -> Any:
        x = ops.reshape(x, (-1, 16)) * 1.5
        x = self.encoder(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class OwnStep(Nested):
    def train_step(self, data: Any) -> Any:
        x, y = data
        loss = ops.mean(ops.abs(self(x, training=True)[:, 0] - ops.cast(y, "float32")))
        self.optimizer.apply(ab.gradients(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def test_models_inside_models_that_no_batch_has_built_yet():
    model = Nested()
    model.compile("sgd", "mse")
    found = model.profile(X, Y, runs=1)

    assert [each.name for each in found.layers] == [
        *("nested", "encoder", "block_0", "block_1", "head"),
        *("loss", "optimizer", "metrics"),
    ]
    encoder = found.layers[1]
    assert (encoder.class_name, [each.name for each in encoder.inside]) == ("Sequential", ["inner"])
    assert model.built


def test_what_a_step_of_its_own_computes_is_elsewhere():
    model = OwnStep()
    model.compile("sgd")
    names = [each.name for each in model.profile(X, Y, runs=1).layers]

    assert names == ["nested", "encoder", "block_0", "block_1", "head", "optimizer", "elsewhere"]


def test_an_optimizer_with_loss_scaling():
    model = classifier(ab.optimizers.LossScaleOptimizer(ab.optimizers.SGD(0.1)))

    assert "optimizer" in [each.name for each in model.profile(X, Y, runs=1).layers]


def test_data_as_for_fit():
    model = classifier()
    whole = model.profile(np.tile(X, (4, 1, 1)), np.tile(Y, 4), runs=1)  # of 64 rows the first 32
    rows = model.profile([(X[:5], Y[:5]), (X, Y)], runs=1)

    (first, second) = [each.layers[0].bytes for each in (whole, rows)]
    assert first > second
    assert model._steps["train"].count() == 2


def test_a_step_that_spans_devices():
    ab.config.set_devices(cpu=2)
    try:
        with ab.device("cpu:1"):
            model = classifier()
        found = model.profile(X, Y, runs=1)
        told = model.explain()
    finally:
        ab.config.set_devices()

    assert {"hidden", "memory", "norm", "head", "loss", "optimizer"} <= {each.name for each in found.layers}
    assert {"hidden", "head, backward", "optimizer"} <= {layer for each in told.lines for layer in each.layers}


# --- explain --------------------------------------------------------------------------------------------------------


def test_lines_tell_layers():
    model = classifier()
    model.fit(X, Y, verbose=0)
    told = model.explain()
    whose = {layer for each in told.lines for layer in each.layers}

    assert told.source.splitlines() == [each.text for each in told.lines]
    assert [each.number for each in told.lines] == list(range(1, len(told.lines) + 1))
    assert {"hidden", "hidden, backward", "head", "memory/lstm_cell, backward", "loss", "optimizer"} <= whose
    product = next(each for each in told.lines if "@" in each.text)
    assert product.layers == ("hidden",)
    assert str(told).removeprefix(told.summary + "\n").splitlines()[product.number - 1] == str(product)
    assert f"# hidden: {product.operation}, test_model_explain.py:" in str(product)
    assert "cse: compute equal pure operations once" in told.passes


@pytest.mark.kernels
def test_a_kernel_of_several_layers_names_them_all():
    model = ab.Sequential([ab.Input((4,)), layers.ReLU(name="above"), layers.Rescaling(3.0, name="wider")])
    told = model.explain(RNG.normal(size=(300, 4)), kind="predict")

    assert ("above", "wider") in [each.layers for each in told.lines]


def test_passes():
    told = classifier().explain(X, Y, passes=True)

    assert str(told) == told.passes
    assert "cse: compute equal pure operations once" in told.passes
    assert told.source.startswith("def step(x, y):")


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["explain", "profile"])
def test_misuse_is_named(what: str):
    model = classifier()
    method = getattr(model, what)
    fresh = ab.Sequential([ab.Input((2,)), layers.Dense(1)], name="fresh")
    with pytest.raises(ValueError, match=rf"Model 'fresh' must be compiled before {what}\(\)"):
        getattr(fresh, what)(X, Y)
    with pytest.raises(ValueError, match=rf"{what}\(\): kind must be 'train', 'test' or 'predict', got 'fit'"):
        method(X, Y, kind="fit")
    with pytest.raises(ValueError, match=rf"{what}\(\): the data gave no batch"):
        method(iter([]))
    with pytest.raises(ValueError, match="x has no rows"):
        method(X[:0], Y[:0])
    with ab.Graph().as_default(), pytest.raises(RuntimeError, match=rf"{what}\(\) runs at once, but a graph is being"):
        method(X, kind="predict")


def test_what_there_is_nothing_to_show_of():
    model = classifier()
    with pytest.raises(ValueError, match=r"model 'classifier' has no compiled train step yet\. Give data"):
        model.explain()
    with pytest.raises(ValueError, match="no compiled predict step yet"):
        model.explain(kind="predict")
    with pytest.raises(ValueError, match="no compiled train step yet"):
        model.explain(passes=True)
    nothing: Any = None
    with pytest.raises(ValueError, match=r"profile\(\) runs steps of model 'classifier': give it data"):
        model.profile(nothing)
    with pytest.raises(ValueError, match="runs=0; expected at least 1"):
        model.profile(X, Y, runs=0)
    with pytest.raises(TypeError, match=r"runs=1\.5"):
        model.profile(X, Y, runs=1.5)  # pyright: ignore[reportArgumentType]


def test_an_error_in_a_step_puts_the_state_back():
    model = ab.Sequential([ab.Input((1,)), layers.Dense(1, kernel_initializer="ones", name="only")])

    class Failing(ab.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            weight = model.get_layer("only").kernel
            weight.assign_add(ops.ones((1, 1)))
            ops.assert_less(ops.sum(x), 0.0)
            return {"loss": ops.sum(y)}

    failing = Failing(model.inputs, model.outputs)
    failing.compile("sgd")
    with pytest.raises(ValueError, match="less"):
        failing.profile(np.ones((1, 1)), np.ones((1, 1)), runs=1)

    assert failing.get_layer("only").kernel.numpy().item() == 1.0


def rows_of(explained: Any) -> list[str]:
    return [line for line in explained.summary.splitlines() if line.startswith("rows: ")]


def test_an_explained_prediction_names_the_op_that_keeps_requests_apart() -> None:
    x = ab.Input((2,), name="x")
    normed = ab.Sequential([x, layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5)])
    centred = ab.Model(x, x - ops.mean(x, axis=0, keepdims=True), name="centred")
    with pytest.raises(ValueError, match="no compiled predict step"):
        centred.explain(kind="predict")
    data = np.ones((4, 2), "float32")
    assert rows_of(normed.explain(data, kind="predict")) == ["rows: each is computed for itself"]
    (line,) = rows_of(centred.explain(data, kind="predict"))
    assert re.fullmatch(r"rows: 'centred/mean\w*' \(mean\) is not known to compute each row for itself", line)
    centred.predict(data, verbose=0)
    assert rows_of(centred.explain(kind="predict")) == [line]
    normed.compile("sgd", "mse")
    assert rows_of(normed.explain(data, np.ones((4, 3)))) == []  # a step of training takes its batch as a whole


def test_a_prediction_of_one_batch_size_says_so() -> None:
    class Halved(ab.Model):
        def call(self, x: Any) -> Any:
            return x * float(1 / int(x.shape[0]))

    (line,) = rows_of(Halved().explain(np.ones((4, 2), "float32"), kind="predict"))
    assert line.startswith("rows: the step can't be built for batches of any size: TypeError: ")
