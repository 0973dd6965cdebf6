"""Attention: masks from everywhere, unknown sizes, dropout, gradients, paths, errors; and `EinsumDense`."""

from typing import Any, cast

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph.graph import get_default_graph
from anabranch.framework.saving.state_tree import collect


def data(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def softmax(x: Any) -> Any:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def reference(layer: Any, query: Any, value: Any, mask: Any = True) -> tuple[Any, Any]:
    """Outputs and scores of a `MultiHeadAttention` by the formula."""
    projected = [
        np.einsum("bti,ihd->bhtd", x, dense.kernel.numpy()) + dense.bias.numpy()[:, None]
        for x, dense in ((query, layer.query_dense), (value, layer.key_dense), (value, layer.value_dense))
    ]
    logits = np.einsum("bhtd,bhsd->bhts", projected[0], projected[1]) / np.sqrt(layer.key_dim)
    scores = softmax(np.where(mask, logits, -1e9)) * mask
    heads = np.einsum("bhts,bhsd->bthd", scores, projected[2])
    return np.einsum(
        "bthd,hdo->bto", heads, layer.output_dense.kernel.numpy()
    ) + layer.output_dense.bias.numpy(), scores


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (3, 4, 2)], ids=str)
def test_heads_are_the_formula(shape: Any) -> None:
    batch, targets, sources = shape
    layer = layers.MultiHeadAttention(2, 3, bias_initializer="random_normal")
    query, value = data(batch, targets, 5), data(batch, sources, 6)
    mask = np.random.default_rng(2).random((batch, targets, sources)) < 0.7
    outputs, scores = layer(query, value, attention_mask=mask, return_attention_scores=True)
    expected = reference(layer, query, value, mask[:, None])
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, expected[1], rtol=1e-4, atol=1e-5)


def test_unknown_sizes_and_none() -> None:
    layer = layers.MultiHeadAttention(2, 3)
    with ab.Graph().as_default():
        query = ab.placeholder((None, None, 5), "float32")
        outputs, scores = layer(query, query, use_causal_mask=True, return_attention_scores=True)
        plain = layer(query, query, use_causal_mask=True)
        assert outputs.shape == (None, None, 5)
        session = ab.Session(get_default_graph())
        for batch, steps in ((2, 4), (1, 1), (0, 3)):
            x = data(batch, steps, 5)
            found = session.run([outputs, scores, plain], {query: x})
            expected = reference(layer, x, x, np.tri(steps, dtype=bool))
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[2], found[0], rtol=1e-4, atol=1e-5)


def test_targets_see_nothing_later() -> None:
    x = data(1, 6, 4)
    changed = x.copy()
    changed[:, 4:] = 7.0
    for layer in (layers.MultiHeadAttention(2, 3), layers.GroupQueryAttention(3, 4, 2)):
        before, after = layer(x, x, use_causal_mask=True), layer(changed, changed, use_causal_mask=True)
        np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-5, atol=1e-6)
        assert not np.allclose(before[:, 4:], after[:, 4:])
    layer = layers.Attention()
    before, after = layer([x, x], use_causal_mask=True), layer([changed, changed], use_causal_mask=True)
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masks_come_with_the_inputs(dtype: str) -> None:
    """Also where the layer casts its inputs, which makes new tensors of them."""
    ids = np.array([[1, 2, 3, 0], [4, 0, 0, 0]])
    kept = ids != 0
    attention = layers.MultiHeadAttention(2, 3, dtype=dtype)
    embedding = layers.Embedding(6, 4, mask_zero=True)
    with ab.Graph().as_default():
        embedded = embedding(ab.constant(ids))
        outputs, scores = attention(embedded, embedded, return_attention_scores=True)
        explicit = attention(ab.ops.convert_to_tensor(embedding(ab.constant(ids)) * 1.0), embedding(ab.constant(ids)))
        assert outputs.annotations["mask"] is embedded.annotations["mask"]
        assert "mask" not in explicit.annotations
        found = ab.Session().run(scores)
    allowed = (kept[:, :, None] & kept[:, None, :])[:, None]
    np.testing.assert_array_equal(found > 0, np.broadcast_to(allowed, found.shape))
    np.testing.assert_allclose(found.sum(-1), np.broadcast_to(kept[:, None], found.shape[:-1]), atol=1e-3)


