"""Default names of layers, optimizers and metrics: ``dense``, ``dense_1``, unique in the process."""

from __future__ import annotations

import re

_counts: dict[str, int] = {}

# A class that Keras publishes under another name than the one from which it makes names and paths.
_NAMED_OTHERWISE = {"GroupQueryAttention": "grouped_query_attention"}


def to_snake_case(name: str) -> str:
    """Return a class name as Keras writes it in layer names and file paths.

    >>> [to_snake_case(name) for name in ("LSTMCell", "GlobalAveragePooling1D", "StackedRNNCells", "PReLU")]
    ['lstm_cell', 'global_average_pooling1d', 'stacked_rnn_cells', 'p_re_lu']
    """
    if name in _NAMED_OTHERWISE:
        return _NAMED_OTHERWISE[name]
    words = re.sub(r"\W+", "", name)
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", words)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def unique_name(prefix: str) -> str:
    """Return `prefix` at its first use, then ``prefix_1``, ``prefix_2`` and so on, until `reset_names`."""
    count = _counts.get(prefix, 0)
    _counts[prefix] = count + 1
    return prefix if count == 0 else f"{prefix}_{count}"


def name_for(instance: object) -> str:
    """Return a unique default name from the instance's class."""
    return unique_name(to_snake_case(type(instance).__name__))


def reset_names() -> None:
    """Start counting again (``utils.clear_session``)."""
    _counts.clear()
