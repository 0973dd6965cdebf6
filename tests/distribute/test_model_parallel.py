"""`ModelParallel`: steps with weights in parts find what one device finds."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import distribution, layers
from anabranch.distribute import ModelParallel
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap, TensorLayout
from anabranch.engine.graph.state.sharded import grouped
from anabranch.framework.data.adapters import batch_of
from anabranch.framework.replicas.traced import placeholders
from anabranch.layers.core.cut_weights import Cut, cut_weights

RNG = np.random.default_rng(0)
X, IDS, Y = RNG.normal(size=(7, 3, 8)), RNG.integers(0, 12, size=(7, 3)), RNG.normal(size=(7, 4))


@pytest.fixture(autouse=True)
def doubles(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()
    distribution.set_distribution(None)


def strategy_of(shape: tuple[int, ...], layouts: dict[str, Any], axes: Any = ("batch", "model")) -> ModelParallel:
    names = [f"cpu:{number}" for number in range(int(np.prod(shape)))]
    found = LayoutMap(DeviceMesh(shape, axes, names))
    for key, layout in layouts.items():
        found[key] = layout
    return ModelParallel(layout_map=found)


# --- models ---------------------------------------------------------------------------------------------------------


def dense() -> Any:
    names = [layers.Dense(6, "relu", name="up"), layers.Dense(8, name="down"), layers.Dense(4, "softmax", name="out")]
    return ab.Sequential([ab.Input((3, 8)), layers.Flatten(), *names])


def attention() -> Any:
    x = ab.Input((3, 8))
    y = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4, name="mha")(x, x)]))
    return ab.Model(x, layers.Dense(4, name="up")(layers.Flatten()(y)))


def table() -> Any:
    rows = layers.Embedding(12, 4, name="table")
    return ab.Sequential([ab.Input((3,), dtype="int32"), rows, layers.Flatten(), layers.Dense(4)])


DENSE = {"up/kernel": (None, "model"), "up/bias": ("model",), "(down|out)/kernel": ("model", None)}
HEADS = {
    "(query|key|value).kernel": (None, "model", None),
    "(query|key|value).bias": ("model", None),
    "attention_output.kernel": ("model", None, None),
    "up.kernel": (None, "model"),
}


def trained(make: Any, x: Any, strategy: Any, batches: Any = (5,), optimizer: str = "adam") -> Any:
    ab.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        model.compile(optimizer, "mse", metrics=["mae"])
    found = [model.train_on_batch(x[:rows], Y[:rows]) for rows in batches]
    return found, model.get_weights(), [variable.numpy() for variable in grouped(model.optimizer.variables)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    for one, other in zip(ab.tree.flatten(found), ab.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


CASES = [
    ("attention", attention, X, HEADS, (1, 2)),
    ("table by rows, rows spread", table, IDS, {"table": ("model", None)}, (2, 2)),
    ("dense", dense, X, DENSE, (1, 2)),
    ("dense, rows spread", dense, X, DENSE, (2, 2)),
    ("attention, rows spread", attention, X, HEADS, (2, 2)),
    ("table by rows", table, IDS, {"table": ("model", None)}, (1, 2)),
    ("table by columns", table, IDS, {"table": (None, "model")}, (1, 4)),
]


@pytest.mark.parametrize(
    ("make", "x", "layouts", "shape"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (n > 1)) for n, (name, *case) in enumerate(CASES)],
)
def test_training_finds_what_one_device_finds(make: Any, x: Any, layouts: Any, shape: Any) -> None:
    expected = trained(make, x, None)
    ab.config.set_devices(cpu=int(np.prod(shape)))
    assert_same(trained(make, x, strategy_of(shape, layouts)), expected)


@pytest.mark.parametrize("optimizer", ["lamb", "adafactor", "muon"])
def test_optimizers_that_see_whole_weights(optimizer: str) -> None:
    expected = trained(dense, X, None, batches=(5, 4), optimizer=optimizer)
    ab.config.set_devices(cpu=4)
    assert_same(trained(dense, X, strategy_of((2, 2), DENSE), batches=(5, 4), optimizer=optimizer), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "x", "layouts", "shape"), [pytest.param(*c, id=n) for n, *c in CASES])
def test_single_precision(make: Any, x: Any, layouts: Any, shape: Any) -> None:
    ab.config.set_floatx("float32")
    x = x.astype("float32") if x.dtype.kind == "f" else x
    expected = trained(make, x, None, optimizer="sgd")[:2]  # Adam would scale up what should be a gradient of 0
    ab.config.set_devices(cpu=int(np.prod(shape)))
    assert_same(trained(make, x, strategy_of(shape, layouts), optimizer="sgd")[:2], expected, 1e-5)


@pytest.mark.slow
def test_batches_of_many_sizes() -> None:
    """After a few shapes of batches one program serves all; of one row a replica has none."""
    sizes = (7, 6, 5, 4, 3, 2, 1)
    expected = trained(dense, X, None, sizes)
    ab.config.set_devices(cpu=4)
    assert_same(trained(dense, X, strategy_of((2, 2), DENSE), sizes), expected)


def test_fit_evaluate_predict_save_and_load(tmp_path: Path) -> None:
    """On a mesh of one axis, under the strategy of the process; the file opens without a strategy."""

    def run(model: Any) -> Any:
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        return history, model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0), model.get_weights()

    def made() -> Any:
        ab.utils.set_random_seed(3)
        model = ab.Sequential([layers.Flatten(), layers.Dense(4, name="up")])  # weights at the first step
        model.compile(ab.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    expected = run(made())
    ab.config.set_devices(cpu=2)
    strategy = strategy_of((2,), {"up/kernel": (None, "model")}, ["model"])
    distribution.set_distribution(strategy)
    model = made()
    assert model.distribute_strategy is strategy
    assert_same(run(model), expected)
    counted = strategy.statistics()
    assert (counted["parts"], counted["replicas"]) == ({model.layers[1].kernel.path: ["cpu:0", "cpu:1"]}, 1)
    assert all(not variable.device for variable in model.variables)  # the model may run elsewhere
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    distribution.set_distribution(None)
    alone = ab.models.load_model(tmp_path / "model.keras")
    assert (again.distribute_strategy, alone.distribute_strategy) == (strategy, None)
    assert_same(alone.get_weights(), model.get_weights())
    expected = alone.train_on_batch(X, Y), alone.get_weights()
    assert_same((model.train_on_batch(X, Y), model.get_weights()), expected)
    assert_same((again.train_on_batch(X, Y), again.get_weights()), expected)


def test_products_of_parts_are_on_their_devices() -> None:
    """Forward and backward, with all replicas."""
    ab.config.set_devices(cpu=4)
    for shape in [(1, 2), (2, 2)]:
        with strategy_of(shape, DENSE).scope():
            model = dense()
            model.compile("sgd", "mse")
        batch = batch_of(X, Y)
        with ab.Graph().as_default() as graph:
            model._build_step("train", batch.layout, placeholders(batch))
        products = Counter(str(each.device) for each in graph.operations if type(each.op).__name__ == "MatMul")
        assert products == {f"/device:CPU:{number}": 9 for number in range(shape[0] * shape[1])}


def test_devices_hold_their_parts_alone() -> None:
    """Devices hold parts of weights and of what the optimizer keeps; no step makes a whole of them."""
    ab.config.set_devices(cpu=2)
    strategy = strategy_of((1, 2), DENSE)
    with strategy.scope():
        model = dense()
        model.compile("adam", "mse")
    assert [variable.shape for variable in model.layers[1].weights] == [(24, 3), (24, 3), (3,), (3,)]
    batch = batch_of(X, Y)
    with ab.Graph().as_default() as graph:
        model._build_step("train", batch.layout, placeholders(batch))
    first, second = strategy.statistics()["bytes"].values()
    numbers = (24 * 6 + 6 + 6 * 8 + 8 * 4) // 2
    assert second == 3 * 8 * numbers  # the weights, and two for each of these
    assert first - second < 8 * (3 * (8 + 4) + 10)  # biases, metrics, counts
    assert not [each for each in graph.operations if any(o.shape in ((24, 6), (6, 8)) for o in each.outputs)]
    writes = Counter(str(each.device) for each in graph.operations if type(each.op).__name__ == "Assign")
    assert writes["/device:CPU:1"] == 3 * 4


def test_parts_of_other_numbers_read_the_same_files(tmp_path: Path) -> None:
    """A backup of two parts, with the optimizer's state, is gone on from with four, and by one device alone."""
    layouts = {"up/kernel": ("model", "more"), "down/kernel": ("model", None)}

    def run(epochs: int, shape: Any) -> Any:
        ab.config.set_devices(cpu=4)
        strategy = None if shape is None else strategy_of((1, *shape), layouts, ("batch", "model", "more"))
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            ab.utils.set_random_seed(3)
            model = ab.Sequential([ab.Input((8,)), layers.Dense(8, "tanh", name="up"), layers.Dense(4, name="down")])
            model.compile("adam", "mse")
        assert len(model.layers[0].weights) == 1 + math.prod(shape or [1])
        backup = ab.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        model.fit(X[:, 0], Y, batch_size=7, epochs=epochs, callbacks=[backup], verbose=0)
        return model.get_weights()

    run(1, (2, 1))
    found = run(2, (2, 2))
    (tmp_path / "backup").rename(tmp_path / "other")
    assert_same(found, run(2, None))


