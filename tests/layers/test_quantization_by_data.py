"""GPTQ, AWQ, fixed scales and reports: what is found out from data."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, pretrained, quantizers
from anabranch.engine.objects import policies
from anabranch.layers.quantizers.by_data import awq, gptq, windows

CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 24,
    "n_positions": 16,
    "n_embd": 16,
    "n_head": 2,
    "n_layer": 2,
    "initializer_range": 0.2,
}
TOKENS = np.random.default_rng(0).integers(0, 24, (12, 8)).astype("int32")


def correlated(rows: int, terms: int) -> Any:
    """Inputs that vary together, some of them much more than others."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(rows, 4)) @ rng.normal(size=(4, terms)) + 0.1 * rng.normal(
        size=(rows, terms)
    ) * 3 ** rng.normal(size=terms)


def error(found: tuple[Any, ...], weight: Any, x: Any) -> float:
    integers, scale, zero, group, *factors = found
    back = (integers - zero[:, group]) * scale[:, group]
    if factors:
        back = back / factors[0]
    return float(np.linalg.norm(x @ (back - weight).T) / np.linalg.norm(x @ weight.T))


@pytest.mark.parametrize("group_size", [-1, 16])
@pytest.mark.parametrize("order", [False, True])
def test_gptq_makes_up_for_its_errors(group_size: int, order: bool):
    x, weight = correlated(400, 150), np.random.default_rng(2).normal(size=(10, 150))
    x[:, 5] = 0
    options: dict[str, Any] = {"group_size": group_size, "weight_bits": 3}
    plain = gptq(weight, np.eye(150), quantizers.GPTQConfig(None, None, **options))
    found = gptq(weight, x.T @ x, quantizers.GPTQConfig(None, None, activation_order=order, **options))
    assert error(found, weight, x) < 0.7 * error(plain, weight, x)
    integers, scale, zero, group = found
    assert integers.min() >= 0
    assert integers.max() <= 7
    assert scale.shape == zero.shape == (10, 1 if group_size == -1 else 10)
    assert sorted(set(group.tolist())) == list(range(scale.shape[1]))


def test_symmetric_and_whole_matrix_scales():
    weight = np.random.default_rng(2).normal(size=(4, 8))
    config = quantizers.GPTQConfig(None, None, symmetric=True, per_channel=False, group_size=-1)
    integers, scale, zero, _ = gptq(weight, np.eye(8), config)
    assert np.unique(scale).size == 1
    assert (zero == 8).all()
    assert np.abs((integers - zero) * scale - weight).max() <= 0.51 * scale.max()


def test_awq_is_not_worse_than_plain_rounding_where_large_inputs_count():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 64)) * np.where(np.arange(64) % 16 == 0, 30, 1)
    weight = rng.normal(size=(12, 64))
    config = quantizers.AWQConfig(None, None, group_size=32)
    found = awq(weight, np.abs(x).max(axis=0), config)
    plain = awq(weight, np.ones(64), config)
    assert error(found, weight, x) < error(plain, weight, x)


@pytest.mark.parametrize(
    "config",
    [
        quantizers.GPTQConfig(TOKENS, None, num_samples=6, sequence_length=8, group_size=8),
        quantizers.GPTQConfig(TOKENS, None, num_samples=6, sequence_length=8, weight_bits=8, group_size=-1),
        quantizers.AWQConfig(TOKENS, None, num_samples=6, sequence_length=8, group_size=8),
    ],
    ids=["gptq4", "gptq8", "awq"],
)
def test_a_language_model_is_quantised_by_data_and_saved(config: Any, tmp_path: Any):
    model: Any = pretrained.build(CONFIG)
    exact = model.predict(TOKENS, verbose=0)
    found = model.quantize(config=config)
    assert found["block_0/attention/qkv"] == found["block_1/projection"] == config.mode
    assert found["tokens"] == "ReversibleEmbedding has no quantised form"
    after = model.predict(TOKENS, verbose=0)
    limit = 0.02 if config.weight_bits == 8 else 0.3
    assert 0 < np.linalg.norm(after - exact) < limit * np.linalg.norm(exact)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(TOKENS, verbose=0), after)
    with pytest.raises(NotImplementedError, match="GPTQ") if config.mode == "gptq" else pytest.raises(ValueError):  # noqa: PT011
        model.blocks[0].hidden.enable_lora(0 if config.mode == "awq" else 2)


