"""Parts of a model's config that Keras has nothing for, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..models.raw_ops import OWN_OPS

# Layers, cells and optimizers that Keras 3.15 lacks.
_NAMES = """
    AdaptiveComputationTime AttentionCell AttentionRNN CachedMultiHeadAttention CellWrapper ConvLSTMCell DeviceCell
    DropoutCell InceptionBlock LayerNormLSTMCell MixtureOfExperts PeepholeLSTMCell PositionEmbedding ProjectedLSTMCell
    ResidualBlock ResidualCell RotaryEmbedding SampledSoftmax ShardedEmbedding SinePositionEncoding
    TokenAndPositionEmbedding TransformerDecoder TransformerDecoderCell TransformerEncoder TreeLSTM ZoneoutCell
    Frozen LBFGS Lookahead Momentum MovingAverage SWA Selective
"""
NAMES = frozenset(_NAMES.split())


def check_for_keras(config: dict[str, Any]) -> None:
    """Refuse a model's config with parts that Keras lacks.

    Raises:
        ValueError: it has some, with the name of each.
    """
    found = list(dict.fromkeys(_missing(config)))
    if found:
        raise ValueError(
            f"Model {config['config'].get('name')!r} can't be opened by Keras, which has no {', '.join(found)}. Save "
            "it without for_keras=True, for anabranch, or put these parts into a registered Layer of your own, with a "
            "class of the same name for Keras."
        )


def _missing(config: object) -> Iterator[str]:
    if isinstance(config, list):
        for item in config:
            yield from _missing(item)
        return
    if not isinstance(config, dict):
        return
    class_name, module = config.get("class_name"), config.get("module") or ""
    inner = config.get("config")
    name = inner.get("name") if isinstance(inner, dict) else None
    if module == OWN_OPS:
        yield f"op {class_name} ({name!r})"
    elif class_name in NAMES and module.startswith("keras"):
        yield str(class_name) if name is None else f"{class_name} ({name!r})"
    elif class_name == "__complex__":
        yield "complex numbers in files"
    for item in config.values():
        yield from _missing(item)


__all__ = ["check_for_keras"]
