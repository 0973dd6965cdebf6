"""Adapters of low rank for whole models: logits as PEFT's, files in both directions, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import lora, pretrained

GOLDEN = Path(__file__).parent.parent / "golden" / "files" / "pretrained"


def small(name: str = "small") -> Any:
    table = ab.layers.Embedding(7, 4, name="table")
    return ab.Sequential([ab.Input((3,), dtype="int32"), table, ab.layers.Dense(5, name="head")], name=name)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_adapters_of_peft_give_its_logits(name: str, tmp_path: Path):
    arrays = np.load(GOLDEN / name / "golden.npz")
    mask = arrays["attention_mask"].astype(bool)
    x = {"tokens": arrays["input_ids"].astype("int32"), "mask": mask}
    expected = np.load(GOLDEN / name / "adapters" / "golden.npz")["logits"][mask]
    model = pretrained.load(GOLDEN / name)
    assert lora.load(model, GOLDEN / name / "adapters")
    np.testing.assert_allclose(model.predict(x, verbose=0)[mask], expected, rtol=1e-4, atol=2e-6)
    lora.save(model, tmp_path / "adapters")
    theirs = ab.saving.read_safetensors(GOLDEN / name / "adapters" / "adapter_model.safetensors")
    ours = ab.saving.read_safetensors(tmp_path / "adapters" / "adapter_model.safetensors")
    assert set(ours) == set(theirs)
    for key, array in ours.items():
        np.testing.assert_array_equal(array, theirs[key])
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 2, 6, "none")
    pretrained.save(model, tmp_path / "merged")
    merged = pretrained.load(tmp_path / "merged").predict(x, verbose=0)[mask]
    np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-5)
    lora.merge(model)
    np.testing.assert_allclose(model.predict(x, verbose=0)[mask], expected, rtol=1e-4, atol=1e-5)


def test_whole_modules_of_peft_replace_those_of_the_model(tmp_path: Path):
    """Adapters of classifiers have the head beside them, by default of PEFT."""
    folder = GOLDEN / "bert_classes"
    arrays, expected = np.load(folder / "golden.npz"), np.load(folder / "adapters" / "golden.npz")["logits"]
    x = {"tokens": arrays["input_ids"].astype("int32"), "mask": arrays["attention_mask"].astype(bool)}
    assert "classifier" in json.loads((folder / "adapters" / "adapter_config.json").read_text())["modules_to_save"]
    model: Any = pretrained.load(folder)
    lora.load(model, folder / "adapters")
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-4, atol=2e-6)
    assert {weight.name[:4] for weight in model.trainable_weights} == {"lora"}
    model.quantize("int8", filters=lambda layer: layer is not model.classifier)
    lora.load(model, folder / "adapters")
    assert np.abs(model.predict(x, verbose=0) - expected).max() < 0.05 * np.abs(expected).max()
    quantised = pretrained.load(folder, quantize="int8")
    with pytest.raises(ValueError, match=r"classifier\.weight: its layer is quantised"):
        lora.load(quantised, folder / "adapters")
    shutil.copytree(folder / "adapters", tmp_path / "bad")
    path = tmp_path / "bad" / "adapter_model.safetensors"
    wrong = {key: np.array(array) for key, array in ab.saving.read_safetensors(path).items()}
    wrong["base_model.model.classifier.weight"] = np.ones((4, 12), "float32")
    ab.saving.write_safetensors(path, wrong)
    other = pretrained.load(folder)
    before = other.predict(x, verbose=0)
    with pytest.raises(ValueError, match=r"classifier\.weight: shape"):
        lora.load(other, tmp_path / "bad")
    np.testing.assert_array_equal(other.predict(x, verbose=0), before)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_nothing_but_adapters_is_trained(quantize: str | None, tmp_path: Path):
    x, y = np.arange(30).reshape(10, 3) % 7, np.arange(30).reshape(10, 3) % 5
    model = small()
    if quantize is not None:
        model.quantize(quantize)
    assert lora.enable(model, 2, alpha=4, filters=["table", "head"]) == ["table", "head"]
    names = ["lora_embeddings_a", "lora_embeddings_b", "lora_kernel_a", "lora_kernel_b"]
    assert sorted(weight.name for weight in model.trainable_weights) == names
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = {id(weight): weight.numpy() for weight in model.non_trainable_weights}
    losses = model.fit(x, y, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    for weight in model.non_trainable_weights:
        np.testing.assert_array_equal(weight.numpy(), before[id(weight)])
    found = model.predict(x, verbose=0)
    lora.save(model, tmp_path)
    if quantize is None:
        other = small("other")
        for layer in other.layers:
            layer.set_weights(_plain(model, layer.name))
        lora.load(other, tmp_path)
        np.testing.assert_allclose(other.predict(x, verbose=0), found, atol=1e-6)
    assert lora.merge(model) == ["table", "head"]
    tolerance = {None: 1e-5, "int8": 0.05, "int4": 0.5}[quantize]
    np.testing.assert_allclose(model.predict(x, verbose=0), found, atol=tolerance)


def functional() -> Any:
    x = ab.Input((3,), dtype="int32", name="x")
    inner = ab.Sequential([ab.layers.Embedding(7, 4, name="table"), ab.layers.BatchNormalization(name="norm")])
    return ab.Model(x, ab.layers.Dense(5, name="head")(inner(x)))


@pytest.mark.parametrize("make", [small, functional])
def test_a_saved_model_trains_nothing_but_its_adapters(make: Any, tmp_path: Path):
    x, y = np.arange(30).reshape(10, 3) % 7, np.arange(30).reshape(10, 3) % 5
    model = make()
    lora.enable(model, 2)
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    names = ["lora_kernel_a", "lora_kernel_b"]
    assert [weight.name for weight in again.trainable_weights] == names
    for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    again.fit(x, y, verbose=0)
    lora.merge(again)
    assert [weight.name for weight in again.trainable_weights] == ["kernel"]


def test_layers_that_are_saved_without_their_adapters_are_trained_again(tmp_path: Path):
    x = ab.Input((3, 4))
    attention = ab.layers.MultiHeadAttention(2, 4)
    model = ab.Model(x, attention(x, x))
    kernels = [weight.path for weight in model.trainable_weights if weight.name == "kernel"]
    for layer in attention._flatten_layers(include_self=False):
        if isinstance(layer, ab.layers.EinsumDense):
            layer.enable_lora(2)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.trainable_weights if weight.name == "kernel"] == kernels


def test_steps_of_before_are_not_run_again():
    model, x = small(), np.array([[1, 2, 3]])
    head, before = model.get_layer("head"), model.predict(x, verbose=0)
    head.enable_lora(2)
    head.lora_kernel_b.assign(np.ones((2, 5)))
    adapted = model.predict(x, verbose=0)
    assert np.abs(adapted - before).max() > 1e-3
    np.testing.assert_allclose(adapted, model(x), rtol=1e-5, atol=1e-6)
    head.merge_lora()
    np.testing.assert_allclose(model.predict(x, verbose=0), adapted, rtol=1e-5, atol=1e-6)
    head.quantize("int8")
    np.testing.assert_array_equal(model.predict(x, verbose=0), model(x))


def test_ranks_may_differ(tmp_path: Path):
    model = small()
    model.get_layer("table").enable_lora(1)
    model.get_layer("head").enable_lora(3, lora_alpha=5)
    for layer in model.layers:
        for factor in layer._lora_factors():
            factor.assign(np.random.default_rng(0).normal(size=factor.shape))
    lora.save(model, tmp_path)
    other = small("other")
    for layer in other.layers:
        layer.set_weights(_plain(model, layer.name))
    lora.load(other, tmp_path)
    x = np.array([[1, 2, 3]])
    np.testing.assert_allclose(other(x), model(x), rtol=1e-5, atol=1e-6)


def _plain(model: Any, name: str) -> list[Any]:
    """The weights of a layer without adapters, in the order of a layer that has none."""
    layer = model.get_layer(name)
    return [layer._embeddings.numpy()] if name == "table" else [layer._kernel.numpy(), layer.bias.numpy()]


def test_tables_that_peft_writes_beside_adapters_of_embeddings_are_taken(tmp_path: Path):
    model, other, x = small(), small(), np.arange(30).reshape(10, 3) % 7
    other.set_weights(model.get_weights())
    own = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
    model.layers[0].set_weights([own])
    lora.enable(model, 2, filters=["table", "head"])
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    lora.save(model, tmp_path)
    path, key = tmp_path / "adapter_model.safetensors", "base_model.model.table.base_layer.weight"
    arrays = {name: np.array(array) for name, array in ab.saving.read_safetensors(path).items()}
    for table, message in ((np.ones((8, 4), "float32"), "shape"), (own, "")):
        ab.saving.write_safetensors(path, {**arrays, key: table}, {"format": "pt"})
        if message:
            with pytest.raises(ValueError, match=message):
                lora.load(other, tmp_path)
        else:
            lora.load(other, tmp_path)
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_adapters_of_the_embedding_alone_are_refused_where_the_head_is_the_same_table(tmp_path: Path):
    config = json.loads((GOLDEN / "gpt2" / "config.json").read_text())
    model, other = pretrained.build(config), pretrained.build(config)
    x = np.arange(6).reshape(2, 3)
    other.set_weights(model.get_weights())
    lora.enable(model, 2, filters="tokens")
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    lora.save(model, tmp_path)
    path = tmp_path / "adapter_config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "ensure_weight_tying": False}))
    with pytest.raises(ValueError, match="ensure_weight_tying"):
        lora.load(other, tmp_path)
    path.write_text(json.dumps(saved))
    lora.load(other, tmp_path)
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_what_does_not_fit_is_refused_and_leaves_the_model(tmp_path: Path):
    model = small()
    lora.enable(model, 2)
    lora.save(model, tmp_path / "good")
    for change, match in (
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"bias": "all"}, "bias='all'"),
        ({"use_dora": True}, "use_dora=True"),
        ({"use_rslora": True}, "use_rslora=True"),
    ):
        shutil.copytree(tmp_path / "good", tmp_path / "bad", dirs_exist_ok=True)
        config = json.loads((tmp_path / "good" / "adapter_config.json").read_text())
        (tmp_path / "bad" / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=match):
            lora.load(small(), tmp_path / "bad")
    arrays = dict(ab.saving.read_safetensors(tmp_path / "good" / "adapter_model.safetensors"))
    wrong = {key: np.array(array) for key, array in arrays.items()}
    wrong["base_model.model.head.lora_A.weight"] = np.zeros((2, 3), "float32")
    wrong["base_model.model.tail.lora_A.weight"] = np.zeros((2, 3), "float32")
    ab.saving.write_safetensors(tmp_path / "bad" / "adapter_model.safetensors", wrong)
    shutil.copy(tmp_path / "good" / "adapter_config.json", tmp_path / "bad" / "adapter_config.json")
    other = small()
    with pytest.raises(ValueError, match="does not fit model") as caught:
        lora.load(other, tmp_path / "bad")
    assert "head: shapes (2, 3) and (5, 2) in the file, expected (2, 4) and (5, 2)" in str(caught.value)
    assert "unknown: base_model.model.tail.lora_A.weight" in str(caught.value)
    assert not other.get_layer("head").lora_enabled
    (tmp_path / "bad" / "adapter_config.json").write_text("[")
    with pytest.raises(ValueError, match="no config of adapters"):
        lora.load(other, tmp_path / "bad")
    with pytest.raises(FileNotFoundError, match=r"adapter_config\.json"):
        lora.load(other, tmp_path)
    with pytest.raises(ValueError, match="no adapters of low rank"):
        lora.merge(other)
    with pytest.raises(ValueError, match="no adapters of low rank"):
        lora.save(other, tmp_path / "none")
    with pytest.raises(ValueError, match="passes the filters"):
        lora.enable(other, 2, filters="nothing")
    with pytest.raises(ValueError, match="already enabled"):
        lora.enable(model, 2)