# --- layers ---------------------------------------------------------------------------------------------------------


def assert_layer_same(
    layer: Any, inputs: Any, weight: Any, axes: tuple[int, ...], shape: tuple[int, ...], reverse: bool = False
) -> None:
    """Check that values and gradients of a layer with a weight in parts are those of the whole one."""

    def found() -> Any:
        with ab.GradientTape() as tape:
            x = ab.ops.convert_to_tensor(inputs)
            tape.watch(x)
            outputs = layer(layer(x), reverse=True) if reverse else layer(x)
            loss = ab.ops.sum(ab.ops.sin(outputs))
        sources = [*layer.trainable_variables, *([x] if x.dtype.kind == "f" else [])]
        return loss, [ab.ops.convert_to_tensor(each) for each in tape.gradient(loss, sources)]

    cut = Cut(axes, np.full(shape, "cpu:0"))
    expected = found()
    with cut_weights(lambda variable: cut if variable is weight else None):
        assert_same(found(), expected)


def cuts(rank: int) -> list[tuple[int, ...]]:
    return [axes for count in range(1, rank + 1) for axes in itertools.combinations(range(rank), count)]


def test_dense_in_parts() -> None:
    for axes, use_bias in itertools.product(cuts(2), (True, False)):
        layer = layers.Dense(4, "tanh", use_bias)
        layer.build((None, 8))
        assert_layer_same(layer, X, layer.kernel, axes, (2, 4)[: len(axes)])
    adapted: Any = layers.Dense(4, "tanh")
    adapted.build((None, 8))
    adapted.enable_lora(2)
    adapted.lora_kernel_b.assign(RNG.normal(size=(2, 4)))
    assert_layer_same(adapted, X, adapted._kernel, (1,), (2,))


