"""Losses between what a teacher and a student compute, for `anabranch.distillation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ...engine import ops
from ...engine.objects.registry import is_serialized, register_builtins
from . import api as losses
from . import functions
from .base import LossFunctionWrapper

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ...engine.graph import Tensor
    from ..models.model import Model
    from .api import LossLike

# Losses that compare probabilities, and the function that makes probabilities of their logits.
_OF_CLASSES = (
    functions.kl_divergence,
    functions.categorical_crossentropy,
    functions.categorical_focal_crossentropy,
    functions.categorical_generalized_cross_entropy,
)
_OF_YES_OR_NO = (functions.binary_crossentropy, functions.binary_focal_crossentropy)


class DistillationLoss:
    """The base of losses between a teacher and a student: subclasses define `compute_loss`.

    One with arguments of its own also defines `get_config`, so that a `Distiller` that has it can be saved.

    >>> import anabranch as ab
    >>> class Distance(ab.distillation.DistillationLoss):
    ...     def compute_loss(self, teacher_outputs, student_outputs, **kwargs):
    ...         return ab.ops.mean(ab.ops.abs(teacher_outputs - student_outputs))
    >>> float(Distance().compute_loss(ab.constant([1.0, 2.0]), ab.constant([1.0, 4.0])))
    1.0
    """

    def compute_loss(self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch, a scalar tensor.

        Args:
            teacher_outputs, student_outputs: tensors, in the structure of the models' outputs.
            **kwargs: for losses of your own.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define compute_loss(teacher_outputs, student_outputs, **kwargs)."
        )

    def validate_outputs(self, teacher_outputs: Any, student_outputs: Any) -> None:
        """Check that outputs of a teacher and a student can be compared.

        Raises:
            ValueError: they have different structures.
        """
        ours, theirs = len(_leaves(teacher_outputs)), len(_leaves(student_outputs))
        if ours != theirs:
            raise ValueError(
                f"{type(self).__name__}: the teacher gives {ours} tensors, the student {theirs}. Both must give the "
                "same structure."
            )
        _check_structure(teacher_outputs, student_outputs, type(self).__name__, "the teacher's outputs")

    def validate_model_compatibility(self, teacher: Model, student: Model) -> None:
        """Check that the loss can be computed for two models; a `Distiller` calls it when it is made.

        Raises:
            ValueError: it can't.
        """

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a loss from what `get_config` gave."""
        return cls(**config)


class _OfStructures(DistillationLoss):
    """The base of losses that apply one of Keras's losses to each output."""

    def __init__(self, loss: Nest[LossLike | None]) -> None:
        self.loss = _read(loss)
        if all(each is None for each in _leaves(self.loss)):
            raise ValueError(
                f"{type(self).__name__}: loss={loss!r} has nothing but None. Give at least one loss, such as 'mse'."
            )

    def compute_loss(self, teacher_outputs: object, student_outputs: object, **kwargs: object) -> Tensor:
        self.validate_outputs(teacher_outputs, student_outputs)
        _check_structure(self.loss, student_outputs, type(self).__name__, "loss")
        rows = zip(*map(_leaves, (self.loss, teacher_outputs, student_outputs)), strict=True)
        terms = [self._one(loss, *pair) for loss, *pair in rows if loss is not None]
        return sum(terms[1:], terms[0])

    def _one(self, loss: Callable[..., Tensor], teacher: Tensor, student: Tensor) -> Tensor:
        return ops.mean(loss(teacher, student))

    def _written_loss(self) -> object:
        return _written(self.loss)


def _read(loss: object) -> Any:
    """Look up a structure of losses, of which some are configs, which are dicts, too."""
    if isinstance(loss, dict) and not is_serialized(loss):
        return {name: _read(each) for name, each in loss.items()}
    return [_read(each) for each in loss] if isinstance(loss, (list, tuple)) else losses.get(loss)


def _written(loss: object) -> object:
    if isinstance(loss, dict):
        return {name: _written(each) for name, each in loss.items()}
    if isinstance(loss, list):
        return [_written(each) for each in loss]
    return None if loss is None else losses.serialize(loss)


def _leaves(structure: object) -> list[object]:
    """Return what a structure holds, None included."""
    if isinstance(structure, dict):
        return [leaf for name in sorted(structure) for leaf in _leaves(structure[name])]
    return (
        [leaf for each in structure for leaf in _leaves(each)] if isinstance(structure, (list, tuple)) else [structure]
    )


def _same_structure(one: Any, other: Any) -> bool:
    if isinstance(one, dict) or isinstance(other, dict):
        both = isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()
        return both and all(_same_structure(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) or isinstance(other, (list, tuple)):
        both = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other)
        return both and all(map(_same_structure, one, other))
    return True


def _check_structure(structure: object, like: object, owner: str, what: str) -> None:
    if not _same_structure(structure, like):
        raise ValueError(
            f"{owner}: {what} must have the structure of the student's outputs, which are {_kind(like)}; got "
            f"{_kind(structure)}. For several outputs give a loss, or None, for each."
        )


