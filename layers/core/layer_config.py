"""Configs of layers: a layer is written to one, and made again from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self, TypeVar

from ...engine.common.keywords import check_keywords, given_in_a_row
from ...engine.graph import Tensor, Variable
from ...engine.objects import activations, policies
from ...engine.objects.registry import deserialize_keras_object, is_serialized, serialize_keras_object
from .calling import enclosing_path, paths_below
from .layer_state import LayerState
from .node import Arguments

C = TypeVar("C", bound="LayerConfig")

# Keyword arguments by which the first layer of a Sequential model may name its input's shape.
SHAPE_ARGUMENTS = ("input_shape", "batch_shape", "batch_input_shape", "input_dim", "batch_size")


# Arguments of constructors that are in each config, or in none.
_NOT_SAVED = frozenset({"self", "name", "trainable", "dtype", "autocast"})

# Options that Keras writes and that layers here do not have, with the values at which they are off.
_OFF: dict[str, object] = {
    "groups": 1,  # Keras 2, of depthwise, separable and transposed convolutions
    "quantization_config": None,
    "renorm": False,
    "renorm_clipping": None,
    "renorm_momentum": 0.99,
    "time_major": False,  # Keras 2, of recurrent layers
}


def _check_not_in_a_row(cls: type[LayerConfig], args: tuple[object, ...]) -> None:
    """Check that no layers are given one by one where a class takes one argument.

    Raises:
        TypeError: they are.
    """
    code = cls.__init__.__code__
    if len(args) < code.co_argcount or code.co_flags & inspect.CO_VARARGS:
        return
    if all(isinstance(each, LayerConfig) for each in args):
        raise given_in_a_row(cls.__name__)


def config_from_signature(**attributes: str | None) -> Callable[[type[C]], type[C]]:
    """Decorate a layer whose config has the arguments of its constructor, held by attributes of the same names.

    A constructor that takes ``**kwargs`` hands them on: then the config has the arguments of the class above, too.
    `name`, `trainable` and `dtype` are in all configs. A class whose config differs in a few entries overrides
    `get_config`, and changes what ``super().get_config()`` gives.

    Args:
        **attributes: for an argument the attribute that holds it under another name; "" for one that is left out, None
            for one that is written as by a class without a signature of its own. One that the signature lacks, as it is
            among ``**kwargs``, is added.
    """

    def decorate(cls: type[C]) -> type[C]:
        parameters = inspect.signature(cls.__init__).parameters.values()
        hands_on = any(each.kind is each.VAR_KEYWORD for each in parameters)
        named = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        above = cls._config_attributes if hands_on and cls._config_attributes else {}
        own = {name: above.get(name, name) for name in named if name not in _NOT_SAVED}
        merged = {**above, **own, **attributes}
        cls._config_attributes = {name: attribute for name, attribute in merged.items() if attribute is not None}
        return cls

    return decorate


class LayerConfig(LayerState):
    """The describing half of `Layer`; see there."""

    _config_attributes: ClassVar[Mapping[str, str] | None] = None  # by argument, of a class made by the decorator
    _constructor_call: Arguments
    _parts_have_own_paths: ClassVar[bool] = False  # as the layers of a functional model
    _build_shapes: dict[str, object] | None
    activity_regularizer: Any
    build: Callable[..., None]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if kwargs:
            check_keywords(cls, kwargs, len(args))
        if len(args) > 1:
            _check_not_in_a_row(cls, args)
        instance = super().__new__(cls)
        instance._constructor_call = (args, kwargs)  # from which get_config is made where a class defines none
        return instance

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, for JSON.

        A class that does not override it gets the arguments that its instance was made with.

        Raises:
            NotImplementedError: one of these can't be written; the class has to override `get_config`.
        """
        config: dict[str, object] = {"name": self.name, "trainable": self.trainable, "dtype": self._dtype_config()}
        attributes = self._config_attributes
        if attributes is None and type(self).get_config is LayerConfig.get_config:
            return {**config, **self._constructor_config()}
        if self.activity_regularizer is not None and "activity_regularizer" not in (attributes or {}):
            config["activity_regularizer"] = serialize_keras_object(self.activity_regularizer)
        held = {name: attribute for name, attribute in (attributes or {}).items() if attribute}
        return {**config, **{name: _config_entry(name, getattr(self, held[name])) for name in held}}

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the shapes that the layer was built for; None if it is not built."""
        if self._build_shapes is None:
            return None
        if len(self._build_shapes) == 1:
            shapes = {"input_shape": next(iter(self._build_shapes.values()))}
        else:
            shapes = {"shapes_dict": dict(self._build_shapes)}
        inside = {"frozen": self._frozen_inside()}
        if any(inner.quantization_mode is not None for inner in self._flatten_layers()):
            from .quantized_form import describe, describe_rounded

            inside |= {"quantization": describe(self), "rounded_weights": describe_rounded(self)}
        return {**shapes, **{name: found for name, found in inside.items() if found}}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Build for the shapes that `get_build_config` gave."""
        if "shapes_dict" in config:
            self.build(**{name: _as_shape(shape) for name, shape in config["shapes_dict"].items()})
        elif config.get("input_shape") is not None:
            self.build(_as_shape(config["input_shape"]))
            self.built = True
        if config.get("quantization"):
            from .quantized_form import follow

            follow(self, config["quantization"])
        if config.get("rounded_weights"):
            from .quantized_form import hold_as_described

            hold_as_described(self, config["rounded_weights"])
        if config.get("frozen"):
            self._freeze_inside(config["frozen"])

    def _frozen_inside(self) -> dict[str, list[str]]:
        """Return the names of weights that were frozen one by one, by the place of their layer among those inside."""
        return {
            str(place): names for place, layer in enumerate(self._flatten_layers()) if (names := layer._frozen_names())
        }

    def _frozen_names(self) -> list[str]:
        """Return the names of the layer's own weights that were frozen one by one."""
        return [v.name for v in self._own_variables() if v.was_made_trainable and not v.trainable]

    def _freeze_inside(self, frozen: Mapping[str, Sequence[str]]) -> None:
        """Freeze the weights that `_frozen_inside` named."""
        for place, layer in enumerate(self._flatten_layers()):
            for variable in layer._own_variables():
                if variable.name in frozen.get(str(place), ()):
                    variable.trainable = False

    def _dtype_config(self) -> object:
        policy = self._policy_with_inner()
        has_name = not isinstance(policy, policies.DTypePolicyMap) and policy.quantization_mode is None
        return policy.name if has_name else serialize_keras_object(policy)

    def _policy_with_inner(self) -> policies.DTypePolicy:
        """Return the dtype policy, with those of quantised layers inside."""
        policy = self._dtype_policy
        is_plain = not isinstance(policy, policies.DTypePolicyMap) and policy.quantization_mode is None
        if not is_plain or all(inner.quantization_mode is None for inner in self._flatten_layers(include_self=False)):
            return policy
        from .quantized_form import policy_map

        return policy_map(self, policy)

    def _constructor_config(self) -> dict[str, object]:
        """Return the constructor's arguments, serialised."""
        args, kwargs = self._constructor_call
        signature = inspect.signature(type(self).__init__)
        bound = signature.bind(self, *args, **kwargs)
        found: dict[str, object] = {}
        for name, value in list(bound.arguments.items())[1:]:
            kind = signature.parameters[name].kind
            if kind == inspect.Parameter.VAR_POSITIONAL:
                raise self._no_config(f"its constructor takes *{name}")
            found.update(value if kind == inspect.Parameter.VAR_KEYWORD else {name: value})
        for name in ("name", "trainable", "dtype", *SHAPE_ARGUMENTS[:3]):
            found.pop(name, None)
        try:
            return {name: serialize_keras_object(value) for name, value in found.items()}
        except (TypeError, ValueError) as error:
            raise self._no_config(f"a constructor argument can't be written ({error})") from error

    def _no_config(self, reason: str) -> NotImplementedError:
        return NotImplementedError(
            f"Layer {self.name!r} can't be saved: {reason}. Override get_config() of {type(self).__name__} to return "
            "what its constructor needs: {**super().get_config(), 'units': self.units}."
        )

    @classmethod
    def around_parts(cls, config: Mapping[str, object]) -> AbstractContextManager[None]:
        """Return the context in which a layer's parts are made from its config, with the names of its own calls."""
        if cls._parts_have_own_paths:
            return paths_below("")
        name = config.get("name")
        return paths_below(f"{enclosing_path()}{name}/") if name else nullcontext()

    @classmethod
    def from_config(cls: type[C], config: dict[str, Any]) -> C:
        """Return a layer (without weights) from what `get_config` gave.

        Raises:
            TypeError: the constructor does not take the config.
        """
        parameters = inspect.signature(cls.__init__).parameters
        off = {name for name in _OFF.keys() - parameters.keys() if name in config and config[name] == _OFF[name]}
        arguments = {name: _deserialized(value) for name, value in config.items() if name not in off | {"dtype"}}
        if "dtype" in config:
            policy = policies.get(config["dtype"])
            arguments["dtype"] = policy if isinstance(policy, policies.DTypePolicyMap) else policy.name
        leftover: dict[str, Any] = {}
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
            for name in ("name", "trainable", "dtype"):
                if name in arguments and name not in parameters:
                    leftover[name] = arguments.pop(name)
        layer = cls(**arguments)
        layer.name = leftover.get("name", layer.name)
        layer._trainable = leftover.get("trainable", layer._trainable)
        layer.dtype_policy = leftover.get("dtype", layer.dtype_policy)
        return layer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}, built={self.built}>"


def _config_entry(argument: str, value: object) -> object:
    """Return an argument as a config holds it: numbers, strings, tensors and structures of them as they are."""
    if argument.endswith("activation"):
        return activations.serialize(value)
    return value if _is_plain(value) else serialize_keras_object(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, (Tensor, Variable))


def _deserialized(value: object) -> Any:
    """Return a config value with the objects in it made again."""
    if is_serialized(value):
        return deserialize_keras_object(value)
    if isinstance(value, list) and any(is_serialized(item) for item in value):
        return [_deserialized(item) for item in value]
    return value


def _as_shape(shape: object) -> object:
    """Return a shape read from JSON as tuples again."""
    if isinstance(shape, dict):
        return {name: _as_shape(item) for name, item in shape.items()}
    if isinstance(shape, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in shape):
        return [_as_shape(item) for item in shape]
    return tuple(shape) if isinstance(shape, (list, tuple)) else shape
