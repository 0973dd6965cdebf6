"""A switch for debugging: whether steps of models, and functions of scripts for TensorFlow, run in Python on values."""

from __future__ import annotations


class _Switch:
    is_on: bool = False


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Let Python run functions under `tf.function`, and steps of models, on values from now on; False: as graphs again.

    `print`, `float` and debuggers see the values of each call. It is slower. Functions under `anabranch.function`, and
    what this package itself compiles, stay as they are.

    >>> from anabranch import tf
    >>> @tf.function
    ... def doubled(x):
    ...     print(float(x))
    ...     return x * 2
    >>> tf.config.run_functions_eagerly(True)
    >>> float(doubled(tf.constant(1.5)))
    1.5
    3.0
    >>> tf.config.run_functions_eagerly(False)
    """
    _Switch.is_on = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Test whether `run_functions_eagerly` was switched on."""
    return _Switch.is_on
