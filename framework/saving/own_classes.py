"""Announces classes of anabranch that no other import brings: they are imported when a file names one."""

from __future__ import annotations

from ...engine.objects.on_demand import modules_by_name
from ...engine.objects.registry import register_builtins_to_come, register_to_come

_FRAMEWORK = __name__.removesuffix(".saving.own_classes")

for _module in ("keras.src.engine.functional", "keras.src.models.functional"):
    register_builtins_to_come(_module, modules_by_name(_FRAMEWORK, {"models.model": "Functional"}))
register_to_come("anabranch", modules_by_name(_FRAMEWORK, {"onnx.importing.layer": "OnnxLayer"}))
register_to_come(
    "anabranch.pretrained",
    modules_by_name(
        f"{_FRAMEWORK}.pretrained",
        {
            "attention": "SelfAttention",
            "bert": "BertForMaskedLM BertForSequenceClassification BertModel",
            "encoder": "EncoderBlock",
            "gpt2": "GPT2Block GPT2LMHeadModel",
            "llama": "LlamaBlock LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM",
            "resnet": "ConvolutionLayer ResidualLayer ResNetForImageClassification",
            "vit": "PatchTokens ViTForImageClassification",
        },
    ),
)