@pytest.mark.parametrize(
    ("equation", "sizes", "bias"),
    [
        ("abc,cde->abde", (None, 2, 4), "de"),
        ("abc,cde->abed", (None, 4, 2), "d"),
        ("abc,bcd->abd", (3, 4), "d"),  # the middle axis is in all three
        ("...c,cd->...d", (4,), None),
        ("ab...,bc->ac...", (4,), "c"),
    ],
)
def test_einsum_dense_in_parts(equation: str, sizes: Any, bias: Any) -> None:
    x = X.repeat(2, axis=1)[:, :4]
    layer = layers.EinsumDense(equation, tuple([4 if size == 3 else size for size in sizes]), bias_axes=bias)
    layer(x)
    for variable in layer.variables:
        variable.assign(RNG.normal(size=variable.shape))
    for axes in cuts(len(layer.kernel.shape))[:4]:
        assert_layer_same(layer, x, layer.kernel, axes, (2,) * len(axes))


def test_embedding_in_parts() -> None:
    """Gradients are some rows, as those of a whole table; so are errors for numbers that no part has."""
    layer = layers.Embedding(12, 4)
    layer.build()
    for axes in cuts(2):
        assert_layer_same(layer, IDS, layer.embeddings, axes, (2, 2)[: len(axes)])
        assert_layer_same(layer, IDS.astype("uint8"), layer.embeddings, axes, (4, 2)[: len(axes)])
        assert_layer_same(layer, IDS[:0], layer.embeddings, axes, (2, 2)[: len(axes)])
        assert_layer_same(layer, -1 - IDS, layer.embeddings, axes, (2, 2)[: len(axes)])
    cut = Cut((0,), np.full(3, "cpu:0"))
    with cut_weights(lambda _: cut), ab.GradientTape() as tape:
        loss = ab.ops.sum(layer(np.array([1, 1, 11])))
    gradient = tape.gradient(loss, layer.embeddings)
    assert isinstance(gradient, ab.IndexedSlices)
    assert gradient.indices.numpy().tolist() == [1, 1, 11]
    for number in (12, 100, -13, -24):
        with cut_weights(lambda _: cut), pytest.raises(IndexError, match="out of bounds"):
            layer(np.array([0, number])).numpy()


