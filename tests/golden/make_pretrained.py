"""Golden folders: small random models that transformers saved, with an input and the logits for it.

Run by hand, where torch and transformers are installed: ``python tests/golden/make_pretrained.py`` (see README.md).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

FOLDER = Path(__file__).resolve().parent / "files" / "pretrained"
SIZES = {
    "vocab_size": 20,
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 20, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "rope_parameters": LLAMA3}),
    "llama_tied": (
        "LlamaForCausalLM",
        {**SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR},
    ),
    "mistral": ("MistralForCausalLM", {**SIZES, "num_key_value_heads": 1, "sliding_window": 3}),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "num_key_value_heads": 1}),
    "bert_masked": ("BertForMaskedLM", SIZES),
    "bert_classes": ("BertForSequenceClassification", {**SIZES, "num_labels": 3}),
    "bert": ("BertModel", SIZES),
    "vit": ("ViTForImageClassification", {**SIZES, "image_size": 16, "patch_size": 8, "num_labels": 3}),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [8, 16], "depths": [2, 1], "num_labels": 3},
    ),
    "resnet_basic": (
        "ResNetForImageClassification",
        {
            "embedding_size": 4,
            "hidden_sizes": [4, 6],
            "depths": [1, 2],
            "layer_type": "basic",
            "downsample_in_first_stage": True,
            "num_labels": 3,
        },
    ),
}


ADAPTED: dict[str, dict[str, Any]] = {  # the modules that get adapters; PEFT keeps the head of a classifier whole
    "gpt2": {"target_modules": ["c_attn", "c_proj"]},
    "llama": {"target_modules": ["q_proj", "down_proj"]},
    "bert_classes": {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"},
}


def save_adapters(model: Any, name: str, given: dict[str, Any]) -> None:
    """Adapters of random numbers, by PEFT, beside the model, and the logits with them."""
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=6, **ADAPTED[name]))
    for key, weight in adapted.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.eval().save_pretrained(FOLDER / name / "adapters")
    (FOLDER / name / "adapters" / "README.md").unlink(missing_ok=True)
    config = FOLDER / name / "adapters" / "adapter_config.json"
    text = json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": None}, indent=1, sort_keys=True)
    config.write_text(text + "\n", encoding="utf-8")
    with torch.no_grad():
        logits = adapted(**given).logits.numpy()
    np.savez_compressed(FOLDER / name / "adapters" / "golden.npz", logits=logits)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(0)
    for name, (architecture, options) in CASES.items():
        cls = getattr(transformers, architecture)
        model = cls(cls.config_class(**options)).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
            for buffer_name, buffer in model.named_buffers():
                if "running" in buffer_name:
                    buffer.add_(torch.rand_like(buffer) * 0.5)
            if "pixel" in model.main_input_name:
                given = {"pixel_values": torch.randn(2, 3, 16, 16)}
            else:
                mask = torch.ones(2, 7, dtype=torch.long)
                mask[1, 5:] = 0
                given = {"input_ids": torch.randint(0, 20, (2, 7)), "attention_mask": mask}
            found = model(**given)
        model.save_pretrained(FOLDER / name)
        (FOLDER / name / "generation_config.json").unlink(missing_ok=True)
        logits = found.last_hidden_state if architecture == "BertModel" else found.logits
        arrays = {key: value.numpy() for key, value in given.items()}
        np.savez_compressed(FOLDER / name / "golden.npz", logits=logits.numpy(), **arrays)
        if name in ADAPTED:
            save_adapters(model, name, given)
    versions = {one.__name__: one.__version__ for one in (torch, transformers, peft)}
    (FOLDER / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
