"""Dtype policies of quantised layers: what the weights are rounded to, and the dtypes of everything else."""

from __future__ import annotations

from typing import Any

from .floats import is_mixed, layer_dtype
from .policy import DTypePolicy, dtype_policy
from .registry import register_builtins

QUANTIZATION_MODES = ("int8", "float8", "int4", "gptq", "awq")
_GPTQ_BITS = (2, 3, 4, 8)


class QuantizedDTypePolicy(DTypePolicy):
    """The dtypes of a quantised layer.

    Args:
        mode: ``"int8"``, ``"int4"``, ``"gptq"`` or ``"awq"``.
        source_name: the name of the policy that the layer had before; by default the global one's.

    Raises:
        ValueError: `mode` is another word, or the layer would compute in float16, which int8 does not go with.
        TypeError: `source_name` is no text.

    Source: Keras, ``keras.dtype_policies.QuantizedDTypePolicy``.

    >>> policy = QuantizedDTypePolicy("int8", "float32")
    >>> policy.name, policy.compute_dtype, policy.quantization_mode
    ('int8_from_float32', 'float32', 'int8')
    """

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        self._set(mode, mode, dtype_policy().name if source_name is None else source_name)

    def _set(self, mode: str, label: str, source_name: str) -> None:
        if mode not in QUANTIZATION_MODES:
            raise ValueError(
                f"Invalid quantization mode. Expected one of {QUANTIZATION_MODES}. Received: mode={mode!r}"
            )
        if not isinstance(source_name, str):
            raise TypeError(
                f"{type(self).__name__}: source_name must be the name of a policy, such as 'float32' or "
                f"'mixed_bfloat16'; got {source_name!r} of type {type(source_name).__name__}."
            )
        self._compute_dtype = layer_dtype(source_name)
        self._variable_dtype = "float32" if is_mixed(source_name) else self._compute_dtype
        if mode == "int8" and self._compute_dtype == "float16":
            raise ValueError(
                "Quantization mode='int8' doesn't work well with compute_dtype='float16'. Use 'float32' or "
                "'mixed_bfloat16'."
            )
        self._name = f"{label}_from_{source_name}"
        self._mode = mode
        self._label = label
        self._source_name = source_name

    @property
    def quantization_mode(self) -> str:
        """The mode."""
        return self._mode

    @property
    def mode(self) -> str:
        """The same, as Keras's policies call it."""
        return self._mode

    @property
    def source_name(self) -> str:
        """The name of the policy that the layer had before."""
        return self._source_name

    def get_config(self) -> dict[str, Any]:
        return {"mode": self._label, "source_name": self._source_name}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and type(other) is type(self) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f'<{type(self).__name__} "{self.name}">'


class Int4DTypePolicy(QuantizedDTypePolicy):
    """The dtypes of a layer of int4 weights.

    Args:
        mode: ``"int4/128"``: the number of terms that share a scale; ``"int4/-1"``: all terms of a column do.
        source_name: as for `QuantizedDTypePolicy`.

    Raises:
        ValueError: `mode` is not such a word.

    >>> Int4DTypePolicy("int4/64", "float32").block_size
    64
    """

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        mode = "int4/-1" if mode == "int4/None" else mode  # as Keras up to 3.14 wrote it
        (self.block_size,) = _numbers("Int4DTypePolicy", mode, "int4/<block_size>")
        if self.block_size < -1 or self.block_size == 0:
            raise ValueError(
                "Invalid block_size in mode. Supported values are -1 (per-channel) or a positive integer "
                f"(sub-channel), but got {self.block_size} from {mode!r}."
            )
        self._set("int4", mode, dtype_policy().name if source_name is None else source_name)