@pytest.mark.parametrize("config_class", [quantizers.GPTQConfig, quantizers.AWQConfig])
def test_a_structure_given_by_the_config_is_not_part_of_files(config_class: Any, tmp_path: Any):
    """Its layers have the config, which a file that held them would hold again, and so on."""
    table, block = layers.Embedding(24, 8), ab.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8)])
    model = ab.Sequential([ab.Input((8,), dtype="int32"), table, block])
    structure = {"pre_block_layers": [table], "sequential_blocks": [block]}
    config = config_class([TOKENS], None, sequence_length=8, quantization_layer_structure=structure)
    model.quantize(config=config)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(TOKENS, verbose=0), model.predict(TOKENS, verbose=0))
    assert config.get_config()["quantization_layer_structure"] is None


@pytest.mark.parametrize("mode", ["int4", "gptq", "awq"])
@pytest.mark.parametrize("number", [np.nan, -1, 1, 1e9])
def test_groups_that_there_are_not_are_refused(mode: str, number: float):
    layer = layers.Dense(3, name="d")
    layer.build((None, 8))
    config: Any = {"gptq": quantizers.GPTQConfig, "awq": quantizers.AWQConfig}.get(mode)
    if config is None:
        layer.quantize(mode)
    else:
        layer.become(policies.get(f"{config(None, None).dtype_policy_string()}_from_float32"))
    stored: dict[str, Any] = {}
    layer.save_own_variables(stored)
    layer.load_own_variables(stored)
    (place,) = [str(k) for k, each in enumerate(layer._stored_variables()) if each.name == "g_idx"]
    stored[place] = np.full(8, number, "float32")
    with pytest.raises(ValueError, match=r"Layer 'd': the file has groups .*; expected 0 to 0. It is damaged"):
        layer.load_own_variables(stored)


@pytest.mark.parametrize("number", [np.nan, -1, 2])
def test_a_file_of_groups_that_there_are_not_is_damaged(number: float, tmp_path: Path):
    model = ab.Sequential([ab.Input((8,)), layers.Dense(3, name="d")])
    model.quantize(config=quantizers.Int4QuantizationConfig(block_size=4))
    model.layers[0].g_idx.assign(np.full(8, number, "float32"))
    model.save(tmp_path / "m.keras")
    with pytest.raises(ab.saving.SavedFileError, match=r"m\.keras': Layer 'd': the file has groups .* expected 0 to 1"):
        ab.load_model(tmp_path / "m.keras")


def test_windows_are_taken_from_all_of_the_data():
    config = quantizers.GPTQConfig(
        ["abc", "defgh"], lambda text: [ord(c) for c in text], num_samples=3, sequence_length=4
    )
    found = windows(config)
    assert found.shape == (3, 4)
    assert found[0].tolist() == [ord(c) for c in "abcd"]
    repeated = windows(quantizers.AWQConfig([[1, 2, 3]], None, num_samples=2, sequence_length=4))
    assert repeated.tolist() == [[1, 2, 3, 1], [3, 1, 2, 3]]


@pytest.mark.parametrize(
    ("config", "error_type", "match"),
    [
        (quantizers.GPTQConfig("text", None), TypeError, "must be an iterable"),
        (quantizers.GPTQConfig(["text"], None), TypeError, "need a tokenizer"),
        (quantizers.GPTQConfig([], None), ValueError, "empty"),
        (quantizers.GPTQConfig(None, None), TypeError, "must be an iterable"),
    ],
)
def test_what_data_may_not_be(config: Any, error_type: type[Exception], match: str):
    with pytest.raises(error_type, match=match):
        pretrained.build(CONFIG).quantize(config=config)


