"""`FeatureSpace`: tables of named columns, each preprocessed as it should be, as vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from .. import layers
from ..engine import ops
from ..engine.common.dtypes import is_integer, string
from ..engine.common.operator_table import operator_functions
from ..engine.graph import Tensor
from ..engine.objects.names import unique_name
from ..engine.objects.registry import deserialize_keras_object, register_builtins, serialize_keras_object
from ..engine.ops.base import as_array
from ..layers.core.layer import Layer

if TYPE_CHECKING:
    from ..engine.objects.identifiers import Config
    from .structures import Array, Tensors

Boundaries: TypeAlias = Sequence[float]  # here, for `float` is a method in the class below
Numbers: TypeAlias = float | Boundaries


class Feature:
    """The preprocessing of a column; made by `FeatureSpace.float` and its like.

    Args:
        dtype: of the column.
        preprocessor: a layer, which sees ``(batch, 1)``.
        output_mode: "float" or "int" for what the layer gives, "one_hot" for its integers encoded.

    Raises:
        ValueError: the output mode is unknown.
    """

    def __init__(self, dtype: str, preprocessor: Layer | Config, output_mode: str) -> None:
        _check_mode("Feature", output_mode, ("int", "one_hot", "float"))
        self.dtype = dtype
        self.preprocessor: Any = (
            deserialize_keras_object(preprocessor) if isinstance(preprocessor, dict) else preprocessor
        )
        self.output_mode = output_mode

    def get_config(self) -> dict[str, Any]:
        preprocessor = serialize_keras_object(self.preprocessor)
        return {"dtype": self.dtype, "preprocessor": preprocessor, "output_mode": self.output_mode}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)


class Cross:
    """Columns whose values together are hashed into one feature.

    Args:
        feature_names: the columns, at least two.
        crossing_dim: into how many buckets.
        output_mode: "one_hot" or "int".

    Raises:
        ValueError: the output mode is unknown.
    """

    def __init__(self, feature_names: Sequence[str], crossing_dim: int, output_mode: str = "one_hot") -> None:
        _check_mode("Cross", output_mode, ("int", "one_hot"))
        self.feature_names = tuple(feature_names)
        self.crossing_dim = crossing_dim
        self.output_mode = output_mode

    @property
    def name(self) -> str:
        return "_X_".join(self.feature_names)

    def get_config(self) -> dict[str, Any]:
        names = list(self.feature_names)
        return {"feature_names": names, "crossing_dim": self.crossing_dim, "output_mode": self.output_mode}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)


class FeatureSpace(Layer):
    """Preprocesses a table: a dict of columns in, one vector for each row out.

    Args:
        features: for each column how it is preprocessed: "float", "float_normalized", "float_rescaled",
            "float_discretized", "integer_categorical", "string_categorical", "integer_hashed" or "string_hashed"; or
            what the method of that name gives, for other settings.
        output_mode: "concat" for one vector ``(batch, size)``, "dict" for a vector of each feature by its name.
        crosses: features to be crossed: a list of tuples of names.
        crossing_dim: the number of buckets for crosses.
        hashing_dim: the number of buckets for hashed features.
        num_discretization_bins: the number of bins for discretised features.
        name: of the layer.

    `adapt` learns means, bins and vocabularies. Then call it on a dict of arrays or tensors, ``(batch,)`` or
    ``(batch, 1)`` (or of single values, for a single vector); or put a model behind it: `get_inputs` and
    `get_encoded_features` are symbolic inputs and outputs.

    Raises:
        ValueError: a kind of feature or an output mode is unknown; a cross names no feature; it is used before `adapt`;
            a feature can't be encoded or concatenated.

    >>> import anabranch as ab
    >>> space = ab.utils.FeatureSpace({"size": "float_rescaled", "colour": "string_categorical"})
    >>> space.adapt({"size": [1.0, 2.0], "colour": ["red", "blue"]})
    >>> space({"size": [3.0], "colour": ["red"]})
    Tensor([[0., 1., 0., 3.]], dtype=float32)
    """

    untracked = Layer.untracked | {"inputs", "_encoded", "crosses"}

    @classmethod
    def feature(cls, dtype: str, preprocessor: Layer, output_mode: str) -> Feature:
        """Make a feature with a layer of your own; see `Feature`."""
        return Feature(dtype, preprocessor, output_mode)

    @classmethod
    def float(cls, name: str | None = None) -> Feature:
        """Return a feature of numbers as they are."""
        made = layers.Identity(dtype="float32", name=_named(name, "float"))
        return Feature("float32", made, "float")

    @classmethod
    def float_rescaled(cls, scale: Numbers = 1.0, offset: Numbers = 0.0, name: str | None = None) -> Feature:
        """Return a feature of numbers times `scale` plus `offset`."""
        made = layers.Rescaling(scale, offset, name=_named(name, "float_rescaled"))
        return Feature("float32", made, "float")

    @classmethod
    def float_normalized(cls, name: str | None = None) -> Feature:
        """Return a feature of numbers less their mean, divided by their standard deviation."""
        made = layers.Normalization(axis=-1, name=_named(name, "float_normalized"))
        return Feature("float32", made, "float")

    @classmethod
    def float_discretized(
        cls,
        num_bins: int | None,
        bin_boundaries: Boundaries | None = None,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Return a feature of the bins of numbers."""
        bins: dict[str, Any] = {"num_bins": num_bins} if bin_boundaries is None else {"bin_boundaries": bin_boundaries}
        made = layers.Discretization(**bins, name=_named(name, "float_discretized"))
        return Feature("float32", made, output_mode)

    @classmethod
    def integer_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Return a feature of integers as categories."""
        label = _named(name, "integer_categorical")
        made = layers.IntegerLookup(max_tokens=max_tokens, num_oov_indices=num_oov_indices, name=label)
        return Feature("int32", made, output_mode)

    @classmethod
    def string_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Return a feature of strings as categories."""
        label = _named(name, "string_categorical")
        made = layers.StringLookup(max_tokens=max_tokens, num_oov_indices=num_oov_indices, name=label)
        return Feature("string", made, output_mode)

    @classmethod
    def string_hashed(cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None) -> Feature:
        """Return a feature of strings as the buckets into which they are hashed."""
        made = layers.Hashing(num_bins=num_bins, name=_named(name, "string_hashed"))
        return Feature("string", made, output_mode)

    @classmethod
    def integer_hashed(cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None) -> Feature:
        """Return a feature of integers as the buckets into which they are hashed."""
        made = layers.Hashing(num_bins=num_bins, name=_named(name, "integer_hashed"))
        return Feature("int32", made, output_mode)

    @classmethod
    def cross(cls, feature_names: Sequence[str], crossing_dim: int, output_mode: str = "one_hot") -> Cross:
        """Return a crossed feature: columns whose values together are hashed into one feature."""
        return Cross(feature_names, crossing_dim, output_mode)

    def __init__(
        self,
        features: Mapping[str, str | Feature | Config],
        output_mode: str = "concat",
        crosses: Sequence[Cross | Sequence[str] | Config] | None = None,
        crossing_dim: int = 32,
        hashing_dim: int = 32,
        num_discretization_bins: int = 32,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not features:
            raise ValueError("FeatureSpace needs at least one feature, got none: FeatureSpace({'age': 'float'}).")
        _check_mode("FeatureSpace", output_mode, ("dict", "concat"))
        self.output_mode = output_mode
        self.crossing_dim = crossing_dim
        self.hashing_dim = hashing_dim
        self.num_discretization_bins = num_discretization_bins
        self.features = {key: self._feature(key, value) for key, value in features.items()}
        self.crosses = [self._cross(cross) for cross in crosses or ()]
        self.preprocessors = {key: feature.preprocessor for key, feature in self.features.items()}
        self.crossers = {cross.name: layers.HashedCrossing(cross.crossing_dim) for cross in self.crosses}
        self.inputs: dict[str, Tensor] = {}
        self._encoded: Tensors | None = None
        self.built = self._is_adapted = not self._adaptable()

    def _feature(self, name: str, value: str | Feature | Config) -> Feature:
        if isinstance(value, Feature):
            return value
        if isinstance(value, dict):
            return deserialize_keras_object(value)
        sizes = {
            "float_discretized": self.num_discretization_bins,
            "integer_hashed": self.hashing_dim,
            "string_hashed": self.hashing_dim,
        }
        plain = ("float", "float_normalized", "float_rescaled", "integer_categorical", "string_categorical")
        if value in sizes:
            return getattr(self, value)(sizes[value], name=name)
        if value not in plain:
            raise ValueError(
                f"FeatureSpace: feature {name!r} is of the unknown kind {value!r}. Expected one of "
                f"{', '.join(sorted((*plain, *sizes)))}, or what a method such as FeatureSpace.float() gives."
            )
        return getattr(self, value)(name=name)

    def _cross(self, value: Any) -> Cross:
        cross = deserialize_keras_object(value) if isinstance(value, dict) else value
        if not isinstance(cross, Cross):
            cross = Cross(cross, self.crossing_dim)
        unknown = [key for key in cross.feature_names if key not in self.features]
        if unknown:
            raise ValueError(
                f"FeatureSpace: the cross {cross.feature_names} names {unknown}, but the features are "
                f"{list(self.features)}."
            )
        return cross

    # --- learning ---------------------------------------------------------------------------------------------------

    def _adaptable(self) -> list[str]:
        return [key for key, layer in self.preprocessors.items() if _can_learn(layer)]

    def adapt(self, dataset: object) -> None:
        """Learn means, bins and vocabularies from a table.

        Args:
            dataset: a dict of columns, arrays or lists; or batches of such dicts: anything that can be iterated
                several times.

        Raises:
            ValueError: it is neither, or has no column for a feature.
        """
        for key in self._adaptable():
            self.preprocessors[key].adapt(_column(dataset, key))
        self.built = self._is_adapted = True
        self._encoded = None
        self._functions.clear()

    def _check_adapted(self) -> None:
        if not self._is_adapted:
            raise ValueError(
                f"FeatureSpace {self.name!r} has to learn first: call adapt(table). The features that learn are "
                f"{self._adaptable()}."
            )

    # --- using ------------------------------------------------------------------------------------------------------

    def get_inputs(self) -> dict[str, Tensor]:
        """Return symbolic inputs ``(batch, 1)`` by name, for a model."""
        self._check_adapted()
        if not self.inputs:
            self.inputs = {
                key: layers.Input((1,), dtype=feature.dtype, name=key) for key, feature in self.features.items()
            }
        return self.inputs

    def get_preprocessed_features(self) -> dict[str, Tensor]:
        """Return what the preprocessing layers make of `get_inputs`, before anything is encoded."""
        return self._preprocessed(self.get_inputs())

    def get_encoded_features(self) -> Tensors:
        """Return the features for `get_inputs`: one vector, or a dict of them."""
        if self._encoded is None:
            self._encoded = self._merged(self._preprocessed(self.get_inputs()))
        return self._encoded

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        self._check_adapted()
        if not args or not isinstance(args[0], dict):
            raise ValueError(
                f"FeatureSpace {self.name!r} is called with a dict of columns, got "
                f"{type(args[0]).__name__ if args else 'nothing'}."
            )
        missing = [key for key in self.features if key not in args[0]]
        if missing:
            raise ValueError(f"FeatureSpace {self.name!r}: the table has no column for {missing}.")
        table = {
            key: value if isinstance(value, Tensor) else as_array(value)
            for key, value in args[0].items()
            if key in self.features
        }
        return super().__call__(table, *args[1:], **kwargs)

    def call(self, data: Mapping[str, Tensor]) -> dict[str, Tensor] | Tensor:
        ranks = {value.ndim for value in data.values()}
        columns = {key: ops.reshape(value, (-1, 1)) if value.ndim in (0, 1) else value for key, value in data.items()}
        merged = self._merged(self._preprocessed(columns))
        if ranks != {0}:
            return merged
        if isinstance(merged, dict):
            return {key: ops.squeeze(value, 0) for key, value in merged.items()}
        return ops.squeeze(merged, 0)

    def _preprocessed(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for key, feature in self.features.items():
            value = columns[key]
            whole = feature.dtype == "float32" and is_integer(value.dtype)
            made[key] = self.preprocessors[key](ops.cast(value, "float32") if whole else value)
        return made

    def _merged(self, preprocessed: Mapping[str, Tensor]) -> dict[str, Tensor] | Tensor:
        crossed = {
            cross.name: self.crossers[cross.name]([preprocessed[key] for key in cross.feature_names])
            for cross in self.crosses
        }
        modes = {key: feature.output_mode for key, feature in self.features.items()}
        modes |= {cross.name: cross.output_mode for cross in self.crosses}
        values = {**preprocessed, **crossed}
        names = [*sorted(preprocessed), *sorted(crossed)]
        encoded = {key: self._encoded_one(key, values[key], modes[key]) for key in names}
        if self.output_mode == "dict":
            return encoded
        for key, value in encoded.items():
            if is_integer(value.dtype) or value.dtype == string:
                raise ValueError(
                    f"FeatureSpace: feature {key!r} can't be concatenated, for it is not encoded: its dtype is "
                    f"{value.dtype}. Use output_mode='one_hot' for it, or output_mode='dict' for all."
                )
        return layers.Concatenate(axis=-1)(list(encoded.values())) if len(encoded) > 1 else encoded[names[0]]

    def _encoded_one(self, name: str, value: Tensor, mode: str) -> Tensor:
        if mode != "one_hot":
            return value
        size = _size_of(self.preprocessors.get(name) or self.crossers[name])
        if size is None or not is_integer(value.dtype):
            raise ValueError(
                f"FeatureSpace: feature {name!r} can't be one-hot encoded: its preprocessor must be one of this "
                f"package that gives integers, got {self.preprocessors.get(name)!r} with dtype {value.dtype}. Use "
                "output_mode='int'."
            )
        return layers.CategoryEncoding(num_tokens=size, output_mode="multi_hot")(value)

    # --- files ------------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        return {
            "features": {key: serialize_keras_object(feature) for key, feature in self.features.items()},
            "output_mode": self.output_mode,
            "crosses": [serialize_keras_object(cross) for cross in self.crosses],
            "crossing_dim": self.crossing_dim,
            "hashing_dim": self.hashing_dim,
            "num_discretization_bins": self.num_discretization_bins,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def get_build_config(self) -> dict[str, object]:
        return {key: layer.get_build_config() for key, layer in self.preprocessors.items()}

    def build_from_config(self, config: dict[str, Any]) -> None:
        for key, own in config.items():
            if own and not self.preprocessors[key].built:
                self.preprocessors[key].build_from_config(own)
        self.built = self._is_adapted = True

    def save(self, filepath: str | os.PathLike[str]) -> None:
        """Save to a ``.keras`` file, which `load_model` reads."""
        operator_functions["save_model"](self, filepath)  # which writes any layer


def _named(name: str | None, kind: str) -> str:
    return f"{name or unique_name(kind)}_preprocessor"


def _check_mode(what: str, mode: str, allowed: tuple[str, ...]) -> None:
    if mode not in allowed:
        raise ValueError(f"{what}: output_mode must be one of {', '.join(map(repr, allowed))}; got {mode!r}.")


def _can_learn(layer: Layer) -> bool:
    if isinstance(layer, layers.Normalization):
        return layer.input_mean is None
    if isinstance(layer, layers.Discretization):
        return layer.bin_boundaries is None
    if isinstance(layer, (layers.IntegerLookup, layers.StringLookup)):
        return layer.input_vocabulary is None
    return isinstance(layer, layers.TextVectorization) and layer.get_config()["vocabulary"] is None


def _size_of(layer: Layer) -> int | None:
    if isinstance(layer, (layers.IntegerLookup, layers.StringLookup)):
        return layer.vocabulary_size()
    if isinstance(layer, layers.Discretization):
        boundaries = layer.bin_boundaries
        return layer.num_bins if boundaries is None or layer.num_bins else len(boundaries) + 1
    return layer.num_bins if isinstance(layer, (layers.Hashing, layers.HashedCrossing)) else None


def _column(dataset: object, key: str) -> Array | list[Array]:
    """Return a column of a table, ``(rows, 1)``, or a list of such parts."""
    if isinstance(dataset, dict):
        return _upright(dataset, key)
    if not isinstance(dataset, Iterable):
        raise ValueError(
            f"FeatureSpace.adapt() takes a dict of columns or an iterable of batches, got {type(dataset).__name__}."
        )
    return [_upright(batch[0] if isinstance(batch, tuple) else batch, key) for batch in dataset]


def _upright(table: object, key: str) -> Array:
    if not isinstance(table, dict) or key not in table:
        raise ValueError(f"FeatureSpace.adapt(): the table has no column {key!r}; expected a dict that has it.")
    values = np.asarray(as_array(table[key]))
    return values.reshape(-1, 1) if values.ndim < 2 else values


register_builtins("keras.utils", {"FeatureSpace": FeatureSpace})
register_builtins("keras.src.layers.preprocessing.feature_space", {"Feature": Feature, "Cross": Cross})
