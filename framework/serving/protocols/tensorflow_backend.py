"""`TensorFlowBackend`: the models of a server by TensorFlow Serving's gRPC services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....distribute.inference import ModelSpec, RequestError, SignatureTensors, TypedArray, VersionState
from ..catalogue import Catalogue
from ..servable import Servable
from ..signature import TENSORFLOW, Signature, TensorInfo, check_known
from ..values import as_input

if TYPE_CHECKING:
    from ...structures import Array


class TensorFlowBackend:
    """Implements `PredictionBackend`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def check_rows(self, spec: ModelSpec, rows: Mapping[str, int]) -> None:
        model = self._catalogue.find(spec.name, spec.version, spec.label)
        signature = model.servable.signature(spec.signature)
        model.servable.check_names(signature, rows)
        for info in signature.inputs:
            if info.shape and info.shape[0] is None:
                model.check_size(rows[info.name])

    async def predict(
        self, spec: ModelSpec, read: Callable[[], Mapping[str, TypedArray]], size: int, outputs: Sequence[str]
    ) -> tuple[int, dict[str, TypedArray]]:
        model = self._catalogue.find(spec.name, spec.version, spec.label)
        signature = model.servable.signature(spec.signature)
        infos = {info.name: info for info in signature.outputs}
        check_known("output", outputs, infos)
        arrays = await model.prepare(lambda: _arrays(signature, read()), size)
        values = model.servable.by_name(signature, await model.run(arrays, spec.signature))
        found = {name: TypedArray(infos[name].dtype, values[name]) for name in outputs or infos}
        return int(model.version), found

    def signatures(self, spec: ModelSpec) -> tuple[int, dict[str, SignatureTensors]]:
        model = self._catalogue.find(spec.name, spec.version, spec.label)
        found = {
            name: SignatureTensors(_described(each.inputs), _described(each.outputs))
            for name, each in model.servable.signatures.items()
        }
        return int(model.version), found

    def states(self, spec: ModelSpec) -> list[VersionState]:
        return version_states(self._catalogue, spec)


def version_states(catalogue: Catalogue, spec: ModelSpec) -> list[VersionState]:
    """Return the states of the versions that are meant, the highest first.

    Raises:
        RequestError: there is none.
    """
    entry = catalogue.models.get(spec.name)
    if entry is not None:
        catalogue.check_token(spec.name)
    failed = {} if entry is None or spec.label else entry.failed
    if spec.version.isdecimal() and int(spec.version) in failed:
        number = int(spec.version)
        return [VersionState(number, "END", failed[number])]
    if spec.version or spec.label or entry is None or not (entry.loaded or failed):
        number = int(catalogue.find_any(spec.name, spec.version, spec.label).version)
        return [VersionState(number, "AVAILABLE", "")]
    states = {number: VersionState(number, "AVAILABLE", "") for number in entry.loaded}
    states |= {number: VersionState(number, "END", why) for number, why in failed.items()}
    return [states[number] for number in sorted(states, reverse=True)]


def _arrays(signature: Signature, given: Mapping[str, TypedArray]) -> list[Array]:
    Servable.check_names(signature, given)  # another version may have come since its rows were checked
    return [_array(info, given[info.name]) for info in signature.inputs]


def _array(info: TensorInfo, given: TypedArray) -> Array:
    if given.dtype != info.dtype and not (info.image is not None and given.dtype == "string"):
        raise RequestError(
            400, f"Input {info.name!r}: expected the dtype {TENSORFLOW[info.dtype]}, got {TENSORFLOW[given.dtype]}."
        )
    return as_input(info, given.array)


def _described(infos: Sequence[TensorInfo]) -> dict[str, tuple[str, Sequence[int], str]]:
    return {info.name: (info.dtype, info.open_shape, info.tensor) for info in infos}
