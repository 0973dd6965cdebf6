"""Reading side of the golden data made with Keras: typed cases for the tests. See README.md for the fields.

Needs NumPy only. `load_cases("layers")` gives a list of `LayerCase`, and so on for each kind.

Annotations are evaluated here (no ``from __future__ import annotations``), so that the dataclasses can be made when
the file is loaded by its path without an entry in ``sys.modules``.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent
FILES = FOLDER / "files"

Array = NDArray[Any]
LayerKind = Literal["layers", "attention_layers", "convolution_layers"]
Kind = Literal[
    LayerKind,
    "losses",
    "metrics",
    "optimizers",
    "schedules",
    "initializers",
    "fit",
    "penalties",
    "images",
    "mixed",
]

_REFERENCE = re.compile(r"^(\w+)\[([\d,]*)\]@(\d+)$")


def resolve(value: Any, *namespaces: Any) -> Any:
    """Turns ``{"class_name": ..., "config": ...}``, at any depth, into objects.

    Args:
        value: a constructor argument as the json holds it.
        namespaces: modules to look class names up in, such as ``anabranch.layers``; the first that has it wins.

    Raises:
        LookupError: no namespace has the class.
    """
    if isinstance(value, list):
        return [resolve(item, *namespaces) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {"class_name", "config"}:
        return {key: resolve(item, *namespaces) for key, item in value.items()}
    return find(value["class_name"], *namespaces)(**resolve(value["config"], *namespaces))


def find(name: str, *namespaces: Any) -> Any:
    """Looks a class or function up by name in the namespaces, in order."""
    for namespace in namespaces:
        found = getattr(namespace, name, None)
        if found is not None:
            return found
    raise LookupError(f"golden data need {name!r}, found in none of {[str(space) for space in namespaces]}")


@dataclass(frozen=True)
class Case:
    """The fields of all kinds: a name (the test's id), the class or function under test, constructor arguments."""

    name: str
    target: str
    kwargs: dict[str, Any]

    def build(self, *namespaces: Any) -> Any:
        """Constructs the target, and the objects nested in its arguments, from the namespaces given."""
        return find(self.target, *namespaces)(**resolve(self.kwargs, *namespaces))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class LayerCase(Case):
    """A layer called once, and the gradients of ``sum(output * cotangent)`` over all outputs."""

    inputs: dict[str, Array]
    """Every array the call takes, by name: data, masks, initial states."""
    call_args: list[Any]
    """Positional arguments of the call: ``{"input": name}``, or lists of these."""
    call_kwargs: dict[str, Any]
    """Keyword arguments of the call: as `call_args`, or plain values (``training``)."""
    weights: list[Array]
    """In the order of ``layer.weights``."""
    weight_names: list[str]
    initial_weights: dict[int, Array]
    """What the weights that do not start at random (biases, gamma, moving averages) are when just built."""
    outputs: list[Array]
    """The outputs, flattened (``return_state`` gives several)."""
    output_mask: Array | None
    """What ``compute_mask`` gives, for the cases that look at it."""
    cotangents: list[Array]
    """One for each output; empty where the case has no gradients."""
    gradients: dict[str, Array]
    """By the name of the input; float inputs only."""
    weight_gradients: list[Array]
    """In the order of ``layer.trainable_weights``."""
    weights_after: list[Array]
    """Weights after the call where the call changes them (BatchNormalization in training), else empty."""
    config: dict[str, Any] = field(default_factory=dict)
    """What Keras writes into files for the layer, without name and dtype policy; empty where not recorded."""

    def arguments(
        self, convert: Callable[[str, Array], Any] = lambda name, array: array
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of the call, with each input array passed through `convert(name, array)`."""
        converted = {name: convert(name, array) for name, array in self.inputs.items()}
        return _fill(self.call_args, converted), _fill(self.call_kwargs, converted)


@dataclass(frozen=True)
class LossCase(Case):
    """A loss, as a function (``form="function"``) or a class; `kwargs` go to the call or the constructor."""

    form: str
    y_true: Array
    y_pred: Array
    sample_weight: Array | None
    output: Array
    gradient: Array | None
    """Of ``sum(loss(y_true, y_pred, sample_weight))`` with respect to `y_pred`; class form only."""


@dataclass(frozen=True)
class MetricCase(Case):
    """A metric after one and after two updates."""

    updates: list[dict[str, Array]]
    """Keyword arguments of each ``update_state``."""
    results: list[Array]
    """What ``result()`` gives after each update."""


@dataclass(frozen=True)
class OptimizerCase(Case):
    """Steps of fixed gradients on two variables, called ``kernel`` and ``bias``."""

    exclude_from_weight_decay: list[str]
    """Names to pass to ``exclude_from_weight_decay(var_names=...)`` before the first step; may be empty."""
    initial: dict[str, Array]
    gradients: dict[str, Array]
    """Name to ``[steps, ...]``."""
    values: dict[str, Array]
    """Name to ``[steps, ...]``: the value after each step."""
    finalized: dict[str, Array]
    """After ``finalize_variable_values`` (differs from the last value where ``use_ema``)."""
    variables: list[Array]
    """The optimizer's own variables after the last step, in order (iteration, learning rate, slots)."""
    variable_names: list[str]


@dataclass(frozen=True)
class ScheduleCase(Case):
    """Learning rates of a schedule at some steps."""

    steps: list[int]
    outputs: Array


@dataclass(frozen=True)
class InitializerCase(Case):
    """An initialiser: its value if it is deterministic, else statistics of a large sample."""

    shape: list[int]
    output: Array | None
    statistics: dict[str, float]
    """``mean``, ``std``, ``min``, ``max`` over the sample; empty if deterministic."""


@dataclass(frozen=True)
class FitCase(Case):
    """A Sequential model trained with ``fit(shuffle=False)`` from given weights; `target` is ``Sequential``."""

    compile_kwargs: dict[str, Any]
    """For ``compile``; the optimizer is a nested object, losses and metrics are strings."""
    fit_kwargs: dict[str, Any]
    """For ``fit``, without the arrays; ``class_weight`` has int keys."""
    arrays: dict[str, Array]
    """``x``, ``y`` and perhaps ``sample_weight``, to pass to ``fit`` by name."""
    initial_weights: list[Array]
    final_weights: list[Array]
    weight_names: list[str]
    history: dict[str, list[float]]
    evaluate: dict[str, float]
    """``model.evaluate(x, y, batch_size, return_dict=True)`` after training, without sample weights."""
    prediction: Array
    """``model.predict(x)`` after training."""


@dataclass(frozen=True)
class PenaltyCase(Case):
    """A case of a regularizer or a constraint applied to an array."""

    x: Array
    output: Array
    gradient: Array | None
    """Of a regularizer's output with respect to `x`."""


@dataclass(frozen=True)
class ImageCase(Case):
    """A case of an image layer applied to a batch of images."""

    inputs: Array
    outputs: Array
    drawn: dict[str, Array]
    """What a random layer is to have drawn, by our names."""
    given_labels: Array | None
    labels: Array | None
    """The labels of the transformed images."""


@dataclass(frozen=True)
class FileCase:
    """A file that Keras saved, with an input and what its model predicts for it."""

    name: str
    path: Path
    tree: dict[str, str]
    """Datasets of the (inner) HDF5 file: path to ``dtype[shape]``."""
    arrays: dict[str, Array]
    details: dict[str, Any] = field(default_factory=dict)
    """``layers``: what the model is made of, where it has to be rebuilt to load the weights."""


_TYPES: dict[str, type[Case]] = {
    "layers": LayerCase,
    "attention_layers": LayerCase,
    "convolution_layers": LayerCase,
    "losses": LossCase,
    "metrics": MetricCase,
    "optimizers": OptimizerCase,
    "schedules": ScheduleCase,
    "initializers": InitializerCase,
    "fit": FitCase,
    "mixed": FitCase,
    "penalties": PenaltyCase,
    "images": ImageCase,
}


@overload
def load_cases(kind: LayerKind) -> list[LayerCase]: ...
@overload
def load_cases(kind: Literal["losses"]) -> list[LossCase]: ...
@overload
def load_cases(kind: Literal["metrics"]) -> list[MetricCase]: ...
@overload
def load_cases(kind: Literal["optimizers"]) -> list[OptimizerCase]: ...
@overload
def load_cases(kind: Literal["schedules"]) -> list[ScheduleCase]: ...
@overload
def load_cases(kind: Literal["initializers"]) -> list[InitializerCase]: ...
@overload
def load_cases(kind: Literal["fit", "mixed"]) -> list[FitCase]: ...
@overload
def load_cases(kind: Literal["penalties"]) -> list[PenaltyCase]: ...
@overload
def load_cases(kind: Literal["images"]) -> list[ImageCase]: ...
def load_cases(kind: Kind) -> list[Any]:
    """All cases of a kind, in the order of the file.

    Args:
        kind: the stem of the json file, such as ``layers`` or ``losses``; see `Kind`.

    Raises:
        KeyError: there is no such kind.
    """
    if kind not in _TYPES:
        raise KeyError(f"no golden data called {kind!r}; there are {sorted(_TYPES)}")
    return list(_load(kind))


@cache
def _load(kind: str) -> tuple[Case, ...]:
    flat = _read_npz(FOLDER / f"{kind}.npz")
    document = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    parse = _PARSERS[kind]
    return tuple(parse(_decode(case, flat)) for case in document["cases"])


def load_files() -> list[FileCase]:
    """The files in ``files/``: `path` to open, `arrays` with ``prediction`` and what it was made from."""
    document = json.loads((FILES / "files.json").read_text(encoding="utf-8"))
    return [
        FileCase(
            name=entry["name"],
            path=FILES / entry["file"],
            tree=entry["tree"],
            arrays=_read_npz(FILES / entry["arrays"]),
            details=entry.get("details", {}),
        )
        for entry in document["files"]
    ]


def _read_npz(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _decode(value: Any, flat: dict[str, Array]) -> Any:
    """Replaces reference text by arrays, at any depth."""
    if isinstance(value, dict):
        return {key: _decode(item, flat) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item, flat) for item in value]
    match = _REFERENCE.match(value) if isinstance(value, str) else None
    if match is None:
        return value
    shape = [int(size) for size in match[2].split(",") if size]
    start = int(match[3])
    # A copy: a test that writes into its array must not change the next test's.
    return flat[match[1]][start : start + int(np.prod(shape))].reshape(shape).copy()


def _fill(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_fill(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"input"}:
        return arrays[value["input"]]
    return {key: _fill(item, arrays) for key, item in value.items()}


def _layer(case: dict[str, Any]) -> LayerCase:
    return LayerCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        inputs=case["inputs"],
        call_args=case["call_args"],
        call_kwargs=case.get("call_kwargs", {}),
        weights=case["weights"],
        weight_names=case["weight_names"],
        initial_weights={int(index): array for index, array in case.get("initial_weights", {}).items()},
        outputs=case["outputs"],
        output_mask=case.get("output_mask"),
        cotangents=case["cotangents"],
        gradients=case.get("gradients", {}),
        weight_gradients=case["weight_gradients"],
        weights_after=case.get("weights_after", []),
        config=case.get("config", {}),
    )


def _loss(case: dict[str, Any]) -> LossCase:
    return LossCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        form=case["form"],
        y_true=case["y_true"],
        y_pred=case["y_pred"],
        sample_weight=case.get("sample_weight"),
        output=case["output"],
        gradient=case.get("gradient"),
    )


def _metric(case: dict[str, Any]) -> MetricCase:
    return MetricCase(case["name"], case["target"], case.get("kwargs", {}), case["updates"], case["results"])


def _optimizer(case: dict[str, Any]) -> OptimizerCase:
    return OptimizerCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        exclude_from_weight_decay=case.get("exclude_from_weight_decay", []),
        initial=case["initial"],
        gradients=case["gradients"],
        values=case["values"],
        finalized=case["finalized"],
        variables=case["variables"],
        variable_names=case["variable_names"],
    )


