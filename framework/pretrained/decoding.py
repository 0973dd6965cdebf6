"""Generation by language models of public architectures, with keys and values kept from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine import ops
from .base import PretrainedModel

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..serving.decoding.decoder import Decoder


def decoder(model: PretrainedModel, *, end_token: int, max_length: int, slots: int = 32) -> Decoder:
    """Make a decoder, which generates many sequences at once.

    Args:
        model: a causal language model that `load` or `build` gave, quantised or not.
        end_token: the token that ends a sequence.
        max_length: the largest number of tokens of a sequence, those of its prompt included.
        slots: how many sequences are computed at once; see `ab.serving.Decoder`.

    Returns:
        The decoder: ``decoder.generate(prompts)``, ``decoder.export(folder)``.

    Raises:
        TypeError: the model is not a causal language model.
        ValueError: it has fewer positions.

    >>> import anabranch as ab
    >>> config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_positions": 8, "n_embd": 6, "n_head": 2,
    ...           "n_layer": 1}
    >>> found = decoder(ab.pretrained.build(config), end_token=0, max_length=8, slots=2).generate([[1, 2], [3]])
    >>> len(found)
    2
    """
    from ..serving.decoding.decoder import Decoder

    causal: Any = model
    if not isinstance(model, PretrainedModel) or not hasattr(model, "step"):
        raise TypeError(
            f"pretrained.decoder takes a causal language model of a public architecture, got {type(model).__name__}. "
            "Others are given to ab.serving.Decoder with a step of their own."
        )
    positions = model.config.get("n_positions")
    if positions is not None and max_length > positions:
        raise ValueError(f"max_length={max_length} exceeds the {positions} positions that the model has.")
    dtype = model.compute_dtype

    def begin(rows: Tensor) -> object:
        caches = []
        for heads, size in causal.cache_sizes():
            caches.append(tuple(ops.zeros((rows, max_length, heads, size), dtype) for _ in range(2)))
        return {"caches": caches, "start": ops.zeros((rows,), "int32")}

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, dict[str, object]]:
        logits, caches = causal.step(ops.expand_dims(tokens, 1), states["caches"], states["start"])
        return logits[:, 0], {"caches": caches, "start": states["start"] + 1}

    def prefill(tokens: Tensor, lengths: Tensor, states: Tensor) -> tuple[Tensor, dict[str, object]]:
        logits, caches = causal.step(tokens, states["caches"], states["start"])
        last = ops.expand_dims(ops.maximum(lengths - 1, 0), 1)
        chosen = ops.take_along_axis(logits, ops.expand_dims(last, 2), axis=1)
        return chosen[:, 0], {"caches": caches, "start": states["start"] + lengths}

    return Decoder(step, begin, prefill=prefill, end_token=end_token, max_length=max_length, slots=slots, row_wise=True)