class GPTQDTypePolicy(QuantizedDTypePolicy):
    """The dtypes of a layer that GPTQ quantised.

    Args:
        mode: ``"gptq/4/128"``: bits, and terms that share a scale (-1: all).
        source_name: as for `QuantizedDTypePolicy`.

    Raises:
        ValueError: `mode` is not such a word.
    """

    kind = "gptq"
    bits: tuple[int, ...] = _GPTQ_BITS

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        name = type(self).__name__
        self.weight_bits, self.group_size = _numbers(name, mode, f"{self.kind}/<weight_bits>/<group_size>")
        if self.weight_bits not in self.bits:
            raise ValueError(
                f"Invalid weight_bits in mode. Supported values are {', '.join(map(str, self.bits))}, but got "
                f"{self.weight_bits} from {mode!r}."
            )
        if self.group_size < -1 or self.group_size == 0:
            raise ValueError(
                "Invalid group_size in mode. Supported values are -1 (all terms) or a positive integer, but got "
                f"{self.group_size} from {mode!r}."
            )
        self._set(self.kind, mode, dtype_policy().name if source_name is None else source_name)


class AWQDTypePolicy(GPTQDTypePolicy):
    """The dtypes of a layer that AWQ quantised.

    Args:
        mode: ``"awq/4/128"``: bits (always 4), and terms that share a scale (-1: all).
        source_name: as for `QuantizedDTypePolicy`.

    Raises:
        ValueError: `mode` is not such a word.
    """

    kind = "awq"
    bits = (4,)


class QuantizedFloat8DTypePolicy(QuantizedDTypePolicy):
    """Refused: weights and activations of float8, which is for training on GPUs, are not computed here.

    Raises:
        NotImplementedError: always.
    """

    def __init__(self, mode: str, source_name: str | None = None, amax_history_length: int = 1024) -> None:
        raise NotImplementedError(
            "float8 is not available: it serves to train on GPUs that compute in it. Use 'int8' or 'int4' for "
            "inference, or the policy 'mixed_bfloat16' for training."
        )


def _numbers(policy: str, mode: str, form: str) -> list[int]:
    """Return the integers behind the slashes of a mode.

    Raises:
        ValueError: it has another form.
    """
    head, *parts = mode.split("/")
    expected, *names = form.split("/")
    if head != expected or len(parts) != len(names):
        raise ValueError(f"Invalid mode for {policy}. Expected format {form!r}, but got {mode!r}.")
    try:
        return [int(part) for part in parts]
    except ValueError:
        wanted = " and ".join(names)
        raise ValueError(
            f"Invalid mode for {policy}. {wanted} must be integers. Expected format {form!r}, but got {mode!r}."
        ) from None


_BY_MODE: dict[str, type[QuantizedDTypePolicy]] = {
    "float8": QuantizedFloat8DTypePolicy,
    "gptq": GPTQDTypePolicy,
    "awq": AWQDTypePolicy,
}


def policy_by_name(name: str) -> QuantizedDTypePolicy:
    """Return the policy that a name such as ``"int8_from_float32"`` or ``"int4/128_from_mixed_bfloat16"`` stands for.

    Raises:
        ValueError: it has another form.
    """
    mode, separator, source_name = name.partition("_from_")
    if not separator or "_from_" in source_name:
        raise ValueError(
            "Cannot convert `policy` into a valid pair (`mode`, `source_name`) to instantiate `QuantizedDTypePolicy`. "
            f"Received: policy={name!r}. Expected a name such as 'int8_from_float32'."
        )
    head = mode.partition("/")[0]
    if head == "int4" and "/" in mode:
        return Int4DTypePolicy(mode, source_name)
    return _BY_MODE.get(head, QuantizedDTypePolicy)(mode, source_name)


CLASSES: dict[str, type[QuantizedDTypePolicy]] = {
    "AWQDTypePolicy": AWQDTypePolicy,
    "GPTQDTypePolicy": GPTQDTypePolicy,
    "Int4DTypePolicy": Int4DTypePolicy,
    "QuantizedDTypePolicy": QuantizedDTypePolicy,
    "QuantizedFloat8DTypePolicy": QuantizedFloat8DTypePolicy,
}
register_builtins("keras.dtype_policies", CLASSES)