def test_masks_of_query_value_and_key_given_by_hand() -> None:
    layer = layers.MultiHeadAttention(1, 3)
    query, value = data(1, 2, 4), data(1, 3, 4)
    masks = {
        "query_mask": np.array([[True, False]]),
        "value_mask": np.array([[True, True, False]]),
        "key_mask": np.array([[False, True, True]]),
    }
    _, scores = layer(query, value, value, **masks, return_attention_scores=True)
    np.testing.assert_allclose(scores, [[[[0, 1, 0], [0, 0, 0]]]])


def test_attention_masks_travel_in_lists() -> None:
    embedding = layers.Embedding(6, 4, mask_zero=True)
    with ab.Graph().as_default():
        query = embedding(ab.constant(np.array([[1, 0]])))
        value = embedding(ab.constant(np.array([[2, 3, 0]])))
        outputs = layers.Attention()([query, value])
        assert outputs.annotations["mask"] is query.annotations["mask"]
        _, scores = layers.AdditiveAttention()([query, value], return_attention_scores=True)
        half = layers.Attention()([query, ab.constant(data(1, 3, 4))])
        values = ab.Session().run([outputs, scores, half])
    np.testing.assert_array_equal(values[0][0, 1], np.zeros(4))
    np.testing.assert_allclose(values[1][..., 2], np.zeros((1, 2)))
    np.testing.assert_array_equal(values[2][0, 1], np.zeros(4))
    assert np.all(values[2][0, 0] != 0)


def test_rows_without_a_source_stay_finite() -> None:
    x = data(1, 3, 4)
    nothing = np.zeros((1, 3, 3), bool)
    layer = layers.MultiHeadAttention(2, 3)
    assert np.all(np.isfinite(layer(x, x, attention_mask=nothing)))
    outputs, scores = layer(x, x, attention_mask=nothing, return_attention_scores=True)
    np.testing.assert_array_equal(scores, np.zeros((1, 2, 3, 3)))
    np.testing.assert_allclose(outputs, np.zeros((1, 3, 4)), atol=1e-6)
    assert np.all(np.isfinite(layers.Attention()([x, x], mask=[None, np.zeros((1, 3), bool)])))


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: layers.MultiHeadAttention(2, 3, dropout=rate, seed=1),
        lambda rate: layers.GroupQueryAttention(3, 4, 2, dropout=rate, seed=1),
    ],
)
def test_dropout_of_the_weights(make: Any) -> None:
    x = data(2, 8, 4)
    layer = make(0.5)
    outputs, scores = layer(x, x, training=True, return_attention_scores=True)
    again, _ = layer(x, x, training=True, return_attention_scores=True)
    kept, same = layer(x, x, return_attention_scores=True)
    assert not np.allclose(outputs, again)
    assert not np.allclose(outputs, kept)
    np.testing.assert_allclose(scores, same, rtol=1e-6)
    np.testing.assert_allclose(scores.sum(-1), np.ones(scores.shape[:-1]), rtol=1e-5)
    twin = make(0.5)
    twin.build(x.shape, x.shape)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(x, x, training=True), outputs)


def test_attention_drops_weights_and_scales_the_others() -> None:
    layer = layers.Attention(dropout=0.5, seed=1)
    value = np.ones((1, 50, 1), "float32")
    _, scores = layer([np.zeros((1, 20, 1), "float32"), value], training=True, return_attention_scores=True)
    assert {round(float(v), 4) for v in np.unique(scores)} == {0.0, 0.04}


@pytest.mark.parametrize("axes", [1, 2, (1, 2), (-2,)], ids=str)
def test_gradients_over_axes(axes: Any) -> None:
    layer = layers.MultiHeadAttention(2, 3, attention_axes=axes, dtype="float64")
    x = data(2, 3, 2, 4).astype("float64")
    check_layer_gradients(layer, x, lambda value: layer(value, value), rtol=1e-5, atol=1e-8)


def test_attention_over_one_axis_leaves_the_others_apart() -> None:
    x = data(1, 3, 2, 4)
    layer = layers.MultiHeadAttention(2, 3, attention_axes=(1,))
    whole = layer(x, x)
    columns = layers.MultiHeadAttention(2, 3)
    columns.build((1, 3, 4), (1, 3, 4))
    columns.set_weights(layer.get_weights())
    for column in range(2):
        part = x[:, :, column]
        np.testing.assert_allclose(whole[:, :, column], columns(part, part), rtol=1e-4, atol=1e-5)


