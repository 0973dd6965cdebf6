"""Distillation: the losses against formulas and Keras 3.15.1, and the model that trains a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import distillation, layers, losses

DistillationLoss, Distiller = distillation.DistillationLoss, distillation.Distiller
FeatureDistillation, LogitsDistillation = distillation.FeatureDistillation, distillation.LogitsDistillation

TEACHER = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0]], "float32")
STUDENT = np.array([[0.5, 1.0, 0.0], [1.0, 1.0, 2.0]], "float32")
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], "float32")
Y = np.array([0, 2, 1])


# What Keras 3.15.1 logs for `distiller()`: before training, and in two epochs; then the first kernel of its student.
KERAS = {
    "accuracy": [0.6666666865348816] * 3,
    "distillation_loss": [57.905311584472656, 57.905311584472656, 56.10232162475586],
    "loss": [40.729164123535156, 40.729164123535156, 39.47119903564453],
    "student_loss": [0.651485025882721, 0.651485025882721, 0.6652408242225647],
    "total_loss": [40.729164123535156, 40.729164123535156, 39.47119903564453],
}
KERNEL = [
    [0.12131766229867935, 0.5775725245475769, 1.0338274240493774, 1.4900822639465332],
    [-1.5136903524398804, -1.067372441291809, -0.6210543513298035, -0.17473633587360382],
]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def model(name: str | None = None, flipped: bool = False, **options: Any) -> ab.Model:
    made = ab.Sequential([ab.Input((2,)), layers.Dense(4, name="h"), layers.Dense(3, name="o", **options)], name=name)
    weights = [np.linspace(-1, 1, w.size, dtype="float32").reshape(w.shape) * (11 / 7) for w in made.get_weights()]
    made.set_weights([w[::-1] for w in weights] if flipped else weights)
    return made


# --- losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_probabilities_are_compared_as_in_the_paper(temperature: float) -> None:
    p, q = softmax(TEACHER / temperature), softmax(STUDENT / temperature)
    divergence = (p * np.log(p / q)).sum(-1).mean() * temperature**2
    entropy = -(p * np.log(q)).sum(-1).mean() * temperature**2
    for loss, expected in (
        ("kl_divergence", divergence),
        (losses.KLDivergence(), divergence),
        ("categorical_crossentropy", entropy),
        (losses.CategoricalCrossentropy(from_logits=True), entropy),
    ):
        found = LogitsDistillation(temperature, loss).compute_loss(TEACHER, STUDENT)
        np.testing.assert_allclose(float(found), expected, rtol=1e-5)


def test_probabilities_of_yes_and_no() -> None:
    p, q = (1 / (1 + np.exp(-each / 2)) for each in (TEACHER, STUDENT))
    expected = -(p * np.log(q) + (1 - p) * np.log(1 - q)).mean() * 4
    for loss in ("binary_crossentropy", losses.BinaryCrossentropy(from_logits=True)):
        np.testing.assert_allclose(
            float(LogitsDistillation(2, loss).compute_loss(TEACHER, STUDENT)), expected, rtol=1e-5
        )


def test_gradients_keep_their_size_at_high_temperatures() -> None:
    """At a high temperature T the gradient of the divergence times T ** 2 is that of a squared distance."""
    student = ab.Variable(STUDENT)
    with ab.GradientTape() as tape:
        loss = LogitsDistillation(1000.0).compute_loss(TEACHER, student)
    centred = [each - each.mean(-1, keepdims=True) for each in (TEACHER, STUDENT)]
    np.testing.assert_allclose(tape.gradient(loss, student), (centred[1] - centred[0]) / 3 / 2, rtol=2e-2, atol=1e-3)


def test_other_losses_as_in_keras() -> None:
    """The numbers are those of Keras 3.15.1."""
    outputs = [TEACHER, TEACHER], [TEACHER + 1, TEACHER + 2]
    assert float(LogitsDistillation(2.0, ["mse", "mse"]).compute_loss(*outputs)) == 1.25
    np.testing.assert_allclose(float(LogitsDistillation(3.0, ["mse", None]).compute_loss(*outputs)), 1 / 9, rtol=1e-5)
    by_name = [{"a": each[0], "b": each[1]} for each in outputs]
    assert float(LogitsDistillation(2.0, {"a": "mse", "b": None}).compute_loss(*by_name)) == 0.25
    for loss, expected in (("mse", 2.5416667461395264), ("cosine_similarity", -0.5726684331893921)):
        np.testing.assert_allclose(float(FeatureDistillation(loss).compute_loss(TEACHER, STUDENT)), expected, rtol=1e-6)


def test_nan_is_passed_on() -> None:
    found = LogitsDistillation().compute_loss(np.full((1, 3), np.nan, "float32"), STUDENT[:1])
    assert np.isnan(float(found))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: LogitsDistillation(0), "temperature must be a positive number, got 0"),
        (lambda: LogitsDistillation("warm"), "temperature must be a positive number, got 'warm'"),  # type: ignore
        (lambda: LogitsDistillation(float("nan")), "positive number, got nan"),
        (lambda: LogitsDistillation(loss=[None]), "has nothing but None"),
        (lambda: FeatureDistillation(None), "has nothing but None"),
        (
            lambda: LogitsDistillation().compute_loss([TEACHER] * 2, [STUDENT] * 2),
            "loss must have the structure of the student's outputs, which are a list of 2; got single",
        ),
        (lambda: LogitsDistillation().compute_loss(TEACHER, [STUDENT] * 2), "the teacher gives 1 tensors, the student"),
    ],
)
def test_losses_that_make_no_sense(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


# --- the model ------------------------------------------------------------------------------------------------------


def distiller() -> distillation.Distiller:
    made = [LogitsDistillation(2.0, "mse"), FeatureDistillation("mse", "h", "h")]
    both = Distiller(model(), model(flipped=True), made, [0.5, 2.0], student_loss_weight=0.3)
    both.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return both


def test_outputs_of_other_structures_do_not_go_together() -> None:
    tensor = ab.constant(STUDENT)
    for loss in (LogitsDistillation(), ab.distillation.FeatureDistillation()):
        loss.validate_outputs(tensor, tensor)
        with pytest.raises(ValueError, match="the teacher's outputs must have the structure of the student's"):
            loss.validate_outputs(tensor, {"output": tensor})


def test_numbers_of_keras() -> None:
    both = distiller()
    before = both.teacher.get_weights()
    first = both.evaluate(X, Y, return_dict=True, verbose=0)
    history = both.fit(X, Y, batch_size=3, epochs=2, verbose=0).history
    for key, expected in KERAS.items():
        np.testing.assert_allclose([first[key], *history[key]], expected, rtol=1e-5, err_msg=key)
    np.testing.assert_allclose(both.student.get_weights()[0], KERNEL, rtol=1e-4)
    for old, new in zip(before, both.teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert len(both.trainable_weights) == 4
    np.testing.assert_array_equal(both.predict(X, verbose=0), both.student.predict(X, verbose=0))


def test_shares_of_the_losses() -> None:
    x = X[:2]
    y = np.ones((2, 3), "float32")
    for share in (0.0, 0.5, 1.0):
        both = Distiller(model(), model(flipped=True), LogitsDistillation(2.0, "mse"), student_loss_weight=share)
        both.compile(loss=None if share == 0 else "mse")
        found = both.evaluate(x, None if share == 0 else y, return_dict=True, verbose=0)
        taught, learnt = (each.predict(x, verbose=0) for each in (both.teacher, both.student))
        student_loss = ((learnt - y) ** 2).mean() * (share > 0)
        distillation_loss = ((taught - learnt) ** 2).mean() / 4 * (share < 1)
        np.testing.assert_allclose(found["student_loss"], student_loss, rtol=1e-5)
        np.testing.assert_allclose(found["distillation_loss"], distillation_loss, rtol=1e-5)
        np.testing.assert_allclose(found["loss"], share * student_loss + (1 - share) * distillation_loss, rtol=1e-5)
        assert found["loss"] == found["total_loss"]
    assert type(both.optimizer).__name__ == "Adam"


def test_features_come_from_the_pass_that_gives_the_outputs() -> None:
    """Features and outputs of the student have the same dropout, and statistics move once a step."""
    x = ab.Input((4,))
    hidden = layers.BatchNormalization(momentum=0.5, name="norm")(layers.Dropout(0.5, seed=1, name="drop")(x))
    student = ab.Model(x, layers.Activation("linear")(hidden))
    teacher = ab.Sequential([ab.Input((4,)), layers.Activation("linear", name="drop")])

    class Kept(FeatureDistillation):
        def compute_loss(self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any) -> Any:
            return ab.ops.mean(student_outputs)

    made = [Kept("mse", "drop", "drop"), LogitsDistillation(1.0, "mse")]
    both = Distiller(teacher, student, made, [1.0, 0.0], student_loss_weight=0.0)
    both.compile(ab.optimizers.SGD(0.0))
    mean = both.fit(np.ones((8, 4), "float32"), verbose=0, batch_size=8).history["distillation_loss"][0]
    np.testing.assert_allclose(student.get_layer("norm").moving_mean.numpy().mean(), mean / 2, rtol=1e-5)


def test_a_student_learns_from_a_teacher_alone() -> None:
    x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    both = Distiller(model(), model(flipped=True), LogitsDistillation(3.0), student_loss_weight=0.0)
    both.compile(ab.optimizers.Adam(0.1))
    both.fit(x, epochs=30, verbose=0)
    taught, learnt = (each.predict(x, verbose=0) for each in (both.teacher, both.student))
    assert np.abs(softmax(taught) - softmax(learnt)).max() < 0.1


class Distance(DistillationLoss):
    def __init__(self, power: int) -> None:
        self.power = power

    def compute_loss(self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any) -> Any:
        return ab.ops.mean(ab.ops.abs(teacher_outputs - student_outputs) ** self.power)

    def get_config(self) -> dict[str, Any]:
        return {"power": self.power}


def test_saved_and_loaded(tmp_path: Path) -> None:
    both = distiller()
    both.fit(X, Y, verbose=0)
    both.save(tmp_path / "both.keras")
    again = ab.models.load_model(tmp_path / "both.keras")
    assert again.get_config() == both.get_config()
    assert again.evaluate(X, Y, verbose=0) == both.evaluate(X, Y, verbose=0)
    own = Distiller(model(), model(flipped=True), Distance(3), student_loss_weight=0)
    own.save(tmp_path / "own.keras")
    loaded: Any = ab.models.load_model(tmp_path / "own.keras", custom_objects={"Distance": Distance})
    assert loaded.distillation_losses[0].power == 3
    assert loaded.get_config()["distillation_losses"][0]["class_name"] == "Distance"


def test_models_of_python_code() -> None:
    class Own(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    teacher = Own()
    teacher(X)
    both = Distiller(teacher, Own(), LogitsDistillation())
    both.compile(loss=losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(both.fit(X, Y, verbose=0).history["loss"]).all()
    with pytest.raises(ValueError, match=r"the teacher, '.*', must be a functional model or a Sequential one"):
        Distiller(teacher, model(), FeatureDistillation("mse", "dense", "h"))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Distiller(3, model(), Distance(1)), TypeError, "the teacher must be a Model, got int"),  # type: ignore
        (lambda: Distiller(model(), model(), "mse"), TypeError, "must be DistillationLoss objects, got 'mse'"),  # type: ignore
        (lambda: Distiller(model(), model(), []), ValueError, "distillation_losses is empty"),
        (lambda: Distiller(model(), model(), Distance(1), [1.0, 2.0]), ValueError, "has 2 numbers for 1"),
        (lambda: Distiller(model(), model(), Distance(1), None, 1.5), ValueError, "from 0 to 1, got 1.5"),
        (
            lambda: Distiller(model(), model(), FeatureDistillation("mse", "nope", "h")),
            ValueError,
            "has no layer called 'nope'",
        ),
        (
            lambda: Distiller(ab.Sequential([ab.Input((2,)), layers.Dense(4)]), model(), Distance(1)),
            ValueError,
            r"outputs of the same shapes; the teacher's are \[\(None, 4\)\], the student's \[\(None, 3\)\]",
        ),
    ],
)
def test_distillers_that_make_no_sense(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_a_student_without_a_loss() -> None:
    both = Distiller(model(), model(flipped=True), Distance(1))
    both.compile()
    with pytest.raises(ValueError, match="has no loss for the student: pass loss="):
        both.fit(X, Y, verbose=0)


def test_names() -> None:
    assert distillation.__all__ == ["DistillationLoss", "Distiller", "FeatureDistillation", "LogitsDistillation"]
