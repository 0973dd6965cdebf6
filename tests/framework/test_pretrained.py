"""Models of public architectures: logits as transformers', folders in both directions, refusals."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import pretrained
from anabranch.engine.objects import registry
from anabranch.framework.saving.archive import SavedFileError

GOLDEN = Path(__file__).parent.parent / "golden" / "files" / "pretrained"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
CAUSAL = ["gpt2", "llama", "mistral"]
SMALL = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 9,
    "n_positions": 8,
    "n_embd": 6,
    "n_head": 2,
    "n_layer": 1,
}


def golden(name: str) -> tuple[Any, Any, Any]:
    """The input, the logits, and which of these count: what transformers gives at masked places is arbitrary."""
    arrays = np.load(GOLDEN / name / "golden.npz")
    if "pixel_values" in arrays:
        return arrays["pixel_values"].transpose(0, 2, 3, 1), arrays["logits"], slice(None)
    mask = arrays["attention_mask"].astype(bool)
    counts = mask if arrays["logits"].ndim == 3 else slice(None)
    return {"tokens": arrays["input_ids"].astype("int32"), "mask": mask}, arrays["logits"], counts


def logits_of(model: Any, x: Any) -> Any:
    found = model.predict(x, verbose=0)
    return found["hidden"] if isinstance(found, dict) else found


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path):
    x, expected, counts = golden(name)
    model = pretrained.load(GOLDEN / name)
    found = logits_of(model, x)
    np.testing.assert_allclose(found[counts], expected[counts], rtol=1e-4, atol=2e-6)
    pretrained.save(model, tmp_path / "again", max_shard_size="4KB")
    assert len(list((tmp_path / "again").glob("model-*.safetensors"))) > 1
    again = pretrained.load(tmp_path / "again")
    np.testing.assert_array_equal(logits_of(again, x), found)
    pretrained.save(model, tmp_path / "again")
    own = ab.saving.read_safetensors(tmp_path / "again" / "model.safetensors")
    theirs = ab.saving.read_safetensors(GOLDEN / name / "model.safetensors")
    assert own.metadata == theirs.metadata == {"format": "pt"}
    for key, array in own.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    assert {key for key in theirs if key not in own and "num_batches_tracked" not in key} == set()


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_images_have_channels_last_whatever_the_default_is(name: str):
    ab.config.set_image_data_format("channels_first")
    x, expected, counts = golden(name)
    found = logits_of(pretrained.load(GOLDEN / name), x)
    np.testing.assert_allclose(found[counts], expected[counts], rtol=1e-4, atol=2e-6)


def test_there_are_golden_folders():
    assert len(NAMES) == 11


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_saved_as_any_other(name: str, tmp_path: Path):
    x, _, _ = golden(name)
    model = pretrained.load(GOLDEN / name)
    found = logits_of(model, x)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(ab.load_model(tmp_path / "model.keras"), x), found)
    model.save_weights(tmp_path / "weights.safetensors", max_shard_size="10KB")
    other = pretrained.build(model.config)
    other.load_weights(tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(logits_of(other, x), found)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("resnet", "hidden_sizes", 0),
        ("resnet", "hidden_act", {}),
        ("llama", "num_attention_heads", None),
        ("mistral", "rope_parameters", -1),
        ("mistral", "sliding_window", 2**31),
        ("bert_masked", "hidden_act", []),
        ("vit", "num_channels", None),
    ],
)
def test_settings_of_other_types(name: str, setting: str, value: Any):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    with pytest.raises(ValueError, match=r"config: no [A-Za-z]+ can be made of it, .*: [A-Za-z]+: .* Compare it with"):
        pretrained.build({**config, setting: value})


@pytest.mark.parametrize("wanted", [{"a": 1}, [{}], [[]], 1.5, []])
def test_architectures_that_are_no_names(wanted: Any):
    with pytest.raises(ValueError, match=r"config: architectures=.* is not available. Expected one of BertForMaskedLM"):
        pretrained.build({"architectures": wanted})


@pytest.mark.parametrize(
    ("name", "setting"),
    [("gpt2", "n_positions"), ("gpt2", "vocab_size"), ("vit", "num_channels"), ("llama", "head_dim")],
)
@pytest.mark.parametrize("size", [10**8, 10**12, 10**30])
def test_sizes_beyond_the_files_are_refused_before_memory_is_taken(
    name: str, setting: str, size: int, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    config = json.loads((GOLDEN / name / "config.json").read_text())
    (tmp_path / name / "config.json").write_text(json.dumps({**config, setting: size}))
    with pytest.raises(SavedFileError, match=r"all arrays of the files have .* elements"):
        pretrained.load(tmp_path / name)


def test_bert_without_a_pooler(tmp_path: Path):
    arrays = ab.saving.read_safetensors(GOLDEN / "bert" / "model.safetensors")
    kept = {name: array for name, array in arrays.items() if not name.startswith("pooler.")}
    assert len(kept) == len(arrays) - 2
    shutil.copy(GOLDEN / "bert" / "config.json", tmp_path)
    ab.saving.write_safetensors(tmp_path / "model.safetensors", kept)
    x, expected, counts = golden("bert")
    model = pretrained.load(tmp_path)
    found = model.predict(x, verbose=0)
    assert list(found) == ["hidden"]
    np.testing.assert_allclose(found["hidden"][counts], expected[counts], rtol=1e-4, atol=2e-6)

    pretrained.save(model, tmp_path / "again")
    assert set(ab.saving.read_safetensors(tmp_path / "again" / "model.safetensors")) == set(kept)
    assert pretrained.load(tmp_path / "again").config == model.config
    kept["pooler.dense.bias"] = arrays["pooler.dense.bias"]
    ab.saving.write_safetensors(tmp_path / "model.safetensors", kept)
    with pytest.raises(ValueError, match=r"pooler\.dense\.weight"):
        pretrained.load(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert_masked", "vit"])
def test_a_quantised_model_is_close_and_saved(name: str, tmp_path: Path):
    x, expected, counts = golden(name)
    model = pretrained.load(GOLDEN / name, quantize="int8")
    found = logits_of(model, x)
    scale = np.abs(expected[counts]).max()
    assert 0 < np.abs(found - expected)[counts].max() < 0.05 * scale
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(ab.load_model(tmp_path / "model.keras"), x), found)
    with pytest.raises(ValueError, match="quantised, which the format has no names for"):
        pretrained.save(model, tmp_path / "folder")


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_a_decoder_gives_the_greedy_continuation(name: str, quantize: str | None):
    model = pretrained.load(GOLDEN / name, quantize=quantize)
    decoder = pretrained.decoder(model, end_token=0, max_length=12, slots=2)
    prompts = [[3, 4, 5], [7], [9, 8, 7, 6, 5, 1]]
    for prompt, found in zip(prompts, decoder.generate(prompts), strict=True):
        tokens = list(prompt)
        while len(tokens) < 12 and (len(tokens) == len(prompt) or tokens[-1] != 0):
            tokens.append(int(model(np.array([tokens], "int32")).numpy()[0, -1].argmax()))
        assert found.tolist() == tokens[len(prompt) :]


def test_a_slot_may_be_idle_when_its_sequence_has_filled_the_cache():
    ab.utils.set_random_seed(2)
    decoder = pretrained.decoder(pretrained.build(SMALL), end_token=0, max_length=8, slots=3)
    prompts = [[3, 4, 5, 6, 7], [1], [2, 3]]  # all but the last token of each are read at once
    expected = [found.tolist() for found in decoder.generate(prompts)]
    assert [len(found) for found in expected] == [3, 7, 6]
    for number, prompt in enumerate(prompts):
        assert decoder.generate([prompt])[0].tolist() == expected[number]


@pytest.mark.kernels
def test_a_step_writes_caches_in_place():
    decoder = pretrained.decoder(pretrained.build(SMALL), end_token=0, max_length=8, slots=2)
    names = decoder.plan.entries["step"].effects
    states: list[Any] = [
        next(iter(decoder._graph.get_tensor_by_name(name).operation.effects)).resource for name in names
    ]
    caches = [variable for variable in states if variable.ndim == 4]
    assert len(caches) == 2
    decoder.programs.step(np.array([3, 3], "int32"))  # the memory is the caches' own from now on
    before = [variable.stored_value().ctypes.data for variable in caches]
    decoder.programs.step(np.array([4, 4], "int32"))
    assert [variable.stored_value().ctypes.data for variable in caches] == before
    written = [np.abs(variable.numpy()).sum(axis=(0, 2, 3)) > 0 for variable in caches]
    assert all(each.tolist() == [True, True, *[False] * 6] for each in written)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_samples(name: str):
    model = pretrained.load(GOLDEN / name)
    x, expected, _ = golden(name)
    none = {key: each[:0] for key, each in x.items()} if isinstance(x, dict) else x[:0]
    found = model(none)
    assert (found["hidden"] if isinstance(found, dict) else found).shape == (0, *expected.shape[1:])


def test_random_models_of_a_config_train():
    model = pretrained.build(SMALL)
    tokens = np.random.default_rng(0).integers(0, 9, (16, 6)).astype("int32")
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(tokens[:, :-1], tokens[:, 1:], epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert "GPT2LMHeadModel" in pretrained.architectures()


def test_weights_in_half_precision_are_cast(tmp_path: Path):
    model = pretrained.build(SMALL)
    pretrained.save(model, tmp_path)
    arrays = ab.saving.read_safetensors(tmp_path / "model.safetensors")
    half = {name: np.array(ab.ops.cast(array, "bfloat16")) for name, array in arrays.items()}
    arrays = None
    ab.saving.write_safetensors(tmp_path / "model.safetensors", half, {"format": "pt"})
    again = pretrained.load(tmp_path)
    assert again.weights[0].dtype == np.float32
    np.testing.assert_allclose(again(np.array([[1, 2]])), model(np.array([[1, 2]])), atol=1e-3)


def test_names_without_their_prefix_are_found(tmp_path: Path):
    model = pretrained.build(SMALL)
    pretrained.save(model, tmp_path)
    arrays = dict(ab.saving.read_safetensors(tmp_path / "model.safetensors"))
    short = {name.removeprefix("transformer."): np.array(array) for name, array in arrays.items()}
    short["h.0.attn.bias"] = np.ones((1, 1, 8, 8), "float32")
    ab.saving.write_safetensors(tmp_path / "model.safetensors", short)
    tokens = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(pretrained.load(tmp_path)(tokens), model(tokens))


def test_wrong_files_are_refused_with_all_differences(tmp_path: Path):
    folder = tmp_path / "gpt2"
    pretrained.save(pretrained.build(SMALL), folder)
    arrays = {name: np.array(array) for name, array in ab.saving.read_safetensors(folder / "model.safetensors").items()}
    del arrays["transformer.ln_f.bias"]
    arrays["transformer.wpe.weight"] = arrays["transformer.wpe.weight"][:5]
    arrays["transformer.extra"] = np.zeros(2, "float32")
    ab.saving.write_safetensors(folder / "model.safetensors", arrays)
    with pytest.raises(ValueError, match="does not hold the weights of GPT2LMHeadModel") as caught:
        pretrained.load(folder)
    text = str(caught.value)
    assert "missing: transformer.ln_f.bias of shape (6,)" in text
    assert "transformer.wpe.weight: shape (5, 6) in the file, expected (8, 6)" in text
    assert "unknown: transformer.extra" in text


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"architectures": ["T5ForConditionalGeneration"]}, "Expected one of .*GPT2LMHeadModel"),
        ({"architectures": None}, "is not available"),
        ({"activation_function": "mish"}, "activation_function='mish' is not available"),
        ({"add_cross_attention": True}, "add_cross_attention=True is not available"),
        ({"n_embd": "large"}, "n_embd='large' must be a positive integer"),
        ({"vocab_size": 0}, "vocab_size=0 must be a positive integer"),
        ({"n_layer": -1}, "n_layer=-1 must be a number of blocks"),
        ({"n_layer": 10**9}, "n_layer=1000000000 must be a number of blocks, 0 to 10,000"),
        ({"n_head": 5}, r"n_embd=\d+ is no multiple of n_head=5"),
    ],
)
def test_what_a_config_may_not_have(change: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=match):
        pretrained.build({**SMALL, **change})


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "int8_from_float32"])
def test_weights_are_of_floats(dtype: str):
    with pytest.raises(ValueError, match=f"dtype='{dtype}' must be a floating-point dtype.*quantize='int8'"):
        pretrained.build(SMALL, dtype=dtype)


def test_other_refusals(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="Nothing is downloaded"):
        pretrained.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        pretrained.load(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is no JSON"):
        pretrained.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        pretrained.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(FileNotFoundError, match=r"'pytorch_model\.bin', a pickle, which is not read; expected"):
        pretrained.load(tmp_path)
    folder = tmp_path / "llama"
    shutil.copytree(GOLDEN / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="rope_type='yarn' is not available"):
        pretrained.load(folder)
    with pytest.raises(ValueError, match="factor missing"):
        pretrained.build({**config, "rope_parameters": {"rope_type": "linear"}})
    with pytest.raises(TypeError, match=r"model\.save"):
        pretrained.save(ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)]), tmp_path / "x")  # pyright: ignore
    with pytest.raises(TypeError, match="causal language model"):
        pretrained.decoder(pretrained.load(GOLDEN / "bert"), end_token=0, max_length=4)
    with pytest.raises(ValueError, match="exceeds the 8 positions"):
        pretrained.decoder(pretrained.build(SMALL), end_token=0, max_length=9)
    with pytest.raises(ValueError, match=r"9 tokens; it has positions for at most 8 \(n_positions\)"):
        pretrained.build(SMALL)(np.ones((1, 9), "int32"))
    bert = pretrained.load(GOLDEN / "bert")
    most = bert.config["max_position_embeddings"]
    with pytest.raises(ValueError, match=rf"at most {most} \(max_position_embeddings\)"):
        bert(np.ones((1, most + 1), "int32"))
    with pytest.raises(ValueError, match="a dict of 'tokens' and 'mask'"):
        pretrained.build(SMALL)({"tokens": np.array([[1]]), "masks": np.array([[True]])})


def test_export_with_the_signatures_of_the_page(tmp_path: Path):
    tokens = ab.InputSpec(shape=(None, None), dtype="int32", name="tokens")
    mask = ab.InputSpec(shape=(None, None), dtype="bool", name="mask")
    batch = np.array([[1, 2, 3], [4, 5, 6]], "int32")
    masked = {"tokens": batch, "mask": np.array([[True, True, True], [True, True, False]])}
    model = pretrained.build(SMALL)
    for name, signature, x in (("plain", tokens, batch), ("masked", {"tokens": tokens, "mask": mask}, masked)):
        model.export(tmp_path / name, verbose=False, input_signature=[signature])
        served = ab.serving.load(tmp_path / name)(x)
        np.testing.assert_allclose(served, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="give input_signature"):
        model.export(tmp_path / "none")


FRESH_PROCESS = """
import sys
import anabranch as ab
assert "anabranch.framework.pretrained.gpt2" not in sys.modules
for path in sys.argv[1:]:
    ab.load_model(path)
"""


def test_a_process_that_built_no_pretrained_model_reads_their_files(tmp_path: Path):
    paths = [tmp_path / f"{name}.keras" for name in NAMES]
    for name, path in zip(NAMES, paths, strict=True):
        pretrained.load(GOLDEN / name).save(path)
    command = [sys.executable, "-W", "error", "-c", FRESH_PROCESS, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_registered_classes_of_anabranch_are_imported_when_a_file_names_them():
    folder = Path(pretrained.__file__).parent
    for path in folder.glob("*.py"):
        importlib.import_module(f"anabranch.framework.pretrained.{path.stem}")
    names = [name for name in ab.saving.get_custom_objects() if name.startswith("anabranch.pretrained>")]
    assert set(names) == {name for name in registry._registered_to_come if name.startswith("anabranch.pretrained>")}
    assert {registry._registered_to_come[name] for name in names} == {
        ab.saving.get_registered_object(name).__module__ for name in names
    }