def test_a_model_without_a_structure_is_refused():
    model = ab.Sequential([ab.Input((4,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="get_quantization_layer_structure"):
        model.quantize(config=quantizers.GPTQConfig(TOKENS, None))


def two_layers() -> Any:
    return ab.Sequential([ab.Input((6,)), layers.Dense(8, activation="relu", name="one"), layers.Dense(3, name="two")])


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_fixed_scales_come_from_data(method: str, tmp_path: Any):
    model, x = two_layers(), np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
    x[0, 0] = 40.0  # one that is far out
    scales = quantizers.calibrate(model, x, method=method, percentile=99)
    assert list(scales) == ["one", "two"]
    limit = scales["one"][0] * 127
    most = {"minmax": 40.01, "percentile": 20, "mse": 40.01}[method]
    assert 1 < limit < most
    quantised = two_layers()
    quantised.set_weights(model.get_weights())
    assert quantised.quantize("int8", calibration=scales) == {"one": "int8", "two": "int8"}
    expected = model.predict(x, verbose=0)
    found = quantised.predict(x, verbose=0)
    assert np.abs(found - expected)[1:].max() < 0.2 * np.abs(expected).max()
    errors = quantizers.report(model, quantised, x[1:])
    assert list(errors) == [model.name, "one", "two"]
    assert errors[model.name] == errors["two"]
    assert 0 < errors["one"] < 0.1
    alone, together = quantised(x[3:4]), quantised(x[2:5])
    np.testing.assert_array_equal(alone[0], together[1])


@pytest.mark.parametrize("has_layers_inside", [False, True])
def test_fixed_scales_are_kept_by_files_and_copies(has_layers_inside: bool, tmp_path: Any):
    model, x = two_layers(), np.random.default_rng(0).normal(size=(20, 6)).astype("float32")
    if has_layers_inside:
        inputs = ab.Input((6,))
        model = ab.Model(inputs, model(inputs))
    scales = quantizers.calibrate(model, x, method="percentile", percentile=60)  # unlike those of rows
    model.quantize("int8", calibration=scales)
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    cloned = ab.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for found in (ab.saving.load_model(tmp_path / "model.keras"), cloned, copy.deepcopy(model)):
        np.testing.assert_array_equal(found.predict(x, verbose=0), expected)


def other_layers() -> Any:
    tokens = ab.Input((4,), dtype="int32")
    x = layers.Conv1D(3, 2, name="conv")(layers.Embedding(5, 6, name="table")(tokens))
    x = layers.EinsumDense("abc,bd->abd", (None, 2), name="by_rows")(x)  # no product of matrices
    return ab.Model(tokens, layers.Dense(2, name="head")(layers.LSTM(3, name="lstm")(x)))


WEIGHTS_ONLY = quantizers.Int8QuantizationConfig(activation_quantizer=None)


@pytest.mark.parametrize(
    ("make", "options", "path", "entry", "match"),
    [
        (two_layers, {}, "three", (0.1, 0), r"'three', which is no layer with weights.* scales are for one, two\."),
        (two_layers, {"mode": "int4"}, "one", (0.1, 0), "does not round its inputs in mode 'int4'"),
        (two_layers, {"filters": "two"}, "one", (0.1, 0), "left out by filters.*for two"),
        (two_layers, {"mode": None, "config": WEIGHTS_ONLY}, "one", (0.1, 0), "activation_quantizer=None"),
        (two_layers, {}, "one", (0.1, 3), "has the zero point 3"),
        (two_layers, {}, "one", (0.0, 0), "has the scale 0.0; it must be above 0"),
        (two_layers, {}, "one", (float("nan"), 0), "has the scale nan"),
        (two_layers, {}, "one", 0.1, r"must be \(scale, zero_point\).* got 0.1"),
        (other_layers, {"include": "all"}, "conv", (0.1, 0), "Conv1D rounds each row.*are for head"),
        (other_layers, {"include": "all"}, "lstm/lstm_cell", (0.1, 0), "LSTMCell rounds each row"),
        (other_layers, {}, "table", (0.1, 0), "Embedding rounds each row"),
        (other_layers, {}, "by_rows", (0.1, 0), "EinsumDense rounds each row"),
    ],
)
def test_scales_without_effect_are_refused_before_anything_is_quantised(
    make: Any, options: Any, path: str, entry: Any, match: str
):
    model = make()
    with pytest.raises(ValueError, match=match):
        model.quantize(**{"mode": "int8", **options, "calibration": {path: entry}})
    assert all(layer.quantization_mode is None for layer in model._flatten_layers())


def test_calibrate_leaves_out_layers_that_take_no_scale():
    model = other_layers()
    scales = quantizers.calibrate(model, np.ones((2, 4), "int32"))
    assert list(scales) == ["head"]
    assert model.quantize("int8", include="all", calibration=scales)["lstm/lstm_cell"] == "int8"


def test_data_may_be_batches_of_inputs_and_targets():
    model, x = two_layers(), np.ones((4, 6), "float32")
    batches = [(x, np.zeros(4)), (3 * x, np.zeros(4))]
    assert quantizers.calibrate(model, batches)["one"][0] == pytest.approx(3 / 127)
    assert quantizers.calibrate(model, batches, batches=1)["one"][0] == pytest.approx(1 / 127)


def test_rows_that_are_not_finite_give_nan_by_fixed_scales_too():
    x = np.random.default_rng(0).normal(size=(4, 40)).astype("float32")
    model = ab.Sequential([ab.Input((40,)), layers.Dense(3)])
    model.quantize("int8", calibration=quantizers.calibrate(model, x))
    expected = np.array(model.predict(x, verbose=0))
    expected[:3] = np.nan
    for place, value in enumerate((np.nan, np.inf, -np.inf)):
        x[place, 39 - 7 * place] = value
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    np.testing.assert_array_equal(np.asarray(model(x)), expected)


def without_products() -> Any:
    return ab.Sequential([ab.Input((6,)), layers.Rescaling(2.0)])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quantizers.calibrate(two_layers(), np.ones((1, 6)), method="entropy"), "method='entropy'"),
        (lambda: quantizers.calibrate(two_layers(), np.ones((1, 6)), percentile=0), "percentile=0"),
        (lambda: quantizers.calibrate(two_layers(), []), "the data is empty"),
        (lambda: quantizers.calibrate(two_layers(), np.ones((0, 6))), "the data is empty: expected at least one row"),
        (lambda: quantizers.calibrate(two_layers(), np.ones((1, 6)), batches=0), "batches=0 must be at least 1"),
        (lambda: quantizers.calibrate(without_products(), np.ones((1, 6))), "no Dense or EinsumDense layer was called"),
        (lambda: quantizers.report(two_layers(), ab.Sequential([ab.Input((6,)), layers.Dense(3)]), []), "other layers"),
        (lambda: quantizers.GPTQConfig(None, None, weight_bits=5), "Unsupported weight_bits 5"),
        (lambda: quantizers.AWQConfig(None, None, group_size=0), "Invalid group_size"),
        (lambda: two_layers().quantize("int8", filters=3), "`filters` argument"),
        (lambda: two_layers().quantize("int8", include="some"), "include='some'"),
    ],
)
def test_what_is_refused(call: Any, match: str):
    with pytest.raises(ValueError, match=match):
        call()