def test_grouped_heads_are_heads_with_repeated_keys() -> None:
    grouped, full = layers.GroupQueryAttention(3, 4, 2), layers.MultiHeadAttention(4, 3)
    x = data(2, 5, 6)
    grouped(x, x)
    full(x, x)
    weights = grouped.get_weights()
    repeated = [np.repeat(w, 2, axis=w.ndim - 2) if place in (2, 3, 4, 5) else w for place, w in enumerate(weights)]
    full.set_weights(repeated)
    np.testing.assert_allclose(grouped(x, x), full(x, x), rtol=1e-4, atol=1e-5)


def test_a_subclass_attends_in_its_own_way() -> None:
    class Uniform(layers.MultiHeadAttention):
        def _compute_attention(
            self,
            query: Any,
            key: Any,
            value: Any,
            attention_mask: Any = None,
            training: Any = None,
            return_attention_scores: bool = False,
        ) -> Any:
            assert attention_mask is not None
            return value, None

    layer = Uniform(2, 3)
    x = data(1, 4, 5)
    outputs = layer(x, x, use_causal_mask=True)
    heads = np.einsum("bti,ihd->bthd", x, layer.value_dense.kernel.numpy())
    expected = np.einsum("bthd,hdo->bto", heads, layer.output_dense.kernel.numpy())
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "sizes"), [(ab.layers.MultiHeadAttention, (2, 4)), (ab.layers.GroupQueryAttention, (4, 2, 2))]
)
def test_a_subclass_need_not_take_whether_scores_are_wanted(kind: Any, sizes: tuple[int, ...]) -> None:
    masks = []

    class Noting(kind):
        def _compute_attention(
            self, query: Any, key: Any, value: Any, attention_mask: Any = None, training: Any = None
        ) -> Any:
            masks.append(attention_mask)
            return super()._compute_attention(query, key, value, attention_mask, training)

    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    layer, plain = Noting(*sizes), kind(*sizes)
    for each in (layer, plain):
        each.build(x.shape, x.shape)
    plain.set_weights(layer.get_weights())
    np.testing.assert_array_equal(layer(x, x, use_causal_mask=True), plain(x, x, use_causal_mask=True))
    assert np.asarray(masks[0]).shape[-2:] == (5, 5)


@pytest.mark.parametrize("wants_scores", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_attention_of_projected_inputs_may_be_causal(explicit: bool, wants_scores: bool) -> None:
    layer = ab.layers.MultiHeadAttention(2, 4)
    layer.build((1, 5, 8), (1, 5, 8))
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, 5, 2, 4)).astype("float32")
    mask = np.ones((1, 5, 5), bool)
    mask[:, 3, 1] = not explicit
    options = {"return_attention_scores": wants_scores}
    given = ab.ops.convert_to_tensor(mask) if explicit else None
    found, _ = layer._compute_attention(query, key, value, given, use_causal_mask=True, **options)
    merged = ab.ops.convert_to_tensor(mask & np.tril(np.ones((5, 5), bool)))
    expected, _ = layer._compute_attention(query, key, value, merged, **options)
    np.testing.assert_array_equal(found, expected)


def test_names_paths_and_files() -> None:
    layer = layers.MultiHeadAttention(2, 3, use_gate=True, name="look")
    layer(data(1, 2, 4), data(1, 2, 4))
    assert [weight.path for weight in layer.weights[:6:2]] == [
        "look/query/kernel",
        "look/key/kernel",
        "look/gate/kernel",
    ]
    paths = {group.path for group in collect(layer) if group.arrays}
    assert paths == {"query_dense", "key_dense", "value_dense", "output_dense", "_gate_dense"}
    grouped = layers.GroupQueryAttention(3, 4, 2)
    grouped(data(1, 2, 4), data(1, 2, 4))
    assert grouped.name.startswith("grouped_query_attention")  # the name of Keras's class, under another public one
    assert ab.layers.serialize(grouped)["class_name"] == "GroupQueryAttention"
    paths = {group.path for group in collect(grouped) if group.arrays}
    assert paths == {"_query_dense", "_key_dense", "_value_dense", "_output_dense"}


