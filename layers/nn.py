"""Functions for very many classes, with the names of ``tf.nn``: `anabranch.nn`. (Of Keras's `nn`: `ops.nn`.)"""

from typing import TYPE_CHECKING

from ..engine.common.names_elsewhere import NN_MODULE
from ..engine.objects.on_demand import on_demand
from ..engine.ops.neural.embedding import embedding_lookup
from .vocabulary.candidate_sampling import (
    Candidates,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
from .vocabulary.sampled_losses import nce_loss, sampled_softmax_loss
from .vocabulary.sharded_softmax import sharded_logits, sharded_softmax_loss, sharded_top_k

if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=NN_MODULE)

__all__ = [
    "Candidates",
    "embedding_lookup",
    "fixed_unigram_candidate_sampler",
    "log_uniform_candidate_sampler",
    "nce_loss",
    "sampled_softmax_loss",
    "sharded_logits",
    "sharded_softmax_loss",
    "sharded_top_k",
    "uniform_candidate_sampler",
]
