"""`Bidirectional`: a recurrent layer in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor, flatten
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.objects.trust import own_objects_scope
from ...engine.ops.base import TensorLike
from ..core.calling import TensorOrTensors, one_or_several, signature_of
from ..core.layer import Layer
from ..core.layer_config import config_from_signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from ...engine.graph import Variable
    from ..core.options import LayerOptions


_MERGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "concat": lambda forward, backward: ops.concatenate([forward, backward], axis=-1),
    "sum": lambda forward, backward: forward + backward,
    "ave": lambda forward, backward: (forward + backward) / 2,
    "mul": lambda forward, backward: forward * backward,
}


_SETTINGS = ("go_backwards", "stateful", "return_sequences", "return_state")  # of a recurrent layer


@config_from_signature(layer="forward_layer", weights="")
class Bidirectional(Layer):
    """A recurrent layer over the steps forward, another backward, and their outputs merged (Schuster, Paliwal, 1997).

    Args:
        layer: an `RNN` such as `LSTM`. It is copied, without weights, for both directions.
        merge_mode: ``"concat"``, ``"sum"``, ``"ave"``, ``"mul"``, or None for a pair of outputs.
        weights: first values of the weights, those of `layer` and then those of the backward layer.
        backward_layer: the layer for the other direction, with ``go_backwards`` unlike that of `layer`.

    With sequences returned, outputs at masked steps are 0. ``initial_state`` holds the forward states, then the
    backward ones. With ``sequence_length`` the backward layer begins with each row's own last step.

    Raises:
        ValueError: the layers do not fit together, or `merge_mode` is not one of these.
    """

    def __init__(
        self,
        layer: Layer,
        merge_mode: str | None = "concat",
        weights: Sequence[ArrayLike] | None = None,
        backward_layer: Layer | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        for name, given in (("layer", layer), ("backward_layer", backward_layer)):
            recurrent = isinstance(given, Layer) and all(getattr(given, name, None) is not None for name in _SETTINGS)
            if not (recurrent or given is backward_layer is None):
                raise ValueError(
                    f"Bidirectional takes recurrent layers, such as LSTM(units), got {name}={given!r}. A layer of your "
                    f"own needs the attributes {', '.join(_SETTINGS)}."
                )
        if merge_mode is not None and merge_mode not in _MERGES:
            raise ValueError(
                f"Bidirectional: merge_mode must be one of {', '.join(map(repr, _MERGES))} or None, got {merge_mode!r}."
            )
        super().__init__(**kwargs)
        wrapped: Any = layer  # of the user's class
        self.forward_layer: Any = _copy(layer, "forward_")
        self.backward_layer: Any = backward_layer or _copy(layer, "backward_", go_backwards=not wrapped.go_backwards)
        self._check_layers()
        for part in (self.forward_layer, self.backward_layer):
            # pyrefly: ignore[missing-attribute] - recurrent layers have both
            part.zero_output_for_mask = part.return_sequences
        self.merge_mode = merge_mode
        self._first_weights = weights
        self.stateful = wrapped.stateful
        self.return_sequences = wrapped.return_sequences
        self.return_state = wrapped.return_state
        self.supports_masking = True
        self.input_spec = layer.input_spec

    def _check_layers(self) -> None:
        forward, backward = self.forward_layer, self.backward_layer
        if forward.go_backwards == backward.go_backwards:
            raise ValueError(
                "Bidirectional: layer and backward_layer must have different go_backwards, got "
                f"{forward.go_backwards} for both."
            )
        for name in _SETTINGS[1:]:
            ours, theirs = getattr(forward, name), getattr(backward, name)
            if ours != theirs:
                raise ValueError(
                    f"Bidirectional: layer and backward_layer must have the same {name}, got {ours} and {theirs}."
                )

    def build(self, sequences_shape: Sequence[int | None], initial_state_shape: object = None) -> None:
        for layer in (self.forward_layer, self.backward_layer):
            if not layer.built:
                layer.build(sequences_shape)
        if self._first_weights is not None:
            self.set_weights(self._first_weights)
            self._first_weights = None

    def call(
        self,
        sequences: TensorLike,
        initial_state: Sequence[Tensor] | None = None,
        mask: TensorLike | None = None,
        training: bool | None = None,
        sequence_length: TensorLike | None = None,
        reset: TensorLike | None = None,
    ) -> TensorOrTensors:
        states = [None, None]
        if initial_state is not None:
            half = len(initial_state) // 2
            states = [initial_state[:half], initial_state[half:]]
        given = {"mask": mask, "training": training, "sequence_length": sequence_length, "reset": reset}
        forward = self._run(self.forward_layer, sequences, states[0], given)
        backward = self._run(self.backward_layer, sequences, states[1], given)
        final: tuple[Tensor, ...] = ()
        if self.return_state:
            final = (*forward[1:], *backward[1:])
            forward, backward = forward[0], backward[0]
        if self.return_sequences:
            backward = ops.flip(backward, axis=0 if getattr(self.backward_layer, "time_major", False) else 1)
        merged = (forward, backward) if self.merge_mode is None else (_MERGES[self.merge_mode](forward, backward),)
        return one_or_several((*merged, *final))

    def _run(
        self, layer: Layer, sequences: TensorLike, states: Sequence[Tensor] | None, others: Mapping[str, object]
    ) -> Any:
        """Call one of the layers with as much as its `call` takes."""
        signature = signature_of(type(layer).call)
        given = {"initial_state": states, **others}
        known = {name: value for name, value in given.items() if signature.takes(name) or signature.takes_anything}
        if states is not None and "initial_state" not in known:
            raise ValueError(
                f"Layer {self.name!r} (Bidirectional) was given an initial_state, which the call of {layer.name!r} "
                f"({type(layer).__name__}) does not take."
            )
        if others["sequence_length"] is not None and "sequence_length" not in known:
            raise ValueError(
                f"Layer {self.name!r} (Bidirectional) was given a sequence_length, which the call of {layer.name!r} "
                f"({type(layer).__name__}) does not take."
            )
        return layer(sequences, **known)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Any:
        """Return the steps' mask where all outputs are returned, else None."""
        mask = next(iter(flatten(mask)), None) if self.return_sequences else None
        outputs = [mask, mask] if self.merge_mode is None else [mask]
        if not self.return_state:
            return outputs if self.merge_mode is None else mask
        counts = [len(flatten(layer.state_size)) for layer in (self.forward_layer, self.backward_layer)]
        return outputs + [None] * sum(counts)

    def reset_state(self) -> None:
        """Set the states of both layers to zeros."""
        self.forward_layer.reset_state()
        self.backward_layer.reset_state()

    def reset_states(self) -> None:
        """Set the states of both layers to zeros: another name of `reset_state`."""
        self.reset_state()

    @property
    def states(self) -> tuple[Variable, ...] | None:
        """The states of both stateful layers, the forward one's first; None where there are none."""
        both = self.forward_layer.states, self.backward_layer.states
        if any(states is None for states in both):
            return None
        return tuple(variable for states in both for variable in flatten(states))


def _copy(layer: Layer, prefix: str, **changes: object) -> Layer:
    """Return a layer like `layer`, without its weights."""
    config = serialize_keras_object(layer)
    name = layer.name if layer.name.startswith(prefix) else prefix + layer.name
    config = {**config, "config": {**config["config"], "name": name, **changes}}
    config.pop("build_config", None)
    with own_objects_scope():
        return deserialize_keras_object(config, {type(layer).__name__: type(layer)})