def test_a_functional_model_with_masks(tmp_path: Any) -> None:
    ids = ab.Input((None,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(ids)
    x = x + layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    model = ab.Model(ids, layers.LayerNormalization()(x))
    batch = np.array([[3, 4, 0], [5, 0, 0]], "int32")
    expected = model.predict(batch, verbose=0)
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)
    shorter = model.predict(batch[:, :2], verbose=0)
    kept = batch[:, :2] != 0
    np.testing.assert_allclose(shorter[kept], expected[:, :2][kept], rtol=1e-4, atol=1e-5)


def test_regularizers_act_on_every_projection() -> None:
    layer = layers.MultiHeadAttention(2, 3, kernel_regularizer="l2", activity_regularizer="l1")
    layer(data(1, 2, 4), data(1, 2, 4))
    assert len(layer.losses) == 8


def test_flash_attention_is_a_way_of_computing() -> None:
    x = data(1, 3, 4)
    layer = layers.MultiHeadAttention(2, 3, flash_attention=True)
    plain = layers.MultiHeadAttention(2, 3)
    plain.build(x.shape, x.shape)
    layer(x, x)
    plain.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(x, x), plain(x, x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="flash_attention=True gives no attention scores"):
        layer(x, x, return_attention_scores=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.MultiHeadAttention(0, 3), "num_heads must be a positive integer, got num_heads=0"),
        (lambda: layers.MultiHeadAttention(2, 3, value_dim=-1), "value_dim must be a positive integer"),
        (
            lambda: layers.MultiHeadAttention(2, 3, sliding_window=0),
            "sliding_window must be None or a positive integer",
        ),
        (
            lambda: layers.MultiHeadAttention(2, 3, flash_attention=True, dropout=0.1),
            "takes no dropout, got dropout=0.1",
        ),
        (
            lambda: layers.MultiHeadAttention(2, 3, attention_axes=cast(Any, "1")),
            "attention_axes must be an int or a list of ints",
        ),
        (lambda: layers.GroupQueryAttention(3, 4, 3), "num_query_heads must be a multiple of num_key_value_heads"),
        (lambda: layers.GroupQueryAttention(3, 0, 3), "num_query_heads must be a positive integer"),
        (lambda: layers.Attention(score_mode="cosine"), "score_mode must be 'dot' or 'concat', got 'cosine'"),
        (lambda: layers.EinsumDense("ab->ac", 3), "equation 'ab->ac' can't be read"),
        (lambda: layers.EinsumDense("...ab,bc->ac", 3), "can't be read"),
        (lambda: layers.EinsumDense("...a...,ab->...b...", 3), "can't be read"),
    ],
)
def test_refused_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_refused_inputs() -> None:
    x = data(1, 2, 4)
    with pytest.raises(ValueError, match=r"'look' \(Attention\): inputs must be a list \[query, value\]"):
        layers.Attention(name="look")(x)
    with pytest.raises(ValueError, match=r"inputs must be a list .*, got a list of 4"):
        layers.Attention()([x, x, x, x])
    with pytest.raises(ValueError, match=r"mask must be a list .* of masks, got a list of 1"):
        layers.Attention()([x, x], mask=[np.ones((1, 2), bool)])
    with pytest.raises(
        ValueError, match=r"value and key must agree in all axes but the batch and the last.*\(1, 3, 4\)"
    ):
        layers.MultiHeadAttention(2, 3)(x, x, data(1, 3, 4))