@pytest.mark.parametrize("tie_weights", [True, False])
def test_embedding_that_goes_back_in_parts(tie_weights: bool) -> None:
    """The way back is a product with the table, transposed, or with a kernel of its own."""
    layer = layers.ReversibleEmbedding(12, 8, tie_weights, logit_soft_cap=2.0)
    layer.build()
    for axes in cuts(2):
        for weight in layer.weights:
            assert_layer_same(layer, IDS, weight, axes, (4, 2)[: len(axes)], reverse=True)


# --- layouts --------------------------------------------------------------------------------------------------------


def test_arguments_are_those_of_keras() -> None:
    parameters = inspect.signature(ModelParallel).parameters.values()
    names = [each.name for each in parameters]
    # Keras takes `device_mesh` by `**kwargs`; the last is our own.
    assert names == ["layout_map", "batch_dim_name", "auto_shard_dataset", "device_mesh", "expert_axis"]
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters)
    assert distribution.ModelParallel is ModelParallel
    with pytest.raises(ValueError, match=r"must be an ab\.distribution\.LayoutMap; got None"):
        ModelParallel()
    with pytest.raises(ValueError, match="layout_map has no mesh"):
        ModelParallel(layout_map=LayoutMap(None))
    mesh = DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    with pytest.raises(ValueError, match=r"'rows' is no axis of the mesh, which has \['batch', 'model'\]"):
        ModelParallel(layout_map=LayoutMap(mesh), batch_dim_name="rows")
    assert ModelParallel(device_mesh=mesh, layout_map=LayoutMap(mesh)).device_mesh is mesh
    with pytest.raises(ValueError, match="is not the mesh of layout_map"):
        ModelParallel(device_mesh=DeviceMesh((1,), ("model",), ["cpu:0"]), layout_map=LayoutMap(mesh))


def test_parts_lie_at_their_places_in_the_mesh() -> None:
    layouts = {"columns": (None, "model"), "both": ("more", "model"), "turned": ("model", "more"), "rows": ("batch",)}
    strategy = strategy_of((2, 2, 3), layouts, ("batch", "more", "model"))

    def parts(name: str, shape: tuple[int, ...], replica: int) -> Any:
        weight = ab.Variable(np.zeros(shape))
        weight.path = f"net/{name}"
        found = strategy.parts_of(weight, replica)
        return None if found is None else (found[0], np.vectorize(lambda each: int(each[4:]))(found[1]).tolist())

    assert parts("columns", (5, 6), 0) == ((1,), [0, 1, 2])
    assert parts("columns", (5, 6), 1) == ((1,), [6, 7, 8])
    assert parts("both", (4, 6), 1) == ((0, 1), [[6, 7, 8], [9, 10, 11]])
    assert parts("turned", (6, 4), 0) == ((0, 1), [[0, 3], [1, 4], [2, 5]])
    assert parts("rows", (4,), 0) is None  # along the axis of rows weights are whole
    assert parts("other", (5, 5), 0) is None
    assert (strategy.spreads_rows, strategy.replicas) == (True, 2)
    assert strategy.get_data_layout((None, 3)).axes == ("batch", None)
    assert strategy.get_tensor_layout("columns") is strategy.layout_map["columns"]
    single = strategy_of((2,), {"kernel": (None, "model")}, ["model"])
    assert (single.spreads_rows, single.get_data_layout((None, 3)).axes) == (False, (None, None))
    assert strategy_of((2,), {}, ["batch"]).replicas == 2


def refused(layouts: dict[str, Any], made: list[Any], shape: Any = (None, 3, 8)) -> None:
    with strategy_of((1, 2), layouts).scope():
        model = ab.Sequential(made)
        model.build(shape)
        model.compile("sgd", "mse")


def test_layouts_that_do_not_fit_are_refused() -> None:
    mesh = DeviceMesh((2,), ("model",), ["cpu:0", "cpu:1"])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"up/kernel": (None, "model")}, "which do not divide 5"),
        ({"up/kernel": ("model",)}, "is for 1 axes"),
        ({"up/kernel": ("model", "model")}, "names an axis of the mesh twice"),
        ({"up/bias": ("model",)}, "which do not divide 5"),
        ({"up": ("model", None), "kernel": (None, "model")}, "matches several keys"),
        ({"up/kernel": TensorLayout(("model", None), mesh)}, "a mesh of its own"),
    ]
    for layouts, message in cases:
        with pytest.raises(ValueError, match=message):
            refused(layouts, [layers.Dense(5, name="up")])
    with pytest.raises(ValueError, match=r"names \['rows'\]; the mesh has \['batch', 'model'\]"):
        strategy_of((1, 2), {"kernel": ("rows", None)})
    wrong = {"up/kernel": ("model", None), "up/bias": ("model",)}
    with pytest.raises(ValueError, match=r"bias .*up/bias' has layout \('model',\), but the outputs .* as \(None,\)"):
        refused(wrong, [layers.Dense(4, name="up")])


