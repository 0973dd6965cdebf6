"""`SKLearnClassifier`, `SKLearnRegressor`, `SKLearnTransformer`: models as estimators of scikit-learn."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from ..models.cloning import clone_model
from ..models.model import Model
from ..utils import set_random_seed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

    from ..structures import Array


class _Estimator(BaseEstimator):
    """The part that all have in common."""

    def __init__(
        self,
        model: Model | Callable[..., Model],
        warm_start: bool = False,
        model_kwargs: Mapping[str, object] | None = None,
        fit_kwargs: Mapping[str, object] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.model = model
        self.warm_start = warm_start
        self.model_kwargs = model_kwargs
        self.fit_kwargs = fit_kwargs
        self.random_state = random_state

    def __sklearn_clone__(self) -> Self:
        """Return an estimator of the same settings that is not fitted; a model is copied with its weights."""
        parameters = self.get_params(deep=False)
        parameters["model"] = self.model if not isinstance(self.model, Model) else copy.deepcopy(self.model)
        return type(self)(**parameters)

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None, **kwargs: Any) -> Self:
        """Train the model.

        Args:
            X: ``[samples, features]``.
            y: ``[samples]`` or ``[samples, outputs]``.
            sample_weight: ``[samples]``; those of weight 0 count as not there.
            **kwargs: further arguments of `Model.fit`.

        Raises:
            ValueError: X and y do not fit each other, or hold NaN or infinity.
            RuntimeError: the model is not compiled.
        """
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=isinstance(self, RegressorMixin))
        type_of_target(y, raise_unknown=True)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X)
            X, y, kwargs["sample_weight"] = X[weights != 0], y[weights != 0], weights[weights != 0]
        if self.random_state is not None:
            set_random_seed(check_random_state(self.random_state).randint(2**31))
        targets = self._targets(y)
        model = self._trained() or self._made(X, targets)
        if not getattr(model, "compiled", False):
            raise RuntimeError(
                f"{type(self).__name__}: the model must be compiled with an optimizer and a loss before it is trained."
            )
        self.history_ = model.fit(X, targets, **{"verbose": 0, **(self.fit_kwargs or {}), **kwargs})
        self.model_ = model
        return self

    def _trained(self) -> Any:
        return getattr(self, "model_", None) if self.warm_start else None

    def _made(self, X: object, y: object) -> Any:
        if not isinstance(self.model, Model):
            return self._made_by_function({"X": X, "y": y, **(self.model_kwargs or {})})
        if self.warm_start:
            return self.model
        made = clone_model(self.model)
        config = self.model.get_compile_config()
        if not made.compiled and config is not None:
            made.compile_from_config(config)
        return made

    def _made_by_function(self, arguments: Mapping[str, object]) -> object:
        if not callable(self.model):
            raise TypeError(
                f"{type(self).__name__}: model must be a compiled model, or a function that makes one; got "
                f"{self.model!r}."
            )
        try:
            inspect.signature(self.model).bind(**arguments)
        except TypeError as error:
            name = getattr(self.model, "__name__", type(self.model).__name__)
            given = ", ".join(f"{each}=..." for each in arguments)
            raise TypeError(
                f"{type(self).__name__} calls {name}({given}) for a model that fits the data, and it can't take that: "
                f"{error}. Write def {name}(X, y, ...), with a parameter for each of model_kwargs."
            ) from None
        return self.model(**arguments)

    def _targets(self, y: Array) -> Array:
        """Return the targets as columns, as the model is to predict them."""
        self._is_column = y.ndim == 1
        return y.reshape(-1, 1) if self._is_column else y

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        return self.model_.predict(validate_data(self, X, reset=False), verbose=0)


class SKLearnClassifier(ClassifierMixin, _Estimator):
    """A classifier of scikit-learn that trains a model (``keras.wrappers.SKLearnClassifier``).

    The model gets targets as rows with a one in the column of the class, so its loss is `categorical_crossentropy` or
    another one of such rows.

    Args:
        model: a compiled model, which is copied for each `fit` with new weights, or a function ``model(X, y, ...)``
            that makes one for the data: `X` is ``[samples, features]``, `y` as the model is to predict it.
        warm_start: train the model itself, as the last `fit` has left it, instead of a copy with new weights.
        model_kwargs: further arguments of that function.
        fit_kwargs: arguments of `Model.fit`, such as ``{"epochs": 5}``. Those of `fit` go before them.
        random_state: a seed (an integer) by which each `fit` gives the same: `utils.set_random_seed` gets it.

    Attributes:
        model_: the trained model.
        history_: what its `fit` has returned.
        classes_: the classes, in the order of the model's outputs.

    >>> import anabranch as ab
    >>> def perceptron(X, y):
    ...     model = ab.Sequential([ab.Input(X.shape[1:]), ab.layers.Dense(y.shape[1], "softmax")])
    ...     model.compile(ab.optim.Adam(0.1), "categorical_crossentropy")
    ...     return model
    >>> estimator = SKLearnClassifier(perceptron, fit_kwargs={"epochs": 100})
    >>> estimator.fit([[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]).predict([[-1.0], [4.0]]).tolist()
    ['low', 'high']
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _targets(self, y: Array) -> Array:
        y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
        check_classification_targets(y)
        kind = type_of_target(y)
        if kind not in ("binary", "multiclass"):
            raise ValueError(
                f"Only binary and multiclass targets are supported. Unknown label type: {kind}, of shape {y.shape}."
            )
        self.classes_, places = np.unique(np.ravel(y), return_inverse=True)
        if len(self.classes_) == 1:
            raise ValueError("Classifier can't train when only one class is present.")
        return np.eye(len(self.classes_), dtype="float32")[places]

    def predict(self, X: ArrayLike) -> Array:
        """Return the class of each row of `X`."""
        outputs = self._outputs(X)
        return self.classes_[np.argmax(outputs, axis=-1)]

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the model's outputs ``[samples, classes]``; of two classes the second less the first, as of others."""
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the model's outputs ``[samples, classes]``, which are probabilities if it ends with a softmax."""
        return self._outputs(X)


class SKLearnRegressor(RegressorMixin, _Estimator):
    """A regressor of scikit-learn that trains a model (``keras.wrappers.SKLearnRegressor``).

    Args:
        model: a compiled model, which is copied for each `fit` with new weights, or a function ``model(X, y, ...)``
            that makes one for the data: `X` is ``[samples, features]``, `y` as the model is to predict it.
        warm_start: train the model itself, as the last `fit` has left it, instead of a copy with new weights.
        model_kwargs: further arguments of that function.
        fit_kwargs: arguments of `Model.fit`, such as ``{"epochs": 5}``. Those of `fit` go before them.
        random_state: a seed (an integer) by which each `fit` gives the same: `utils.set_random_seed` gets it.

    Attributes:
        model_: the trained model.
        history_: what its `fit` has returned.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile(ab.optim.SGD(0.1), "mse")
    >>> estimator = SKLearnRegressor(model, fit_kwargs={"epochs": 60})
    >>> prediction = estimator.fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).predict([[1.5]])
    >>> abs(float(prediction[0]) - 4.0) < 0.2
    True
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: ArrayLike) -> Array:
        """Return the model's outputs: ``[samples]`` or ``[samples, outputs]``, as the targets were."""
        outputs = self._outputs(X).astype("float64")  # as scikit-learn's own
        return outputs[:, 0] if self._is_column and outputs.ndim == 2 and outputs.shape[1] == 1 else outputs


class SKLearnTransformer(TransformerMixin, _Estimator):
    """A transformer of scikit-learn that trains a model (``keras.wrappers.SKLearnTransformer``).

    It is called so after scikit-learn's word for what transforms data.

    Args:
        model: a compiled model, which is copied for each `fit` with new weights, or a function ``model(X, y, ...)``
            that makes one for the data: `X` is ``[samples, features]``, `y` as the model is to predict it.
        warm_start: train the model itself, as the last `fit` has left it, instead of a copy with new weights.
        model_kwargs: further arguments of that function.
        fit_kwargs: arguments of `Model.fit`, such as ``{"epochs": 5}``. Those of `fit` go before them.
        random_state: a seed (an integer) by which each `fit` gives the same: `utils.set_random_seed` gets it.

    Attributes:
        model_: the trained model.
        history_: what its `fit` has returned.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> SKLearnTransformer(model).fit([[0.0, 1.0]], [[1.0, 2.0, 3.0]]).transform([[1.0, 1.0]]).shape
    (1, 3)
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def transform(self, X: ArrayLike) -> Array:
        """Return the model's outputs for `X`."""
        return self._outputs(X)
