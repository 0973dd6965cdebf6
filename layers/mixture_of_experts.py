"""`MixtureOfExperts`: many layers, of which each token is sent through a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import Tensor, Variable
from ..engine.objects import initializers
from ..engine.objects.arguments import check_numbers, check_optional_numbers
from ..engine.objects.identifiers import InitializerLike
from ..engine.objects.tracking import optional_metric
from ..engine.ops.base import TensorLike
from ..engine.ops.random import samplers as random
from .core.dense import known_features, positive_int
from .core.input_spec import known_shape
from .core.layer import Layer
from .core.layer_config import config_from_signature
from .core.weight import Weight, WeightSpec
from .recurrent.step_rows import live_rows, rows_live
from .recurrent.step_sums import sum_over_steps

if TYPE_CHECKING:
    from ..engine.graph import Shape
    from ..engine.objects.tracking import TrackedMetric
    from .core.options import LayerOptions


_LEAST_NOISE = 1e-2  # what is divided by; as in the authors' own program


@config_from_signature(expert="experts")
class MixtureOfExperts(Layer):
    """Sends each token to a few of several experts, chosen by a gate, and adds up what they make of it.

    Args:
        num_experts: how many experts there are.
        expert: a function without arguments that makes a layer, called once for each expert; or a list of the layers.
            Any layer that maps ``(tokens, features)`` to ``(tokens, ...)``; the number of tokens may be 0.
        k: how many experts each token is sent to; by expert choice, how many it is on average.
        capacity_factor: None to drop no token. Else an expert takes at most ``capacity_factor * tokens * k /
            num_experts`` tokens, rounded up; first choices go before second ones, earlier tokens before later ones.
            For those that are left over the expert adds nothing. By expert choice, what takes the place of `k`: each
            expert takes ``capacity_factor * tokens / num_experts``.
        routing: who chooses: ``"token_choice"``, each token `k` experts, or ``"expert_choice"``, each expert as many
            tokens as every other. The latter needs no losses and no noise: those arguments are for the former.
        importance_loss: the weight, in the model's loss, of the squared coefficient of variation of the experts'
            importance: the sum of their gates.
        load_loss: the weight of that of their load, a smooth estimate of the number of tokens. Without noise it is the
            weight of the Switch Transformer's loss instead, ``num_experts * sum(share of tokens * mean gate)``.
        noisy: in training, choose by logits with normal noise, whose size for each expert is learnt.
        gate_initializer, noise_initializer: first values of the matrices that give logits and size of the noise.
        seed: an integer, for the noise.
        dropped_metric: a metric such as ``ab.metrics.Sum("dropped")`` to keep up to date, which `fit` then logs: what
            is added to `dropped_tokens`. It may also be set later.

    Inputs are ``(..., features)``, each vector a token. The gates of a token are the softmax of its `k` largest logits;
    with ``k=1``, where that would be 1 and teach the gate nothing, the largest of the softmax of all. Tokens are split
    by expert, so that each expert computes on those alone that chose it. By expert choice, an expert takes the tokens
    whose softmax of all logits is largest for it, and that is the gate; a token may be taken by several experts or by
    none. Masked tokens go to no expert; their outputs are 0. In a cell, a call without a mask leaves out the rows that
    do not take the step; there the first axis of the inputs has to be the batch.

    Attributes:
        experts: the layers.
        dropped_tokens: a variable, how often in the latest batch a token found its expert full; by expert choice, how
            many tokens no expert took.
        expert_tokens: a variable, how many tokens each expert took in the latest batch.

    Raises:
        ValueError: an argument is out of range, the function gives no new layer each time, the mask (or a cell's rows)
            does not fit, or outputs of experts differ in shape.
        TypeError: `dropped_metric` is not a metric.

    Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017,
    arXiv:1701.06538; Fedus et al., "Switch Transformers", 2021, arXiv:2101.03961; Zhou et al., "Mixture-of-Experts with
    Expert Choice Routing", 2022, arXiv:2202.09368.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> mixture = ab.layers.MixtureOfExperts(4, lambda: ab.layers.Dense(5, activation="relu"))
    >>> mixture(np.ones((2, 3, 8), "float32")).shape
    (2, 3, 5)
    >>> int(mixture.expert_tokens.numpy().sum())
    12
    """

    untracked: ClassVar[frozenset[str]] = Layer.untracked | {"dropped_tokens", "expert_tokens"}

    gate_kernel: Weight
    noise_kernel: Weight | None

    def __init__(
        self,
        num_experts: int,
        expert: Callable[[], Layer] | Sequence[Layer],
        k: int = 2,
        capacity_factor: float | None = None,
        importance_loss: float = 0.1,
        load_loss: float = 0.1,
        noisy: bool = True,
        gate_initializer: InitializerLike = "glorot_uniform",
        noise_initializer: InitializerLike = "zeros",
        seed: int | None = None,
        routing: str = "token_choice",
        dropped_metric: TrackedMetric | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.num_experts = positive_int("MixtureOfExperts", "num_experts", num_experts)
        self.k = positive_int("MixtureOfExperts", "k", k)
        if k > num_experts:
            raise ValueError(f"MixtureOfExperts: k must be at most num_experts={num_experts}, got k={k}.")
        check_optional_numbers("MixtureOfExperts", capacity_factor=capacity_factor)
        check_numbers("MixtureOfExperts", importance_loss=importance_loss, load_loss=load_loss)
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(
                f"MixtureOfExperts: capacity_factor must be positive, or None to drop no token, got {capacity_factor}."
            )
        if routing not in ("token_choice", "expert_choice"):
            raise ValueError(f"MixtureOfExperts: routing must be 'token_choice' or 'expert_choice', got {routing!r}.")
        self.experts: list[Any] = _made(expert, num_experts)
        self.routing = routing
        self.capacity_factor = capacity_factor
        self.importance_loss = importance_loss
        self.load_loss = load_loss
        self.noisy = noisy
        self.gate_initializer = initializers.get(gate_initializer, "gate_initializer")
        self.noise_initializer = initializers.get(noise_initializer, "noise_initializer")
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self.supports_masking = True
        self.dropped_tokens = _counter((), "dropped_tokens")
        self.expert_tokens = _counter((num_experts,), "expert_tokens")
        self.dropped_metric = optional_metric("MixtureOfExperts", "dropped_metric", dropped_metric)

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        shape = (known_features(self, input_shape), self.num_experts)
        is_noisy = self.noisy and self.routing == "token_choice"
        return (
            WeightSpec("gate_kernel", shape, options="gate"),
            WeightSpec("noise_kernel", shape, options="noise", present=is_noisy),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        for expert in self.experts:
            if not expert.built:
                expert.build((None, known_features(self, input_shape)))
                expert.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None, training: bool | None = False) -> Tensor:
        dims = ops.shape(inputs)
        shape = known_shape(inputs.shape)
        tokens = ops.reshape(inputs, (-1, known_features(self, shape)))
        live = self._live_of_cell(inputs) if mask is None else self._live(mask, len(shape))
        if self.routing == "expert_choice":
            outputs = self._experts_choose(tokens, live)
        else:
            routes = self._routes(tokens, live, training)
            self._balance(routes)
            outputs = self._run_experts(tokens, routes)
        return ops.reshape(outputs, (*dims[:-1], *ops.shape(outputs)[1:]))

    def _live(self, mask: Tensor, rank: int) -> Tensor:
        """Return the mask as ``(tokens,)``."""
        if mask.ndim != rank - 1:
            raise ValueError(
                f"Layer {self.name!r} (MixtureOfExperts): mask must have the inputs' shape without the last axis, "
                f"{rank - 1} axes, got a mask of shape {mask.shape}."
            )
        return ops.reshape(ops.cast(mask, "bool"), (-1,))

    def _live_of_cell(self, inputs: Tensor) -> Tensor | None:
        """Return a mask of the tokens of rows that take the step, ``(tokens,)``; None for all, as outside of a cell."""
        rows = live_rows()
        if rows is None:
            return None
        shape = known_shape(inputs.shape)
        rank = len(shape)
        known = {*(rows.shape or ()), shape[0]} - {None}
        if rank == 1 or len(known) > 1:
            raise ValueError(
                f"Layer {self.name!r} (MixtureOfExperts) is part of a cell whose rows do not all take each step, so "
                f"that the first axis of its inputs must be the rows, {rows.shape}, got inputs of shape "
                f"{inputs.shape}. Say by mask=... which tokens count; layers.live_rows() says which rows do."
            )
        if rank == 2:
            return rows
        spread = ops.broadcast_to(ops.reshape(rows, (-1, *[1] * (rank - 2))), ops.shape(inputs)[:-1])
        return ops.reshape(spread, (-1,))

    # --- the gate -------------------------------------------------------------------------------------------

    def _routes(self, tokens: Tensor, live: Tensor | None, training: bool | None) -> _Routes:
        logits = clean = self._logits(tokens)
        scale = None
        if self.noise_kernel is not None:
            scale = ops.softplus(ops.cast(ops.matmul(tokens, self.noise_kernel), self.variable_dtype)) + _LEAST_NOISE
            if training:
                noise = random.normal(ops.shape(clean), dtype=clean.dtype, seed=self.seed_generator)
                logits = clean + noise * scale
        values, order = ops.top_k(logits, min(self.k + 1, self.num_experts))
        chosen = order[:, : self.k]
        if self.k == 1:
            gates = ops.take_along_axis(ops.softmax(logits), chosen, axis=1)
        else:
            gates = ops.softmax(values[:, : self.k])
        routes = _Routes(clean, logits, scale, values, chosen, gates, live)
        return replace(routes, gates=routes.among_live(gates))

    def _logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of the experts for each token, ``(tokens, experts)``."""
        return ops.cast(ops.matmul(tokens, self.gate_kernel), self.variable_dtype)

    def _balance(self, routes: _Routes) -> None:
        """Add the losses that keep a few experts from getting all tokens."""
        if self.importance_loss:
            numbers, gates = ops.reshape(routes.chosen, (-1,)), ops.reshape(routes.gates, (-1,))
            self.add_loss(self.importance_loss * _variation(ops.segment_sum(gates, numbers, self.num_experts)))
        if self.load_loss and routes.scale is None:
            self.add_loss(self.load_loss * self._switch_loss(routes))
        elif self.load_loss and self.k < self.num_experts:  # otherwise each expert gets all tokens
            self.add_loss(self.load_loss * _variation(self._smooth_load(routes)))

    def _smooth_load(self, routes: _Routes) -> Tensor:
        """Compute ``(experts,)``: the sums of the chances to be chosen if the noise on that expert were drawn again."""
        last_in, first_out = routes.values[:, self.k - 1 : self.k], routes.values[:, self.k : self.k + 1]
        assert routes.scale is not None  # there is noise where this loss is
        threshold = ops.where(routes.logits > first_out, first_out, last_in)
        normal = (routes.clean - threshold) / (routes.scale * 2**0.5)
        return ops.sum(routes.among_live((1 + ops.erf(normal)) / 2), axis=0)

    def _switch_loss(self, routes: _Routes) -> Tensor:
        probabilities = routes.among_live(ops.softmax(routes.logits))
        chosen = routes.among_live(ops.sum(ops.one_hot(routes.chosen, self.num_experts, dtype=probabilities.dtype), 1))
        shares = ops.divide_no_nan(ops.sum(chosen, axis=0), ops.sum(chosen))
        means = ops.divide_no_nan(ops.sum(probabilities, axis=0), ops.sum(probabilities))
        return self.num_experts * ops.sum(shares * means)

    # --- the experts ----------------------------------------------------------------------------------------

    def _run_experts(self, tokens: Tensor, routes: _Routes) -> Tensor:
        """Run the experts on tokens split by expert, first choices before second ones; stitch and sum the results."""
        count = ops.shape(tokens)[0]
        numbers = ops.transpose(routes.chosen)
        if routes.live is not None:
            numbers = ops.where(routes.live, numbers, self.num_experts)
        parts = ops.dynamic_partition(ops.arange(count * self.k), ops.reshape(numbers, (-1,)), self.num_experts + 1)
        left = [] if routes.live is None else parts[self.num_experts :]
        live_count = count if routes.live is None else ops.sum(routes.live)
        taken, dropped = self._within_capacity(parts[: self.num_experts], live_count)
        results = self._results(tokens, [places % count for places in taken])
        for places in [*left, *dropped]:
            results.append(ops.zeros((ops.shape(places)[0], *ops.shape(results[0])[1:]), results[0].dtype))
        made = ops.dynamic_stitch([*taken, *left, *dropped], results)
        gates = ops.cast(ops.transpose(routes.gates), made.dtype)
        made = ops.reshape(made, (self.k, count, *ops.shape(made)[1:]))
        return ops.sum(made * ops.reshape(gates, (self.k, count, *[1] * (len(made.shape or ()) - 2))), axis=0)

    def _results(self, tokens: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
        """Return the results of each expert for its tokens, whose places are given."""
        with rows_live(None, other_rows=True):
            results = [expert(ops.take(tokens, own, axis=0)) for expert, own in zip(self.experts, places, strict=True)]
        for number, result in enumerate(results):
            if not _agree(results[0].shape, result.shape):
                raise ValueError(
                    f"Layer {self.name!r} (MixtureOfExperts) adds up what experts make of a token, so that their "
                    f"outputs must have one shape, but expert 0, {self.experts[0].name!r}, gives "
                    f"{_per_token(results[0])} and expert {number}, {self.experts[number].name!r}, "
                    f"{_per_token(result)}. Make them all of the same width."
                )
        return results

    def _within_capacity(self, parts: list[Tensor], count: TensorLike) -> tuple[list[Tensor], list[Tensor]]:
        """Return what the expert of each part takes, and what is left over."""
        taken, dropped = parts, list[Tensor]()
        if self.capacity_factor is not None:
            capacity = self._capacity(count, self.capacity_factor * self.k)
            taken, dropped = [part[:capacity] for part in parts], [part[capacity:] for part in parts]
        sizes = ops.stack([ops.shape(part)[0] for part in taken])
        lost = ops.sum(ops.stack([ops.shape(part)[0] for part in dropped])) if dropped else ops.zeros((), "int32")
        sum_over_steps([lost, sizes], self._note)
        return taken, dropped

    def _capacity(self, count: TensorLike, experts_a_token: float) -> Tensor:
        """Return how many of `count` tokens an expert takes, if each token goes to so many experts on average."""
        share = experts_a_token / self.num_experts
        return ops.cast(ops.ceil(ops.cast(count, "float64") * share), "int32")

    def _experts_choose(self, tokens: Tensor, live: Tensor | None) -> Tensor:
        """Let each expert choose tokens; add up the results, weighted by their gates, at the tokens' places."""
        count = ops.shape(tokens)[0]
        scores = ops.transpose(ops.softmax(self._logits(tokens)))  # (experts, tokens)
        live_count = count if live is None else ops.sum(live)
        capacity = self._capacity(live_count, self.capacity_factor or self.k)
        ranks = scores if live is None else ops.where(live, scores, -ops.ones_like(scores))  # behind all others
        chosen = ops.argsort(-ranks, axis=1)[:, : ops.minimum(capacity, live_count)]
        gates = ops.take_along_axis(scores, chosen, axis=1)
        results = self._results(tokens, [chosen[number] for number in range(self.num_experts)])
        made = ops.concatenate(results, axis=0)
        weights = ops.reshape(ops.cast(gates, made.dtype), (-1, *[1] * (len(made.shape or ()) - 1)))
        places = ops.reshape(chosen, (-1,))
        times = ops.segment_sum(ops.ones_like(places), places, count)
        left = live_count - ops.sum(times > 0)
        sizes = ops.broadcast_to(ops.shape(chosen)[1], (self.num_experts,))
        sum_over_steps([left, sizes], self._note)
        return ops.segment_sum(made * weights, places, count)

    def _note(self, dropped: Tensor, taken: Tensor) -> None:
        self.dropped_tokens.assign(ops.cast(dropped, "int32"))
        self.expert_tokens.assign(ops.cast(taken, "int32"))
        if self.dropped_metric is not None:
            self.dropped_metric.update_state(ops.cast(dropped, "float32"))


@dataclass(frozen=True)
class _Routes:
    """The gate's choice for each token.

    Args:
        clean, logits: ``(tokens, experts)``, without and with noise.
        scale: of the noise, ``(tokens, experts)``; None for no noise.
        values: the largest logits, ``(tokens, k + 1)``, or ``(tokens, experts)`` if there are no more.
        chosen, gates: the numbers of the experts and their weights, ``(tokens, k)``.
        live: ``(tokens,)``, which tokens count; None for all.
    """

    clean: Tensor
    logits: Tensor
    scale: Tensor | None
    values: Tensor
    chosen: Tensor
    gates: Tensor
    live: Tensor | None

    def among_live(self, values: Tensor) -> Tensor:
        """Compute ``(tokens, ...)``, with 0 for tokens that do not count."""
        if self.live is None:
            return values
        return ops.where(ops.expand_dims(self.live, -1), values, ops.zeros_like(values))


def _made(expert: object, count: int) -> list[Layer]:
    if isinstance(expert, Layer):
        raise ValueError(
            "MixtureOfExperts: expert must be a function that makes a layer, so that each expert has weights of its "
            f"own, got the layer {expert.name!r} itself. Write expert=lambda: layers.{type(expert).__name__}(...), or "
            f"give a list of {count} layers."
        )
    if not callable(expert) and not isinstance(expert, (list, tuple)):
        raise ValueError(
            "MixtureOfExperts: expert must be a function that makes a layer, or a list of layers; got "
            f"expert={expert!r}. Write expert=lambda: layers.Dense(8)."
        )
    experts: list[Any] = list(expert) if isinstance(expert, (list, tuple)) else [expert() for _ in range(count)]
    wrong = next((layer for layer in experts if not isinstance(layer, Layer)), None)
    if wrong is not None:
        raise ValueError(f"MixtureOfExperts: expert must be a function that returns a layer, got {wrong!r} from it.")
    if len({id(layer) for layer in experts}) != count or len(experts) != count:
        raise ValueError(
            f"MixtureOfExperts: expert must give {count} different layers, got {len({id(e) for e in experts})}. Make "
            "the layer inside the function: expert=lambda: layers.Dense(8)."
        )
    return experts


def _counter(shape: tuple[int, ...], name: str) -> Variable:
    """Make a count of the latest batch: replicas of a model count their rows, and it is the sum."""
    return Variable(np.zeros(shape, "int32"), trainable=False, name=name, aggregation="sum")


def _agree(one: Shape, other: Shape) -> bool:
    """Test whether outputs of these shapes can be of one shape, the number of tokens aside."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one[1:], other[1:], strict=True)
    )


def _per_token(result: Tensor) -> str:
    return f"({', '.join(['tokens', *map(str, (result.shape or ())[1:])])})"


def _variation(values: Tensor) -> Tensor:
    """Return the squared coefficient of variation: the variance over the square of the mean."""
    return ops.divide_no_nan(ops.var(values), ops.square(ops.mean(values)))