def test_settings_of_keras_3_16() -> None:
    """Those of the search are read, and not kept: what is found is in the weights."""
    gptq = quantizers.GPTQConfig(None, None, calibration_batch_size=2)
    assert "calibration_batch_size" not in gptq.get_config()
    read = quantizers.GPTQConfig.from_config({**gptq.get_config(), "calibration_batch_size": 4})
    assert read.get_config() == gptq.get_config()
    with pytest.raises(ValueError, match="calibration_batch_size must be a positive integer"):
        quantizers.GPTQConfig(None, None, calibration_batch_size=0)
    awq = quantizers.AWQConfig(None, None)
    assert quantizers.AWQConfig.from_config({**awq.get_config(), "apply_clip": True}).get_config() == awq.get_config()
    with pytest.raises(ValueError, match=r"apply_clip=True, the search for limits of weights, is not there"):
        quantizers.AWQConfig(None, None, apply_clip=True)


def test_int4_of_whole_columns_as_older_keras_names_it() -> None:
    """Keras up to 3.14 wrote None for -1."""
    policy = ab.dtype_policies.get("int4/None_from_float32")
    assert policy.name == "int4/-1_from_float32"
    assert policy == ab.dtype_policies.get("int4/-1_from_float32")
    assert policy.get_config() == {"mode": "int4/-1", "source_name": "float32"}
