"""Estimators of scikit-learn that train models (``keras.wrappers``).

The module can be imported without scikit-learn, as editors and `help` do; its classes need it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .estimators import SKLearnClassifier, SKLearnRegressor, SKLearnTransformer

__all__ = ["SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer"]


def _look_up(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import estimators
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ImportError(
            f"anabranch.wrappers.{name} needs scikit-learn, which is not installed. Install it: "
            "pip install 'anabranch[sklearn]'"
        ) from error
    return getattr(estimators, name)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up
