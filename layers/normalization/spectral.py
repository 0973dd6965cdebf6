"""`SpectralNormalization`: a layer whose kernel is held at spectral norm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import initializers
from ...engine.objects.arguments import check_numbers
from ..core.calling import TensorOrTensors, signature_of
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature

if TYPE_CHECKING:
    from ..core.options import LayerOptions


_LEAST = 1e-12


@config_from_signature()
class SpectralNormalization(Layer):
    """In training, divides the kernel of a layer by its largest singular value before each call (Miyato et al., 2018).

    Args:
        layer: a layer with a ``kernel`` (such as `Dense`) or with ``embeddings``.
        power_iterations: steps of the power iteration by which the singular value is found at each call.

    Weights: those of the layer, and ``vector_u (1, columns)``, with which the next iteration begins.

    Raises:
        ValueError: `layer` is not a layer, or has no kernel; or `power_iterations` is not positive.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.SpectralNormalization(ab.layers.Dense(3), power_iterations=50)
    >>> outputs = layer(np.ones((2, 4), "float32"), training=True)
    >>> float(np.linalg.norm(layer.layer.kernel.numpy(), 2).round(3))
    1.0
    """

    def __init__(self, layer: Layer, power_iterations: int = 1, **kwargs: Unpack[LayerOptions]) -> None:
        if not isinstance(layer, Layer):
            raise ValueError(f"SpectralNormalization takes a layer, got {layer!r}.")
        check_numbers("SpectralNormalization", power_iterations=power_iterations)
        if power_iterations <= 0:
            raise ValueError(f"SpectralNormalization: power_iterations must be positive, got {power_iterations}.")
        super().__init__(**kwargs)
        self.layer: Any = layer  # of the user's class
        self.power_iterations = power_iterations

    def build(self, input_shape: Sequence[int | None]) -> None:
        if not self.layer.built:
            self.layer.build(input_shape)
            self.layer.built = True
        self.input_spec = InputSpec(min_ndim=1, axes={-1: input_shape[-1]})
        kernel = getattr(self.layer, "kernel", None)
        kernel = getattr(self.layer, "embeddings", None) if kernel is None else kernel
        if kernel is None:
            raise ValueError(
                f"Layer {self.name!r} (SpectralNormalization): {type(self.layer).__name__} has neither a kernel nor "
                "embeddings. Wrap a layer such as Dense, Conv2D or Embedding."
            )
        self.kernel = kernel
        self.vector_u = self.add_weight(
            shape=(1, kernel.shape[-1]),
            initializer=initializers.TruncatedNormal(stddev=0.02),
            trainable=False,
            name="vector_u",
        )

    def call(self, inputs: Tensor, training: bool | None = False) -> TensorOrTensors:
        if training:
            self._normalize()
        takes_training = signature_of(type(self.layer).call).takes("training")
        outputs = self.layer(inputs, training=training) if takes_training else self.layer(inputs)
        return ops.cast(outputs, inputs.dtype) if inputs.dtype.kind == "f" else outputs

    def _normalize(self) -> None:
        """Assign the kernel over its norm, and the vector of the iteration; a kernel of zeros stays as it is."""
        kernel = ops.convert_to_tensor(self.kernel)
        weights = ops.reshape(kernel, (-1, self.kernel.shape[-1]))
        first = ops.convert_to_tensor(self.vector_u)
        fixed = ops.stop_gradient(weights)
        u = v = ops.stop_gradient(first)
        for _ in range(self.power_iterations):
            v = _unit(ops.matmul(u, ops.transpose(fixed)))
            u = _unit(ops.matmul(v, fixed))
        norm = ops.reshape(ops.matmul(ops.matmul(v, weights), ops.transpose(u)), ())
        is_zero = ops.all(ops.equal(weights, 0.0))
        self.vector_u.assign(ops.where(is_zero, first, u))
        self.kernel.assign(kernel / ops.where(is_zero, ops.ones_like(norm), norm))


def _unit(vector: Tensor) -> Tensor:
    return ops.l2_normalize(vector, epsilon=_LEAST)
