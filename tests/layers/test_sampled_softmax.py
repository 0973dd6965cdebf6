"""`SampledSoftmax`: its losses against the functions', training, tied weights, masks, saving."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph import flatten
from anabranch.engine.passes.framework.prune import needed_operations

CLASSES, DIM = 13, 4


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def labels(*shape: int) -> Any:
    return np.random.default_rng(1).integers(0, CLASSES, shape)


def made(**options: Any) -> Any:
    given: dict[str, Any] = {"num_classes": CLASSES, "num_sampled": 5}
    layer = layers.SampledSoftmax(**(given | options))
    layer.build((None, DIM))
    layer.set_weights([data(*weight.shape, seed=7 + i) for i, weight in enumerate(layer.weights)])
    return layer


def logits_of(layer: Any, x: Any) -> Any:
    """In NumPy, from the layer's shards."""
    weights, biases = np.empty((CLASSES, DIM)), np.empty(CLASSES)
    shards = len(layer.biases)
    places = [np.arange(CLASSES)[k::shards] for k in range(shards)]
    if getattr(layer.embedding, "partition", "mod") == "div":
        places = np.array_split(np.arange(CLASSES), shards)
    for place, table, bias in zip(places, layer.tables, layer.biases, strict=True):
        weights[place], biases[place] = table.numpy(), bias.numpy()
    return x @ weights.T + biases


def exact_losses(layer: Any, x: Any, y: Any) -> Any:
    logits = logits_of(layer, x)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[..., None], -1)[..., 0]


@pytest.mark.parametrize("partition", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 2, 2), (0,)])
def test_logits_and_the_exact_loss(shape: tuple[int, ...], count: int, partition: str) -> None:
    layer, x, y = made(num_shards=count, partition=partition), data(*shape, DIM), labels(*shape)
    np.testing.assert_allclose(layer(x), logits_of(layer, x), rtol=1e-4, atol=1e-5)
    assert layer.losses == []
    assert layer(x, y).shape == (*shape, CLASSES)
    if x.size:
        np.testing.assert_allclose(layer.losses, [exact_losses(layer, x, y).mean()], rtol=1e-5)


def test_the_largest() -> None:
    plain, best = made(num_shards=3), made(num_shards=3, top_k=4)
    x = data(2, 3, DIM)
    values, classes = best(x)
    assert (values.shape, classes.shape, classes.dtype) == ((2, 3, 4), (2, 3, 4), "int32")
    logits = plain(x)
    np.testing.assert_array_equal(classes, np.argsort(-logits, axis=-1)[..., :4])
    np.testing.assert_array_equal(values, np.take_along_axis(logits, classes, -1))


def test_the_loss_of_training_is_sampled() -> None:
    layer, x, y = made(seed=3), data(6, DIM), labels(6)
    layer(x, y, training=True)
    (sampled,) = layer.losses
    (weights,), (biases,) = layer.tables, layer.biases
    expected = ab.nn.sampled_softmax_loss(
        weights.numpy(), biases.numpy(), y[:, None], x, 5, CLASSES, seed=ab.random.SeedGenerator(3)
    )
    np.testing.assert_allclose(sampled, ab.Session().run(ops.mean(expected)), rtol=1e-5)
    layer(x, y, training=True)
    assert layer.losses[0] != sampled  # other classes


@pytest.mark.parametrize("training", [False, True])
def test_a_training_step_computes_no_logits_of_all_classes(training: bool) -> None:
    layer = made(num_shards=2)
    with ab.Graph().as_default():
        x, y = ab.placeholder((6, DIM), "float32"), ab.placeholder((6,), "int32")
        layer(x, y, training=training)
        gradients = ab.gradients(layer.losses[0], layer.trainable_weights)
        computed = {out.shape for op in needed_operations(x.graph, flatten(gradients)) for out in op.outputs}
    assert [isinstance(gradient, ab.IndexedSlices) for gradient in gradients] == [training] * 4
    assert ((6, 7) in computed) == (not training)  # a shard's logits
    assert ((6, 5) in computed) == training
    assert (6, 13) not in computed


@pytest.mark.parametrize("training", [False, True])
def test_masked_positions_do_not_count(training: bool) -> None:
    x, y = data(2, 3, DIM), labels(2, 3)
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    layer, other = made(seed=2), made(seed=2)
    layer(x, y, mask=mask, training=training)
    other(x[mask], y[mask], training=training)
    np.testing.assert_allclose(layer.losses, other.losses, rtol=1e-5)
    layer(x, y, mask=mask & False, training=training)
    assert layer.losses == [0.0]


def test_masks_come_from_embeddings() -> None:
    ids = ab.Input((None,), dtype="int32")
    words = layers.ShardedEmbedding(CLASSES, DIM, 2, mask_zero=True)(ids)
    model = ab.Model(ids, layers.SampledSoftmax(CLASSES, 5)(words, ids))
    padded, plain = np.array([[1, 2, 0, 0]]), np.array([[1, 2]])
    losses = [model(each) is not None and model.losses[0] for each in (padded, plain)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
def test_tied_weights(sharded: bool, tmp_path: Any) -> None:
    words = layers.ShardedEmbedding(CLASSES, DIM, 2, "div") if sharded else layers.Embedding(CLASSES, DIM)
    output = layers.SampledSoftmax(CLASSES, 5, embedding=words)
    ids, y = ab.Input((None,), dtype="int32"), ab.Input((None,), dtype="int32")
    model = ab.Model([ids, y], output(words(ids), y))
    tables = words.tables if isinstance(words, layers.ShardedEmbedding) else [words.embeddings]
    assert [id(each) for each in output.tables] == [id(each) for each in tables]
    assert len(model.weights) == 2 * len(tables)
    x = data(3, DIM)
    np.testing.assert_allclose(output(x), logits_of(output, x), rtol=1e-5, atol=1e-6)
    given = [labels(4, 3), labels(4, 3)]
    model.compile(ab.optim.Adagrad(0.5))
    before = model.evaluate(given, verbose=0)
    model.fit(given, epochs=3, verbose=0)
    assert model.evaluate(given, verbose=0) < before
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(given, verbose=0), model.predict(given, verbose=0))
    assert loaded.layers[-1].embedding is loaded.get_layer(words.name)
    assert len(loaded.weights) == 2 * len(tables)


