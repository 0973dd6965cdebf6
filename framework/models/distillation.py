"""Training of a student by a teacher: what ``anabranch.distillation`` is, with the names of Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ...engine import ops
from ...engine.common.nest import flatten, map_structure
from ...engine.objects.registry import deserialize_keras_object, register_builtins, serialize_keras_object
from ..losses.distillation import DistillationLoss, FeatureDistillation, LogitsDistillation
from ..metrics.api import Mean
from ..training.objectives import row_count
from .api import Model

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..model_types import Losses, Metrics
    from ..structures import OptimizerLike, Tensors


class Distiller(Model):
    """Trains a student on targets and on what a trained teacher computes; its outputs are the student's.

    Args:
        teacher: a trained model. It is frozen, computes in inference, and gets no gradients.
        student: the model to train. It is yours: after `fit` use it as any other.
        distillation_losses: a `DistillationLoss` or a list of them.
        distillation_loss_weights: a factor for each of them; by default 1.
        student_loss_weight: the share s of the loss on targets. A step minimises
            ``s * student_loss + (1 - s) * distillation_loss``. At 0 `compile` needs no loss, at 1 the teacher is not
            asked.
        name, **kwargs: as for `Model`.

    The logs have ``student_loss``, ``distillation_loss`` (the weighted sum) and ``total_loss`` beside the metrics.
    Weights of examples and what layers add to the loss are part of the student's loss; in Keras weights are not used.

    Raises:
        ValueError: the models don't fit each other or the losses, or a weight makes no sense.
        TypeError: something is not a model, or not a loss.

    >>> import anabranch as ab
    >>> teacher, student = (ab.Sequential([ab.Input((2,)), ab.layers.Dense(3)]) for _ in range(2))
    >>> distiller = Distiller(teacher, student, LogitsDistillation(temperature=2.0))
    >>> distiller.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> sorted(distiller.fit([[1.0, 2.0]], [0], verbose=0).history)
    ['distillation_loss', 'loss', 'student_loss', 'total_loss']
    """

    untracked = Model.untracked | {"_extractors", "_latest_student"}

    def __init__(
        self,
        teacher: Model,
        student: Model,
        distillation_losses: DistillationLoss | Sequence[DistillationLoss],
        distillation_loss_weights: float | Sequence[float] | None = None,
        student_loss_weight: float = 0.5,
        name: str | None = "distiller",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        _check_models(teacher, student)
        self.teacher = teacher
        self.student = student
        self.distillation_losses = _as_losses(distillation_losses)
        self.distillation_loss_weights = _as_weights(distillation_loss_weights, len(self.distillation_losses))
        if not 0 <= student_loss_weight <= 1:
            raise ValueError(f"Distiller: student_loss_weight must be from 0 to 1, got {student_loss_weight!r}.")
        self.student_loss_weight = student_loss_weight
        for loss in self.distillation_losses:
            loss.validate_model_compatibility(teacher, student)
        teacher.trainable = False
        self._extractors = {
            who: _extractor(model, [getattr(loss, f"{who}_layer_name", None) for loss in self.distillation_losses])
            for who, model in (("teacher", teacher), ("student", student))
        }
        self._latest_student: tuple[object, list[Tensor]] | None = None
        self.student_loss_tracker = Mean(name="student_loss")
        self.distillation_loss_tracker = Mean(name="distillation_loss")
        self.total_loss_tracker = Mean(name="total_loss")
        self.built = teacher.built and student.built

    def _compile(
        self, optimizer: OptimizerLike = "adam", loss: Losses = None, metrics: Metrics = None, **kwargs: Any
    ) -> None:
        """Configure the student for training.

        Args:
            optimizer: an optimizer or its name.
            loss: the loss on targets; needed unless `student_loss_weight` is 0.
            metrics: a list of metrics of the student's outputs.
            **kwargs: as for `Model.compile`.
        """
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    # For type checkers any arguments: the third one differs from that of `Model.compile`, as in Keras.
    compile: Callable[..., None] = _compile

    def get_compile_config(self) -> dict[str, Any] | None:
        return super().get_compile_config()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs of the student."""
        outputs, features = self._run("student", inputs, training)
        # The step that is being built compares these features: a second pass would draw other dropout.
        self._latest_student = (outputs, features) if self._is_building_step else None
        return outputs

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of a batch: that on targets and that against the teacher, by their weights.

        Args:
            x, y, y_pred, sample_weight: inputs, targets, the student's outputs and weights of the batch.
            training: whether the step is one of training.
        """
        share = self.student_loss_weight
        student_loss = distillation_loss = ops.convert_to_tensor(0.0)
        if share > 0:
            student_loss = self._student_loss(x, y, y_pred, sample_weight, training)
        if share < 1:
            distillation_loss = self._distillation_loss(x, y_pred, training)
        self._latest_student = None
        total = share * student_loss + (1 - share) * ops.cast(distillation_loss, student_loss.dtype)
        rows = row_count(x)
        self.student_loss_tracker.update_state(student_loss, sample_weight=rows)
        self.distillation_loss_tracker.update_state(distillation_loss, sample_weight=rows)
        self.total_loss_tracker.update_state(total, sample_weight=rows)
        return total

    def _student_loss(
        self, x: Tensors | None, y: Tensors | None, y_pred: Tensors, sample_weight: Tensors | None, training: bool
    ) -> Any:
        if self._compiled_loss is None:
            raise ValueError(
                f"Distiller {self.name!r} has no loss for the student: pass loss=... to compile(), or make it with "
                "student_loss_weight=0 to train on the teacher alone."
            )
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _distillation_loss(self, x: Tensors | None, y_pred: Tensors, training: bool) -> Tensor:
        teacher_outputs, teacher_features = self._run("teacher", x, False)
        latest = self._latest_student
        if latest is None:
            latest = y_pred, self._run("student", x, training)[1] if self._extractors["student"] else []
        student_features = latest[1]
        teacher_outputs, teacher_features = map_structure(ops.stop_gradient, (teacher_outputs, list(teacher_features)))
        terms: list[Tensor] = []
        for loss, weight in zip(self.distillation_losses, self.distillation_loss_weights, strict=True):
            of_teacher = getattr(loss, "teacher_layer_name", None)
            of_student = getattr(loss, "student_layer_name", None)
            taught = teacher_outputs if of_teacher is None else teacher_features.pop(0)
            learnt = y_pred if of_student is None else student_features[0]
            student_features = student_features if of_student is None else student_features[1:]
            terms.append(weight * loss.compute_loss(taught, learnt))
        return sum(terms[1:], terms[0])

    def _run(self, who: str, inputs: Tensors | None, training: bool | None) -> tuple[object, list[Tensor]]:
        """Return the outputs of a model, and the features that losses ask for, in the order of the losses."""
        extractor = self._extractors[who]
        if extractor is None:
            return getattr(self, who)(inputs, training=training), []
        outputs, *features = extractor(inputs, training=training)
        return outputs, features

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": serialize_keras_object(self.dtype_policy),
            "teacher": serialize_keras_object(self.teacher),
            "student": serialize_keras_object(self.student),
            "distillation_losses": [serialize_keras_object(loss) for loss in self.distillation_losses],
            "distillation_loss_weights": list(self.distillation_loss_weights),
            "student_loss_weight": self.student_loss_weight,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, object] | None = None) -> Self:
        return cls(**deserialize_keras_object(dict(config), custom_objects))


def _check_models(teacher: Model, student: Model) -> None:
    """Check that two models have inputs and outputs of the same shapes, as far as these are known."""
    for who, model in (("teacher", teacher), ("student", student)):
        if not isinstance(model, Model):
            raise TypeError(f"Distiller: the {who} must be a Model, got {type(model).__name__}.")
    if teacher._layer_graph is None or student._layer_graph is None:
        return
    for what in ("inputs", "outputs"):
        ours, theirs = ([tuple(each.shape) for each in flatten(getattr(m, what))] for m in (teacher, student))
        fits = len(ours) == len(theirs) and all(map(_fit, ours, theirs))
        if not fits:
            raise ValueError(
                f"Distiller: teacher and student must have {what} of the same shapes; the teacher's are {ours}, the "
                f"student's {theirs}."
            )


def _fit(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _as_losses(given: DistillationLoss | Sequence[DistillationLoss]) -> list[DistillationLoss]:
    found: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise ValueError("Distiller: distillation_losses is empty. Give one, such as LogitsDistillation().")
    for each in found:
        if not isinstance(each, DistillationLoss):
            raise TypeError(
                f"Distiller: distillation_losses must be DistillationLoss objects, got {each!r} of type "
                f"{type(each).__name__}. Give LogitsDistillation(), FeatureDistillation() or a subclass of your own."
            )
    return found


def _as_weights(given: float | Sequence[float] | None, count: int) -> list[float]:
    found: list[Any] = [1.0] * count if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    if len(found) != count:
        raise ValueError(
            f"Distiller: distillation_loss_weights has {len(found)} numbers for {count} distillation_losses. Give one "
            "for each."
        )
    return [float(weight) for weight in found]


def _extractor(model: Model, names: list[str | None]) -> Model | None:
    """Return a model that gives the outputs of a model and those of some layers; None where no layer is named."""
    wanted = [name for name in names if name is not None]
    if not wanted:
        return None
    return Model(model.input, [model.output, *[model.get_layer(name).output for name in wanted]])


register_builtins("keras.distillation", {"Distiller": Distiller})

__all__ = ["DistillationLoss", "Distiller", "FeatureDistillation", "LogitsDistillation"]
