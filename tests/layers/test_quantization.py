"""Layers of int8 and int4 weights: results, gradients, files in both directions, refusals."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import layers, quantizers
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.ops.neural.int4 import dequantize_int4
from anabranch.engine.ops.neural.quantized import exact_product, quantized_matmul
from anabranch.layers.quantizers.packing import packed_array

GOLDEN = Path(__file__).parent.parent / "golden" / "files" / "quantized"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
MODES = ["int8", "int4"]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def tree_of(path: Path) -> dict[str, tuple[Any, Any]]:
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        found: dict[str, tuple[Any, Any]] = {}
        file.visititems(
            lambda name, item: (
                found.update({name: (item.shape, item.dtype)}) if isinstance(item, h5py.Dataset) else None
            )
        )
        return found


@pytest.mark.parametrize("name", NAMES)
def test_files_of_keras_predict_the_same(name: str, tmp_path: Path):
    golden = np.load(GOLDEN / f"{name}.npz")
    model = ab.load_model(GOLDEN / f"{name}.keras")
    np.testing.assert_allclose(model.predict(golden["x"], verbose=0), golden["prediction"], rtol=2e-5, atol=2e-6)
    model.save(tmp_path / "again.keras")
    assert tree_of(tmp_path / "again.keras") == tree_of(GOLDEN / f"{name}.keras")
    again = ab.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(again.predict(golden["x"], verbose=0), model.predict(golden["x"], verbose=0))


def test_there_are_golden_files():
    assert len(NAMES) == 24


def exact(x: Any, kernel: Any, scale: Any) -> Any:
    """Keras's formula, with sums of Python's integers."""
    inputs_scale = np.float32(127) / (np.abs(x).max(axis=-1, keepdims=True, initial=0) + np.float32(1e-7))
    rounded = np.clip(np.round(x * inputs_scale), -127, 127).astype(int)
    sums = rounded @ kernel.astype(int)
    return sums.astype("float32") / (inputs_scale * scale)


@given(st.integers(0, 5), st.integers(0, 70), st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
def test_products_are_exact(rows: int, terms: int, columns: int, transpose: bool, seed: int):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(rows, terms)) * rng.choice([1e-3, 1, 1e4], (rows, 1))).astype("float32")
    kernel = rng.integers(-128, 128, (terms, columns)).astype("int8")
    scale = rng.uniform(1, 300, columns).astype("float32")
    stored = np.ascontiguousarray(kernel.T) if transpose else kernel
    expected = exact(x, kernel, scale)
    np.testing.assert_array_equal(quantized_matmul(x, stored, scale, transpose=transpose).numpy(), expected)
    symbol = ab.placeholder((None, terms), "float32")
    compiled = ab.Session().run(quantized_matmul(symbol, stored, scale, transpose=transpose), {symbol: x})
    np.testing.assert_array_equal(compiled, expected)


def test_long_sums_are_exact():
    rng = np.random.default_rng(3)
    rows, kernel = np.full((2, 5000), -128.0, "float32"), np.full((5000, 3), -128, "int8")
    assert exact_product(np, rows, kernel).tolist() == [[128 * 128 * 5000] * 3] * 2
    x, kernel = rng.normal(size=(3, 5000)).astype("float32"), rng.integers(-128, 128, (5000, 7)).astype("int8")
    scale = np.ones(7, "float32")
    np.testing.assert_array_equal(quantized_matmul(x, kernel, scale).numpy(), exact(x, kernel, scale))


def test_rows_do_not_change_each_other():
    layer = layers.Dense(6)
    x = normal(5, 8)
    layer(x)
    layer.quantize("int8")
    alone = np.concatenate([layer(row[None]).numpy() for row in x])
    x[2] *= 1e6
    together = layer(x).numpy()
    np.testing.assert_array_equal(np.delete(together, 2, 0), np.delete(alone, 2, 0))
    x[1, 3], x[3, 0] = np.nan, np.inf
    found = layer(x).numpy()
    assert np.isnan(found[1]).all()
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(found[[0, 4]], alone[[0, 4]])


@pytest.mark.parametrize("mode", MODES)
def test_gradients_pass_to_inputs_by_the_float_kernel(mode: str):
    layer = layers.Dense(4, activation="tanh")
    x = ab.Variable(normal(3, 8))
    layer(x)
    layer.quantize(mode)
    kernel = np.asarray(layer._dequantized())
    with ab.GradientTape() as tape:
        outputs = layer(x)
        loss = ab.ops.sum(outputs * outputs)
    found = tape.gradient(loss, [x, layer.bias])
    y = outputs.numpy()
    upstream = 2 * y * (1 - y * y)
    np.testing.assert_allclose(found[0], upstream @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], upstream.sum(0), rtol=1e-4, atol=1e-5)
    assert [weight.name for weight in layer.trainable_weights] == ["bias"]


def test_another_quantizer_rounds_as_it_says():
    class Halves(quantizers.Quantizer):
        def __call__(self, x: Any, axis: Any = -1, to_numpy: bool = False) -> Any:
            return ab.ops.cast(ab.ops.round(x * 2), "int8"), ab.ops.convert_to_tensor(np.array([2], "float32"))

        def get_config(self) -> dict[str, Any]:
            return {"output_dtype": self.output_dtype}

    layer = layers.Dense(3, use_bias=False)
    x = normal(4, 5)
    layer(x)
    layer.quantize(config=quantizers.Int8QuantizationConfig(activation_quantizer=Halves()))
    expected = np.round(x * 2) / 2 @ np.asarray(layer._dequantized())
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float64"])
def test_a_dtype_builds_a_quantised_layer(mode: str, dtype: str):
    layer = layers.Dense(3, dtype=f"{mode}_from_{dtype}")
    outputs = layer(normal(2, 4))
    policy: Any = layer.dtype_policy
    assert layer.quantization_mode == policy.mode == mode
    assert outputs.dtype == layer.compute_dtype
    assert "int8" in [weight.dtype.name for weight in layer.weights]


def test_attention_in_a_layer_of_ones_own_is_quantised_and_saved(tmp_path: Path):
    @ab.saving.register_keras_serializable(package="quantised")
    class Block(layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.attention = layers.MultiHeadAttention(2, 4, name="attention")
            self.hidden = layers.Dense(6, name="hidden")

        def call(self, inputs: Any) -> Any:
            return self.hidden(self.attention(inputs, inputs))

    model = ab.Sequential([ab.Input((5, 6)), Block(name="block")])
    x = normal(2, 5, 6)
    before = model.predict(x, verbose=0)
    weights_only = quantizers.Int8QuantizationConfig(activation_quantizer=None)
    found = model.quantize(config=weights_only, filters=lambda layer: layer.name != "key")
    assert found["block/attention/key"] == "left out by filters"
    assert [path for path, mode in found.items() if mode == "int8"] == [
        "block/attention/query",
        "block/attention/value",
        "block/attention/attention_output",
        "block/hidden",
    ]
    after = model.predict(x, verbose=0)
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
    model.save(tmp_path / "block.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "block.keras").predict(x, verbose=0), after)
    with zipfile.ZipFile(tmp_path / "block.keras") as archive:
        config = json.loads(archive.read("config.json"))["config"]["layers"][1]["config"]
    assert config["dtype"]["class_name"] == "DTypePolicyMap"  # by which Keras finds the layers inside


@pytest.mark.parametrize(
    "config",
    [quantizers.Int8QuantizationConfig(activation_quantizer=None), quantizers.Int4QuantizationConfig(block_size=4)],
)
def test_attention_keeps_how_its_projections_are_quantised(config: Any, tmp_path: Path):
    inputs = ab.Input((5, 8))
    model = ab.Model(inputs, layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs))
    model.quantize(config=config)
    x = normal(3, 5, 8)
    expected = model.predict(x, verbose=0)
    for _ in range(2):
        model.save(tmp_path / "attention.keras")
        model = ab.load_model(tmp_path / "attention.keras")
        np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
        inside = model.get_layer("attention").query_dense
        assert inside.quantization_config.get_config() == config.get_config()


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_model_predicts_by_the_new_weights(mode: str):
    model = ab.Sequential([ab.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(2)])
    x = normal(20, 8)
    before = model.predict(x, verbose=0)
    assert set(model.quantize(mode).values()) == {mode}
    after = model.predict(x, verbose=0)
    assert 0 < np.abs(after - before).max() < 0.2
    np.testing.assert_allclose(model(x), after, rtol=1e-5, atol=1e-6)
    assert model(x[:0]).shape == (0, 2)


def test_digits_lose_less_than_half_a_point():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    x, y = (data.data / 16).astype("float32"), data.target
    ab.utils.set_random_seed(0)
    model = ab.Sequential([ab.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x[:1300], y[:1300], batch_size=50, epochs=10, verbose=0)
    weights = model.get_weights()

    def accuracy(mode: str | None) -> float:
        copy = ab.models.clone_model(model)
        copy.set_weights(weights)
        if mode is not None:
            copy.quantize(mode)
        return float((copy.predict(x[1300:], verbose=0).argmax(-1) == y[1300:]).mean())

    exactly = accuracy(None)
    assert exactly > 0.85
    assert exactly - accuracy("int8") <= 0.005
    assert exactly - accuracy("int4") <= 0.015


@pytest.mark.parametrize("mode", [None, *MODES])
def test_adapters_are_trained_merged_and_saved_as_their_sum(mode: str | None):
    x, y = normal(30, 6), normal(30, 4, seed=1)
    model = ab.Sequential([ab.Input((6,)), layers.Dense(4, name="head")])
    head = model.layers[0]
    if mode is not None:
        model.quantize(mode)
    before = model.predict(x, verbose=0)
    head.enable_lora(2, lora_alpha=3)
    np.testing.assert_allclose(model.predict(x, verbose=0), before, atol=1e-6)
    kernel = head._kernel.numpy()
    model.compile("adam", "mse")
    losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(head._kernel.numpy(), kernel)
    assert sorted(weight.name for weight in model.trainable_weights) == ["bias", "lora_kernel_a", "lora_kernel_b"]
    adapted = model.predict(x, verbose=0)
    store: dict[str, Any] = {}
    head.save_own_variables(store)
    again: Any = layers.Dense.from_config(head.get_config())
    again.build((None, 6))
    assert again.lora_enabled
    again.load_own_variables(store)
    tolerance = {None: 1e-5, "int8": 0.05, "int4": 0.5}[mode]
    np.testing.assert_allclose(again(x), adapted, atol=tolerance)
    assert not again.lora_kernel_a.numpy().any()
    head.merge_lora()
    np.testing.assert_allclose(head(x), again(x), atol=1e-5)


def test_packed_integers_come_out_again():
    rng = np.random.default_rng(0)
    for shape, axis in (((5, 3), 0), ((4, 7), 1), ((3, 2, 5), -1), ((3,), 0)):
        for dtype, low in (("int8", -8), ("uint8", 0)):
            numbers = rng.integers(low, low + 16, shape).astype(dtype)
            packed, packed_shape, size = quantizers.pack_int4(numbers, axis, dtype)
            assert packed_shape == packed.shape
            assert size == shape[axis]
            np.testing.assert_array_equal(quantizers.unpack_int4(packed, size, axis, dtype), numbers)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("terms", "columns"), [(0, 3), (7, 1), (5, 6), (300, 1501)])
@pytest.mark.parametrize("order", ["blocks", "any"])
def test_integers_of_four_bits_become_numbers(terms: int, columns: int, dtype: str, order: str):
    """Also where a matrix is larger than what is computed at once, and groups change within that."""
    rng = np.random.default_rng(terms)
    integers, zero = rng.integers(-8, 8, (terms, columns), "int8"), rng.integers(-8, 8, (4, columns), "int8")
    scale = rng.uniform(0.1, 1, (4, columns)).astype(as_dtype(dtype))
    group = rng.integers(0, 4, terms) if order == "any" else np.sort(rng.integers(0, 4, terms))
    packed = packed_array(integers)
    found = dequantize_int4(packed, scale, zero, group.astype("float32"), columns).numpy()
    expected = (integers - zero[group]).astype(scale.dtype) * scale[group]
    assert found.dtype == scale.dtype
    np.testing.assert_array_equal(found, expected)


def test_rounding_on_arrays_and_in_graphs_is_the_same():
    x = normal(6, 5)
    for axis in (0, -1, (0, 1)):
        now = [part.numpy() for part in quantizers.abs_max_quantize(x, axis, to_numpy=True)]
        symbol = ab.placeholder((6, 5), "float32")
        found = ab.Session().run(list(quantizers.abs_max_quantize(symbol, axis)), {symbol: x})
        for one, other in zip(now, found, strict=True):
            np.testing.assert_array_equal(one, other)
    found, scale, zero = quantizers.abs_max_quantize_grouped_with_zero_point(x, 4)
    groups = np.arange(6) // 4
    back = (found.numpy() - zero.numpy().astype("float32")[groups]) * scale.numpy()[groups]
    assert np.abs(back - x).max() <= scale.numpy().max() * 0.51


def test_fake_rounding_and_its_gradient():
    x = ab.Variable([-2.0, -0.4, 0.1, 0.6, 3.0])
    low, high = ab.Variable(-1.0), ab.Variable(1.0)
    with ab.GradientTape() as tape:
        found = quantizers.fake_quant_with_min_max_vars(x, low, high, num_bits=3)
        loss = ab.ops.sum(found * np.array([1, 2, 3, 4, 5], "float32"))
    step = 2 / 7
    np.testing.assert_allclose(found.numpy() / step, np.round(found.numpy() / step), atol=1e-5)
    assert np.abs(found.numpy()[1:4] - x.numpy()[1:4]).max() <= step / 2 + 1e-6
    gradients = [gradient.numpy().tolist() for gradient in tape.gradient(loss, [x, low, high])]
    assert gradients == [[0, 2, 3, 4, 0], 1, 5]


def built(**kwargs: Any) -> Any:
    layer = layers.Dense(3, name="head", **kwargs)
    layer.build((None, 4))
    return layer


def quantised() -> Any:
    layer = built()
    layer.quantize("int8")
    return layer


class Derived(layers.Dense):
    pass


def derived() -> Any:
    layer = Derived(3)
    layer.build((None, 4))
    return layer


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: layers.Dense(3).quantize("int8"), ValueError, "Cannot quantize a layer that isn't yet built"),
        (
            lambda: quantised().quantize("int8"),
            ValueError,
            "is already quantized with dtype_policy='int8_from_float32'",
        ),
        (lambda: built().quantize("int3"), ValueError, "Invalid quantization mode"),
        (lambda: built().quantize(), ValueError, "either `mode` or `config`"),
        (lambda: built().quantize("float8"), NotImplementedError, "float8"),
        (lambda: built().quantize("gptq"), ValueError, "GPTQConfig"),
        (lambda: built(dtype="float16").quantize("int8"), ValueError, "doesn't work well with compute_dtype='float16'"),
        (
            lambda: built().quantize("int4", config=quantizers.Int8QuantizationConfig()),
            ValueError,
            "Contradictory arguments: mode='int4' but config.mode='int8'",
        ),
        (lambda: built().quantize(config={"mode": "int8"}), ValueError, "must be an instance of `QuantizationConfig`"),
        (lambda: derived().quantize("int8"), NotImplementedError, "type_check=False"),
        (lambda: layers.LayerNormalization().quantize("int8"), NotImplementedError, "no quantised form"),
        (
            lambda: layers.LSTM(3, dtype="int8_from_float32").build((None, 2, 4)),
            NotImplementedError,
            "Pass dtype='float32'",
        ),
        (
            lambda: layers.Conv2D(3, 2, dtype="int4/8_from_float32").build((None, 4, 4, 1)),
            NotImplementedError,
            "floats",
        ),
        (
            lambda: layers.BatchNormalization(dtype="int8_from_float32").build((None, 4)),
            NotImplementedError,
            "no quanti",
        ),
        (lambda: layers.Embedding(4, 8, dtype="gptq/4/128_from_float32").build(), NotImplementedError, "has the modes"),
        (lambda: ab.Sequential([layers.Dense(3)]).quantize("int8"), ValueError, "isn't yet built"),
        (lambda: quantizers.Float8QuantizationConfig(), NotImplementedError, "float8"),
        (lambda: quantizers.Int4QuantizationConfig(block_size=0), ValueError, "block_size"),
        (lambda: quantizers.AbsMaxQuantizer(value_range=(-300, 300)), ValueError, r"\[-128, 127\]"),
        (lambda: quantizers.AbsMaxQuantizer(value_range=cast(Any, (np.nan, 127))), ValueError, r"\[-128, 127\]"),
        (
            lambda: quantizers.AbsMaxQuantizer(value_range=cast(Any, ("a", 1))),
            ValueError,
            "value_range must be two num",
        ),
        (lambda: quantizers.AbsMaxQuantizer(value_range=cast(Any, 3)), ValueError, "value_range must be two numbers"),
        (lambda: quantizers.AbsMaxQuantizer(epsilon=cast(Any, "same")), ValueError, "epsilon must be a number; got"),
        (lambda: quantizers.get("no_such_quantizer"), ValueError, "Unknown quantizer"),
        (lambda: ab.dtype_policies.get("int8_of_float32"), ValueError, "valid pair"),
        (lambda: ab.dtype_policies.get("int8_from_float16"), ValueError, "float16"),
        (lambda: ab.dtype_policies.Int4DTypePolicy("int4/x"), ValueError, "int4/<block_size>"),
        (lambda: layers.Dense(3).enable_lora(2), ValueError, "isn't yet built"),
        (lambda: built(kernel_constraint="non_neg").enable_lora(2), ValueError, "kernel constraints"),
        (lambda: built(lora_rank=2).enable_lora(2), ValueError, "already enabled"),
        (lambda: built().enable_lora(0), ValueError, "positive integer"),
        (lambda: built().merge_lora(), ValueError, "not enabled"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        call()


def test_a_derived_layer_is_quantised_where_it_is_asked_for():
    layer = derived()
    layer.quantize("int8", type_check=False)
    assert layer.quantization_mode == "int8"


def test_a_model_without_such_layers_says_so():
    model = ab.Sequential([ab.Input((3,)), layers.BatchNormalization(name="norm")])
    with pytest.warns(UserWarning, match="no layer of model"):
        assert model.quantize("int8") == {"norm": "BatchNormalization has no quantised form"}


def test_all_names_of_keras_are_there():
    assert len({*quantizers.__all__} - {"calibrate", "report"}) == 19
    for name in quantizers.__all__:
        assert getattr(quantizers, name) is not None


@pytest.mark.parametrize("make", [lambda: layers.Dense(7), lambda: layers.Embedding(8, 6)])
def test_a_block_size_of_minus_one_is_none(make: Any, tmp_path: Path):
    x = np.arange(8)[None] if isinstance(make(), layers.Embedding) else normal(3, 8)
    weights, found = ab.Sequential([ab.Input((8,)), make()]).get_weights(), list[Any]()
    for block_size in (-1, None):
        model = ab.Sequential([ab.Input((8,)), make()])
        model.set_weights(weights)
        model.quantize("int4", config=quantizers.Int4QuantizationConfig(block_size=block_size))
        model.save(tmp_path / "model.keras", overwrite=True)
        found += [model.predict(x, verbose=0), ab.models.load_model(tmp_path / "model.keras").predict(x, verbose=0)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("name", ["int8_from_float32", "int4/-1_from_float32", "int4/64_from_float32"])
@pytest.mark.parametrize("layer", [layers.Dense(3), layers.EinsumDense("ab,bc->ac", 3)])
def test_a_policy_of_quantisation_quantises_a_layer_that_is_built(layer: Any, name: str) -> None:
    x = normal(4, 128)
    made, other = (type(layer).from_config(layer.get_config()) for _ in range(2))
    for each in (made, other):
        each(x)
    other.set_weights(made.get_weights())
    made.dtype_policy = name
    block_size = int(name.partition("/")[2].partition("_")[0] or 0)
    other.quantize(name[:4], config=quantizers.Int4QuantizationConfig(block_size=block_size) if block_size else None)
    assert [each.dtype_policy.name for each in (made, other)] == [name, name]
    np.testing.assert_array_equal(made(x), other(x))


def test_a_policy_that_can_not_be_had_changes_nothing() -> None:
    layer = layers.Dense(3)
    before = layer(normal(4, 8))
    with pytest.raises(ValueError, match="GPTQConfig"):
        layer.dtype_policy = "gptq/4/128_from_float32"
    assert layer.dtype_policy.name == "float32"
    np.testing.assert_array_equal(layer(normal(4, 8)), before)


def test_weights_in_shards_are_replaced(tmp_path: Path) -> None:
    """The floats stayed, so that the file had weights too many to be opened."""
    x = np.random.default_rng(0).normal(size=(4, 16)).astype("float32")
    strategy = ab.distribute.ParameterServer(variable_partitioner=ab.distribute.MinSizePartitioner(64, max_shards=2))
    with strategy.scope():
        model = ab.Sequential([ab.Input((16,)), ab.layers.Dense(16, name="a")])
    whole = ab.models.clone_model(model)
    whole.set_weights(model.get_weights())
    for each in (model, whole):
        each.quantize("int8")
    assert len(model.get_weights()) == len(whole.get_weights()) == 3
    model.save(tmp_path / "model.keras")
    opened = ab.models.load_model(tmp_path / "model.keras")
    for each in (model, opened):
        np.testing.assert_array_equal(each.predict(x, verbose=0), whole.predict(x, verbose=0))


def test_adapters_of_doubles_are_doubles():
    """They were float32, so that results of doubles had the precision of these."""
    layer: Any = layers.Dense(3, dtype="float64")
    layer.build((None, 4))
    layer.enable_lora(3, lora_alpha=1.0)
    layer.lora_kernel_b.assign(np.full((3, 3), 1 / 3))
    x = np.random.default_rng(0).normal(size=(2, 4))
    expected = layer(x).numpy()
    assert [weight.dtype.name for weight in layer.weights] == ["float64"] * 4
    layer.merge_lora()
    np.testing.assert_allclose(layer(x).numpy(), expected, 1e-14)