def _kind(structure: object) -> str:
    if isinstance(structure, dict):
        return f"a dict of {sorted(structure)}"
    if isinstance(structure, (list, tuple)):
        return f"a {type(structure).__name__} of {len(structure)}"
    return "single"


class LogitsDistillation(_OfStructures):
    """The loss between the final outputs of a teacher and a student, which are softened by a temperature.

    Args:
        temperature: outputs are divided by it; the larger it is, the more the small probabilities count.
        loss: a loss, its name or a function of (y_true, y_pred), of which y_true is the teacher's; for several outputs
            a structure of them, in which None leaves an output out.

    Outputs must be logits: a last layer without softmax. Losses that compare probabilities (the KL divergence and
    crossentropies) get ``softmax(logits / temperature)``, or the sigmoid if they are binary, and are multiplied by
    ``temperature ** 2``, so that the gradients keep their size (section 2 of the paper). Keras 3.15 gives such losses
    ``logits / temperature`` as they are, clipped to [1e-7, 1]; its numbers differ. All other losses, those of your
    own as well, get ``logits / temperature``, as in Keras.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.

    Raises:
        ValueError: the temperature is not a positive number, or there is no loss.

    >>> import anabranch as ab
    >>> loss = ab.distillation.LogitsDistillation(temperature=2.0)
    >>> round(float(loss.compute_loss(ab.constant([[2.0, 0.0]]), ab.constant([[0.0, 0.0]]))), 4)
    0.4438
    """

    def __init__(self, temperature: float = 3.0, loss: Nest[LossLike | None] = "kl_divergence") -> None:
        is_number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
        if not is_number or not 0 < temperature < float("inf"):
            raise ValueError(f"LogitsDistillation: temperature must be a positive number, got {temperature!r}.")
        super().__init__(loss)
        self.temperature = temperature

    def _one(self, loss: Callable[..., Tensor], teacher: Tensor, student: Tensor) -> Tensor:
        teacher, student = (ops.convert_to_tensor(each) / self.temperature for each in (teacher, student))
        function, option = loss, _no_option
        if isinstance(loss, LossFunctionWrapper):
            function, option = loss.fn, loss.option
        axis = -1 if (given := option("axis")) is None else given
        if function in _OF_CLASSES:
            probabilities: Callable[[Tensor], Tensor] = lambda logits: ops.softmax(logits, axis=axis)  # noqa: E731
        elif function in _OF_YES_OR_NO:
            probabilities = ops.sigmoid
        else:
            return super()._one(loss, teacher, student)
        student = student if option("from_logits") else probabilities(student)
        return super()._one(loss, probabilities(teacher), student) * self.temperature**2

    def get_config(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "loss": self._written_loss()}


def _no_option(name: str) -> None:
    return None


class FeatureDistillation(_OfStructures):
    """The loss between what a layer of the teacher and a layer of the student give.

    Args:
        loss: as for `LogitsDistillation`; it gets both outputs as they are.
        teacher_layer_name, student_layer_name: layers directly inside of the models, which must be functional or
            `Sequential`; None for the outputs of a model.

    Outputs must have a shape that the loss takes, for most of them the same one: where a student is narrower, give it a
    layer that makes its features as wide.

    Source: Romero et al., "FitNets: Hints for Thin Deep Nets", 2015.

    Raises:
        ValueError: there is no loss.

    >>> import anabranch as ab
    >>> float(FeatureDistillation("mse").compute_loss(ab.constant([[1.0, 2.0]]), ab.constant([[1.0, 4.0]])))
    2.0
    """

    def __init__(
        self,
        loss: Nest[LossLike | None] = "mse",
        teacher_layer_name: str | None = None,
        student_layer_name: str | None = None,
    ) -> None:
        super().__init__(loss)
        self.teacher_layer_name = teacher_layer_name
        self.student_layer_name = student_layer_name

    def validate_model_compatibility(self, teacher: Model, student: Model) -> None:
        for who, model, name in (
            ("teacher", teacher, self.teacher_layer_name),
            ("student", student, self.student_layer_name),
        ):
            if name is None:
                continue
            if model._layer_graph is None:
                raise ValueError(
                    f"FeatureDistillation: the {who}, {model.name!r}, must be a functional model or a Sequential one "
                    f"that starts with an Input, so that layer {name!r} can be found in it. Give {who}_layer_name=None "
                    "to compare outputs."
                )
            model.get_layer(name)

    def get_config(self) -> dict[str, Any]:
        return {
            "loss": self._written_loss(),
            "teacher_layer_name": self.teacher_layer_name,
            "student_layer_name": self.student_layer_name,
        }


register_builtins(
    "keras.distillation",
    {
        "DistillationLoss": DistillationLoss,
        "FeatureDistillation": FeatureDistillation,
        "LogitsDistillation": LogitsDistillation,
    },
)
