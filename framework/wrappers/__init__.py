"""Estimators of scikit-learn that train models (``keras.wrappers``)."""

try:
    import sklearn as sklearn
except ImportError as error:
    raise ImportError(
        "anabranch.wrappers needs scikit-learn, which is not installed. Install it: pip install 'anabranch[sklearn]'"
    ) from error

from .estimators import SKLearnClassifier, SKLearnRegressor, SKLearnTransformer

__all__ = ["SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer"]