def test_layouts_that_cut_nothing_are_warned_of() -> None:
    ab.config.set_devices(cpu=2)
    layouts = {"uo/kernel": (None, "model"), "up/kernel": ("batch", "model"), "up/output": ("batch", None)}
    strategy = strategy_of((2, 1), layouts)
    with strategy.scope():
        model = ab.Sequential([layers.Flatten(), layers.Dense(4, name="up")])
        model.compile("sgd", "mse")
    with (
        pytest.warns(UserWarning, match=r"keys of the layout map match: \['uo/kernel'\]\. They .* \['.*up/kernel', "),
        pytest.warns(UserWarning, match=r"axis 'batch' of the mesh, and weights .*the layouts of \['up/kernel'\] are"),
    ):
        model.train_on_batch(X, Y)
    model.train_on_batch(X[:4], Y[:4])  # once is enough


def test_weights_that_can_not_be_cut_are_refused() -> None:
    class Own(layers.Dense):
        def call(self, inputs: Any) -> Any:
            return ab.ops.matmul(inputs, self.kernel)

    rows = {"kernel": (None, "model")}
    with pytest.raises(ValueError, match=r"layer 'conv' \(Conv1D\) has layout .* but it can't be cut: only those"):
        refused({"conv/kernel": (None, None, "model")}, [layers.Conv1D(4, 1, name="conv")])
    with pytest.raises(ValueError, match=r"layer 'own' \(Own\)"):
        refused(rows, [Own(4, name="own")])
    quantised = layers.Dense(4)
    quantised.build((None, 8))
    quantised.quantize("int8")
    with pytest.raises(ValueError, match=r"quantised \(int8\)"):
        refused(rows, [quantised])
    refused({"conv/kernel": (None, None, "batch")}, [layers.Conv1D(4, 1, name="conv")])  # of one device: whole
    with strategy_of((1, 2), {"gamma": ("model",)}).scope():
        model = ab.Sequential([layers.LayerNormalization()])
        model.compile("sgd", "mse")  # has no weights yet
    with pytest.raises(ValueError, match=r"\(LayerNormalization\) has layout \('model',\)"):
        model.train_on_batch(X, X)


def test_adapters_freeze_the_weight_of_which_each_device_has_a_part(tmp_path: Path) -> None:
    ab.config.set_devices(cpu=2)

    def adapted(strategy: Any) -> Any:
        ab.utils.set_random_seed(3)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            up = layers.Dense(4, name="up")
            model = ab.Sequential([ab.Input((3, 8)), layers.Flatten(), up])
            up.enable_lora(2)
            model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False)
        return model

    alone, found = adapted(None), adapted(strategy_of((2,), {"up/kernel": (None, "model")}, ("model",)))
    for one, other in zip(alone.get_weights(), found.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, 1e-10, 1e-12)
    assert [variable.path for variable in found.non_trainable_variables] == ["up/kernel/part_0", "up/kernel/part_1"]
    found.save(tmp_path / "found.keras")
    again: Any = ab.saving.load_model(tmp_path / "found.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), alone.predict(X, verbose=0), 1e-6)
    found.layers[-1].merge_lora()
    assert len(found.trainable_variables) == 3


# --- quantised weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_weights_in_parts_are_not_quantised(mode: str, tmp_path: Path) -> None:
    """The error comes before anything has changed, and names the layers; it named the shape of a scale."""
    ab.config.set_devices(cpu=2)
    strategy = strategy_of((2,), {"down/kernel": (None, "model")}, ("model",))
    with strategy.scope():
        model = dense()
        model.compile("sgd", "mse")
    expected = model.predict(X, verbose=0)
    message = (
        r"quantize: the weights of layers \['down'\] are in parts .* load the file outside of the strategy's scope"
    )
    for call in (model.quantize, model.get_layer("down").quantize):
        with pytest.raises(ValueError, match=message):
            call(mode)
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
    model.save(tmp_path / "whole.keras")
    assert model.quantize(mode, filters="up|out")["up"] == mode
    assert model.predict(X, verbose=0).shape == expected.shape
    whole = ab.models.load_model(tmp_path / "whole.keras")
    whole.quantize(mode)
    whole.save(tmp_path / "quantised.keras")
    message = rf"'down/kernel' of layer 'down' .* can't be cut: it is quantised \({mode}\)"
    with strategy.scope(), pytest.raises(ValueError, match=message):
        ab.models.load_model(tmp_path / "quantised.keras")
