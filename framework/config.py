"""Settings of the whole process: default float type, dtype policy and order of axes, epsilon, devices, passes."""

from __future__ import annotations

from ..engine.graph.tracebacks import (
    disable_traceback_filtering,
    enable_traceback_filtering,
    is_traceback_filtering_enabled,
)
from ..engine.objects.floats import floatx, set_floatx
from ..engine.objects.policies import dtype_policy, set_dtype_policy
from ..engine.objects.trust import allow_code_in_files
from ..engine.ops.data_format import image_data_format, set_image_data_format
from ..engine.passes.framework.switches import get_passes, set_passes
from ..engine.passes.memory.memory_budget import memory_budget, set_memory_budget
from ..engine.place.devices import list_devices, set_devices
from .training.limits import (
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
    max_epochs,
    max_steps_per_epoch,
    set_max_epochs,
    set_max_steps_per_epoch,
)

_epsilon = 1e-7


def epsilon() -> float:
    """Return the small number that keeps divisions and logarithms of losses and metrics finite; 1e-7 by default."""
    return _epsilon


def set_epsilon(value: float) -> None:
    """Set what `epsilon()` returns."""
    global _epsilon
    _epsilon = float(value)


def backend() -> str:
    """Return the name of what computes: always ``"anabranch"``."""
    return "anabranch"


def set_backend(backend: str) -> None:
    """Accept "anabranch", the only one.

    Raises:
        ValueError: it is any other.
    """
    if backend != "anabranch":
        raise ValueError(
            f"The backend can't be set to {backend!r}: models run on the engine of this package, 'anabranch'. Leave "
            "the line out."
        )


def convolution_precision() -> str:
    """Return how convolutions with 3 x 3 taps are computed: see `set_convolution_precision`."""
    return "winograd" if get_passes()["winograd"] else "direct"


def set_convolution_precision(precision: str) -> None:
    """Set whether float32 convolutions with 3 x 3 taps may be computed with fewer multiplications.

    Args:
        precision: ``"winograd"`` (at first): by transforms of tiles, where that is faster. Errors are at most 1e-4 of
            the results' standard deviation for inputs of about zero mean, and grow with the largest number in a tile;
            an infinity or NaN reaches a whole tile of results (docs/convolutions.md). ``"direct"``: every product is
            computed and added.

    Steps that were compiled before are compiled again when they are next run. It is the switch `winograd` of
    `set_passes`.

    Raises:
        ValueError: it is any other.

    >>> import anabranch as ab
    >>> ab.config.set_convolution_precision("direct")
    >>> ab.config.convolution_precision()
    'direct'
    >>> ab.config.set_convolution_precision("winograd")
    """
    if precision not in ("winograd", "direct"):
        raise ValueError(
            f"set_convolution_precision: {precision!r}; expected 'winograd' (fewer multiplications, where that is "
            "faster) or 'direct' (every product is computed)."
        )
    set_passes(winograd=precision == "winograd")


def enable_flash_attention() -> None:
    """Do nothing: attention is computed in one way, whose result is exact."""


def disable_flash_attention() -> None:
    """Do nothing: see `enable_flash_attention`."""


def is_flash_attention_enabled() -> bool:
    """Test whether attention is computed by a kernel of that name: never."""
    return False


def is_nnx_enabled() -> bool:
    """Test whether layers are modules of Flax, too: never."""
    return False


def enable_unsafe_deserialization() -> None:
    """Load files that hold code (lambdas) as if each `load_model` were called with ``safe_mode=False``.

    Code in a file can do anything: call this only where all files that the process loads are trusted.

    >>> import anabranch as ab
    >>> double = ab.Sequential([ab.Input((2,)), ab.layers.Lambda(lambda x: x * 2)])
    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):  # that the file will hold code
    ...     double.save("double.keras")
    >>> ab.config.enable_unsafe_deserialization()
    >>> ab.load_model("double.keras")([[1.0, 2.0]])
    Tensor([[2., 4.]], dtype=float32)
    """
    allow_code_in_files()


__all__ = [
    "backend",
    "convolution_precision",
    "disable_flash_attention",
    "disable_interactive_logging",
    "disable_traceback_filtering",
    "dtype_policy",
    "enable_flash_attention",
    "enable_interactive_logging",
    "enable_traceback_filtering",
    "enable_unsafe_deserialization",
    "epsilon",
    "floatx",
    "get_passes",
    "image_data_format",
    "is_flash_attention_enabled",
    "is_interactive_logging_enabled",
    "is_nnx_enabled",
    "is_traceback_filtering_enabled",
    "list_devices",
    "max_epochs",
    "max_steps_per_epoch",
    "memory_budget",
    "set_backend",
    "set_convolution_precision",
    "set_devices",
    "set_dtype_policy",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "set_max_epochs",
    "set_max_steps_per_epoch",
    "set_memory_budget",
    "set_passes",
]