def test_it_trains() -> None:
    """The next word is the one before times three."""
    x, y = ab.Input((), dtype="int32"), ab.Input((), dtype="int32")
    hidden = layers.Dense(32)(layers.ShardedEmbedding(500, 32, 3)(x))
    model = ab.Model([x, y], layers.SampledSoftmax(500, 50, num_shards=2, top_k=1, seed=0)(hidden, y))
    ab.utils.set_random_seed(0)
    model.compile(ab.optim.Adagrad(0.5))
    given = np.arange(500)
    wanted = given * 3 % 500
    model.fit([given, wanted], epochs=40, batch_size=50, verbose=0)
    _, found = model.predict([given, wanted], verbose=0)
    assert np.mean(found[:, 0] == wanted) > 0.9
    assert model.evaluate([given, wanted], verbose=0) < 2.0  # nats; 6.2 is guessing


def test_saved_and_loaded(tmp_path: Any) -> None:
    layer = layers.SampledSoftmax(
        CLASSES, 5, 2, "div", top_k=3, kernel_initializer="normal", bias_initializer="ones", seed=4
    )
    inputs = ab.Input((DIM,))
    model = ab.Model(inputs, layer(inputs))
    x = data(5, DIM)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    for found, expected in zip(loaded.predict(x, verbose=0), model.predict(x, verbose=0), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert loaded.layers[-1].get_config() == layer.get_config()
    assert [weight.shape for weight in loaded.weights] == [weight.shape for weight in model.weights]


def test_half_precision() -> None:
    layer = layers.SampledSoftmax(CLASSES, 5, dtype="mixed_float16")
    assert layer(data(2, DIM), labels(2), training=True).dtype == "float16"
    assert layer.losses[0].dtype == "float32"
    assert np.isfinite(layer.losses[0])
    assert {weight.dtype.name for weight in layer.weights} == {"float32"}


def test_shards_on_devices() -> None:
    """The exact loss and its gradients, whether logits are made on one device or on two."""
    x, y, found = data(6, DIM), labels(6), list[Any]()
    ab.config.set_devices(sim=2)
    try:
        for devices in (None, ["sim:0", "sim:1"]):
            layer = made(num_shards=2, devices=devices)
            with ab.Graph().as_default() as graph:
                given = ab.placeholder((6, DIM), "float32")
                logits = layer(given, y)
                loss = layer.losses[0]
                found.append(ab.Session().run([loss, logits, *ab.gradients(loss, layer.weights)], {given: x}))
                placed = {op.device for op in graph.operations if op.outputs and op.outputs[0].shape == (6, 7)}
        assert "/device:SIM:0" in placed
    finally:
        ab.config.set_devices()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_classes": 0}, ValueError, "num_classes must be a positive integer, got num_classes=0"),
        ({"num_sampled": -1}, ValueError, "num_sampled must be a positive integer, got num_sampled=-1"),
        ({"num_sampled": 14}, ValueError, "num_sampled must be at most num_classes=13, got 14"),
        ({"top_k": 14}, ValueError, "top_k must be at most num_classes=13, got 14"),
        ({"top_k": 0}, ValueError, "top_k must be a positive integer, got top_k=0"),
        ({"num_shards": 14}, ValueError, "num_shards must be at most input_dim=13"),
        ({"partition": "x"}, ValueError, "partition must be 'mod' or 'div', got 'x'"),
        ({"embedding": 3}, TypeError, "embedding must be an Embedding or a ShardedEmbedding, got 3"),
        ({"embedding": layers.Embedding(12, 2)}, ValueError, "must have num_classes=13 rows, got input_dim=12"),
    ],
)
def test_wrong_arguments(arguments: Any, error: Any, message: str) -> None:
    given: dict[str, Any] = {"num_classes": CLASSES, "num_sampled": 5}
    with pytest.raises(error, match=message):
        layers.SampledSoftmax(**(given | arguments))


def test_wrong_shapes() -> None:
    layer = layers.SampledSoftmax(CLASSES, 5, name="words")
    with pytest.raises(
        ValueError, match=r"'words' .* labels must have the inputs' shape without the last axis, 2 axes"
    ):
        layer(data(2, 3, DIM), labels(2))
    with pytest.raises(ValueError, match=r"'words' .* mask must have the inputs' shape without the last axis, 2 axes"):
        layer(data(2, 3, DIM), labels(2, 3), mask=np.ones(2, bool))
    with pytest.raises(ValueError, match="needs a known size of its input's last axis"):
        layers.SampledSoftmax(CLASSES, 5).build((None, None))
    tied = layers.SampledSoftmax(CLASSES, 5, embedding=layers.Embedding(CLASSES, 3), name="tied")
    with pytest.raises(ValueError, match=r"'tied' .* 4, must be the embedding's output_dim=3. Put a Dense\(3\)"):
        tied(data(2, DIM))