# --- EinsumDense ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "output_shape", "bias_axes", "message"),
    [
        ("ab,bc->ac", 3, None, r"'dense' \(EinsumDense\): the inputs of equation 'ab,bc->ac' have 2 axes, got input"),
        ("abc,cd->abd", 3, None, r"output_shape=\(3,\) does not fit .* expected 2 sizes"),
        ("abc,cd->abd", (5, 3), None, "subscript 'b' of equation 'abc,cd->abd' has size 3 in the inputs, but 5"),
        ("abc,cd->abe", (None, 3), None, "subscript 'e' of the outputs .* is neither"),
        ("abc,ce->abc", (None, 4), None, "subscript 'e' of the kernel .* is neither"),
        ("abc,cd->abd", (None, 3), "c", "bias_axes='c' has 'c', which the outputs of equation"),
    ],
)
def test_equations_that_do_not_fit(equation: str, output_shape: Any, bias_axes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers.EinsumDense(equation, output_shape, bias_axes=bias_axes, name="dense")(data(2, 3, 4))


def test_kernels_start_with_the_variance_of_their_inputs_and_outputs() -> None:
    layer = layers.EinsumDense(
        "abc,cde->abde", (None, 20, 10), kernel_initializer=ab.initializers.GlorotUniform(seed=1)
    )
    layer.build((None, 3, 100))
    limit = np.sqrt(6 / (100 + 200))
    kernel = layer.kernel.numpy()
    assert kernel.shape == (100, 20, 10)
    assert 0.98 * limit < np.abs(kernel).max() <= limit
    backward = layers.EinsumDense("abc,dc->abd", (None, 50), kernel_initializer=ab.initializers.LecunUniform(seed=1))
    backward.build((None, 3, 200))
    assert np.abs(backward.kernel.numpy()).max() == pytest.approx(np.sqrt(3 / 200), rel=0.02)


def test_shapes_of_outputs() -> None:
    assert layers.EinsumDense("abc,cd->abd", (None, 5)).compute_output_shape((None, None, 4)) == (None, None, 5)
    assert layers.EinsumDense("...x,xy->...y", 5).compute_output_shape((None, 3, 4)) == (None, 3, 5)
    x = data(2, 4, 3, 5)
    layer = layers.EinsumDense("ab...,bc->ac...", 6, bias_axes="c")
    np.testing.assert_allclose(layer(x), np.einsum("abxy,bc->acxy", x, layer.kernel.numpy()), rtol=1e-4, atol=1e-5)
    assert layer.bias is not None
    assert layer.bias.shape == (6, 1, 1)


@pytest.mark.parametrize("layer", [layers.Attention, layers.AdditiveAttention])
def test_a_tensor_that_is_no_list_is_refused(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"inputs must be a list \[query, value\] or .*, got no list"):
        layer()(np.ones((1, 2, 2), "float32"))


def test_activity_regularizer_of_grouped_heads_is_of_the_output_too() -> None:
    layer = layers.GroupQueryAttention(2, 4, 2, kernel_initializer="ones", activity_regularizer=ab.regularizers.L2(0.1))
    x = np.linspace(-1, 1, 24, dtype="float32").reshape(2, 3, 4)
    layer(x, x)
    projections = [13.55009651184082, 6.775047302246094, 6.775047302246094, 856.8463134765625]
    expected = [*projections, 856.8463134765625]  # Keras 3.16 on JAX
    np.testing.assert_allclose(sorted(float(loss) for loss in layer.losses), sorted(expected), rtol=1e-6)
    assert layers.GroupQueryAttention.from_config(layer.get_config()).activity_regularizer is not None


class OwnProjections(layers.MultiHeadAttention):
    """Projects as subclasses do that build by themselves, and has no bias whatever was asked for."""

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        self._use_bias = False
        sizes = {"query": self._key_dim, "key": self._key_dim, "value": self._value_dim}
        for name, size in sizes.items():
            dense = layers.EinsumDense(
                "abc,cde->abde",
                output_shape=(None, self._num_heads, size),
                bias_axes="de" if self._use_bias else None,
                name=name,
                **self._get_common_kwargs_for_sublayer(),
            )
            dense.build(query_shape)
            setattr(self, f"_{name}_dense", dense)
        self._output_dense = layers.EinsumDense("abcd,cde->abe", output_shape=(None, query_shape[-1]))
        self._build_attention(4)

    def _compute_attention(self, query: Any, key: Any, value: Any, attention_mask: Any = None, *args: Any) -> Any:
        scores = ab.ops.einsum(self._dot_product_equation, key, query * self._inverse_sqrt_key_dim)
        weights = self._dropout_layer(self._masked_softmax(scores, attention_mask))
        return ab.ops.einsum(self._combine_equation, weights, value), weights


def test_subclasses_build_and_attend_by_the_names_of_keras() -> None:
    x, mask = data(2, 5, 4), np.array([[True] * 5, [True, True, False, True, False]])
    plain = layers.MultiHeadAttention(2, 3, value_dim=6, use_bias=False)
    plain(x, x)
    own = OwnProjections(2, 3, value_dim=6, dropout=0.0)
    own(x, x)
    assert not own.use_bias
    assert [w.shape for w in own.weights[:4]] == [w.shape for w in plain.weights]
    own.set_weights([*plain.get_weights(), *own.get_weights()[4:]])
    np.testing.assert_allclose(own(x, x, value_mask=mask), plain(x, x, value_mask=mask), rtol=1e-5, atol=1e-6)


def test_weights_of_a_layer_itself_by_whether_they_were_made_trainable() -> None:
    class Moving(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2)
            self.mean = self.add_weight((3,), trainable=False, name="mean")
            self.scale = self.add_weight((3,), name="scale")

    layer = Moving()
    layer.inner.build((None, 3))
    layer.trainable = False
    assert layer._trainable_variables == [layer.scale]
    assert layer._non_trainable_variables == [layer.mean]
