"""Random small models of transformers and adapters of PEFT, in both directions, with the real packages.

They run in a process of their own, by the Python that TRANSFORMERS_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import lora, pretrained

pytestmark = pytest.mark.slow
ROUNDS = 4

MAKING = """
import json, pathlib, sys
import numpy as np, torch, transformers, peft
folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
for path in sorted(folder.glob("*.json")):
    case = json.loads(path.read_text())
    cls = getattr(transformers, case["architecture"])
    model = cls(cls.config_class(**case["options"])).eval()
    given = {key: torch.tensor(value) for key, value in np.load(path.with_suffix(".inputs.npz")).items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
        for key, buffer in model.named_buffers():
            if "running" in key:
                buffer.add_(torch.rand_like(buffer) * 0.5)
        model.save_pretrained(path.with_suffix(""))
        found = model(**given)
        arrays = {"logits": getattr(found, "logits", None) if hasattr(found, "logits") else found.last_hidden_state}
        if case["modules"]:
            model = peft.get_peft_model(model, peft.LoraConfig(**case["modules"]))
            for key, weight in model.named_parameters():
                if "lora_" in key:
                    torch.nn.init.normal_(weight, std=0.3)
            model.eval().save_pretrained(path.with_suffix("") / "adapters")
            arrays["adapted"] = model(**given).logits
    np.savez(path.with_suffix(".found.npz"), **{key: value.numpy() for key, value in arrays.items()})
"""

OPENING = """
import json, pathlib, sys
import numpy as np, torch, transformers, peft
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.json")):
    case, own = json.loads(path.read_text()), folder / "ours" / path.stem
    model, report = getattr(transformers, case["architecture"]).from_pretrained(own, output_loading_info=True)
    wrong = [key for kind, keys in report.items() for key in keys if "num_batches_tracked" not in str(key)]
    assert not wrong, (path.stem, wrong)
    given = {key: torch.tensor(value) for key, value in np.load(path.with_suffix(".inputs.npz")).items()}
    with torch.no_grad():
        found = model.eval()(**given)
        arrays = {"logits": getattr(found, "logits", None) if hasattr(found, "logits") else found.last_hidden_state}
        if case["modules"]:
            arrays["adapted"] = peft.PeftModel.from_pretrained(model, own / "adapters").eval()(**given).logits
    np.savez(path.with_suffix(".opened.npz"), **{key: value.numpy() for key, value in arrays.items()})
"""


def run(script: str, folder: Path) -> None:
    python = os.environ.get("TRANSFORMERS_PYTHON")
    if python is None:
        pytest.skip("TRANSFORMERS_PYTHON names no Python with transformers, peft and torch")
    result = subprocess.run(
        [python, "-c", script, str(folder)], capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


def random_case(kind: str, rng: np.random.Generator) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Return an architecture, its settings, and those of adapters."""

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    heads, layers = one(1, 2, 4), one(1, 2, 3)
    width = heads * one(4, 6, 8)
    sizes = {
        "vocab_size": int(rng.integers(12, 40)),
        "hidden_size": width,
        "intermediate_size": one(8, 12, 20),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 24,
    }
    adapters = {"r": one(1, 2, 3), "lora_alpha": one(1, 4, 8)}
    if kind == "gpt2":
        options = {
            "vocab_size": sizes["vocab_size"],
            "n_positions": 24,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "activation_function": one("gelu_new", "relu", "gelu"),
        }
        return "GPT2LMHeadModel", options, {**adapters, "target_modules": ["c_attn", "c_proj", "c_fc"]}
    if kind in ("bert_masked", "bert", "bert_classes"):
        names = {"bert_masked": "BertForMaskedLM", "bert": "BertModel", "bert_classes": "BertForSequenceClassification"}
        sizes |= {"hidden_act": one("gelu", "relu", "gelu_new"), "num_labels": one(2, 5)}
        return names[kind], sizes, None
    if kind == "vit":
        sizes |= {"image_size": 16, "patch_size": one(4, 8), "num_labels": one(2, 5), "qkv_bias": one(True, False)}
        return "ViTForImageClassification", sizes, None
    if kind == "resnet":
        count = one(1, 2, 3)
        options = {
            "embedding_size": one(4, 6),
            "hidden_sizes": [8, 12, 16][:count],
            "depths": [one(1, 2) for _ in range(count)],
            "layer_type": one("basic", "bottleneck"),
            "downsample_in_first_stage": one(True, False),
            "num_labels": one(2, 5),
        }
        return "ResNetForImageClassification", options, None
    sizes["num_key_value_heads"] = one(*[count for count in (1, 2, 4) if heads % count == 0])
    sizes["tie_word_embeddings"] = one(True, False)
    sizes["rope_theta"] = one(100.0, 10000.0)
    target = {**adapters, "target_modules": one(["q_proj", "down_proj"], ["k_proj", "v_proj", "o_proj", "gate_proj"])}
    if kind == "llama":
        return "LlamaForCausalLM", sizes | {"attention_bias": one(True, False), "mlp_bias": one(True, False)}, target
    if kind == "mistral":
        return "MistralForCausalLM", sizes | {"sliding_window": one(None, 2, 4)}, target
    return "Qwen2ForCausalLM", sizes, target


KINDS = ("gpt2", "llama", "mistral", "qwen2", "bert_masked", "bert", "bert_classes", "vit", "resnet")


def inputs_of(architecture: str, options: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    if "Image" in architecture:
        return {"pixel_values": rng.normal(size=(2, 3, 16, 16)).astype("float32")}
    mask = np.ones((2, 9), "int64")
    mask[1, 6:] = 0
    return {"input_ids": rng.integers(0, options["vocab_size"], (2, 9)), "attention_mask": mask}


def test_random_models_and_adapters_in_both_directions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for number in range(ROUNDS):
            architecture, options, modules = random_case(kind, rng)
            case = {"architecture": architecture, "options": options, "modules": modules}
            (tmp_path / f"{kind}_{number}.json").write_text(json.dumps(case))
            np.savez(tmp_path / f"{kind}_{number}.inputs.npz", **inputs_of(architecture, options, rng))
    run(MAKING, tmp_path)
    names = sorted(path.stem for path in tmp_path.glob("*.json"))
    assert len(names) == len(KINDS) * ROUNDS
    expected = {name: logits_and_files(tmp_path, name, rng) for name in names}
    run(OPENING, tmp_path)
    for name, values in expected.items():
        opened, counts = np.load(tmp_path / f"{name}.opened.npz"), counted(tmp_path, name)
        assert set(opened.files) == set(values)
        for key, value in values.items():
            np.testing.assert_allclose(
                opened[key][counts], value[counts], rtol=1e-3, atol=1e-5, err_msg=f"{name} {key}"
            )


def counted(folder: Path, name: str) -> Any:
    """Return which logits count: what is given at masked places is arbitrary."""
    arrays, found = np.load(folder / f"{name}.inputs.npz"), np.load(folder / f"{name}.found.npz")["logits"]
    return arrays["attention_mask"].astype(bool) if found.ndim == 3 else slice(None)


def logits_and_files(folder: Path, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Compare with what transformers gives; return what a model of other weights gives that is written beside."""
    case, golden = json.loads((folder / f"{name}.json").read_text()), np.load(folder / f"{name}.found.npz")
    given, counts = np.load(folder / f"{name}.inputs.npz"), counted(folder, name)
    if "pixel_values" in given:
        x: Any = given["pixel_values"].transpose(0, 2, 3, 1)
    else:
        x = {"tokens": given["input_ids"].astype("int32"), "mask": given["attention_mask"].astype(bool)}
    model: Any = pretrained.load(folder / name)

    def logits() -> Any:
        found = model.predict(x, verbose=0)
        return found["hidden"] if isinstance(found, dict) else found

    np.testing.assert_allclose(logits()[counts], golden["logits"][counts], rtol=1e-3, atol=1e-5, err_msg=name)
    for weight in model.weights:
        if weight.trainable:
            weight.assign(weight.numpy() + rng.normal(size=weight.shape) * 0.05)
    values = {"logits": logits()}
    own = folder / "ours" / name
    pretrained.save(model, own, max_shard_size="6KB")
    if case["modules"]:
        model = pretrained.load(folder / name)
        assert lora.load(model, folder / name / "adapters")
        np.testing.assert_allclose(logits()[counts], golden["adapted"][counts], rtol=1e-3, atol=1e-5, err_msg=name)
        adapters = own / "adapters"
        lora.save(model, adapters)
        model = pretrained.load(own)
        lora.load(model, adapters)
        values["adapted"] = logits()
    return values


def test_there_are_models_of_all_architectures() -> None:
    rng = np.random.default_rng(0)
    assert {random_case(kind, rng)[0] for kind in KINDS} | {"MistralForCausalLM"} <= set(ab.pretrained.architectures())