def _schedule(case: dict[str, Any]) -> ScheduleCase:
    return ScheduleCase(case["name"], case["target"], case["kwargs"], case["steps"], case["outputs"])


def _initializer(case: dict[str, Any]) -> InitializerCase:
    return InitializerCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        shape=case["shape"],
        output=case.get("output"),
        statistics=case.get("statistics", {}),
    )


def _fit(case: dict[str, Any]) -> FitCase:
    fit_kwargs = dict(case["fit_kwargs"])
    if "class_weight" in fit_kwargs:
        fit_kwargs["class_weight"] = {int(label): weight for label, weight in fit_kwargs["class_weight"].items()}
    return FitCase(
        name=case["name"],
        target=case["target"],
        kwargs=case["kwargs"],
        compile_kwargs=case["compile_kwargs"],
        fit_kwargs=fit_kwargs,
        arrays=case["arrays"],
        initial_weights=case["initial_weights"],
        final_weights=case["final_weights"],
        weight_names=case["weight_names"],
        history=case["history"],
        evaluate=case["evaluate"],
        prediction=case["prediction"],
    )


def _penalty(case: dict[str, Any]) -> PenaltyCase:
    return PenaltyCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        x=case["x"],
        output=case["output"],
        gradient=case.get("gradient"),
    )


def _image(case: dict[str, Any]) -> ImageCase:
    return ImageCase(
        name=case["name"],
        target=case["target"],
        kwargs=case.get("kwargs", {}),
        inputs=case["inputs"],
        outputs=case["outputs"],
        drawn=case.get("drawn", {}),
        given_labels=case.get("given_labels"),
        labels=case.get("labels"),
    )


_PARSERS: dict[str, Callable[[dict[str, Any]], Case]] = {
    "layers": _layer,
    "attention_layers": _layer,
    "convolution_layers": _layer,
    "losses": _loss,
    "metrics": _metric,
    "optimizers": _optimizer,
    "schedules": _schedule,
    "initializers": _initializer,
    "fit": _fit,
    "mixed": _fit,
    "penalties": _penalty,
    "images": _image,
}
