"""TensorFlow Serving's gRPC services: predictions, signatures and states of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import ModelSpec, PredictionBackend, RequestError, SignatureTensors, TypedArray
from .large import beside_others
from .messages import message_class
from .tensors import array_of, number_of, rows_of, shape_of, tensor_of

PREDICTION, MODELS = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
_METHOD = "tensorflow/serving/predict"
_DEFAULT = "serving_default"  # the signature that answers where none is named
_SIGNATURES = "signature_def"  # the only field of metadata that there is
_UNKNOWN = 2  # gRPC's code


def _class(name: str) -> Any:
    return message_class(f"tensorflow.serving.{name}")


def _asked(spec: Any) -> ModelSpec:
    version = str(spec.version.value) if spec.WhichOneof("version_choice") == "version" else ""
    return ModelSpec(spec.name, version, spec.version_label, spec.signature_name)


def _spec(asked: ModelSpec, version: int) -> dict[str, Any]:
    return {"name": asked.name, "version": {"value": version}, "signature_name": asked.signature}


class PredictionService:
    """`Predict` and `GetModelMetadata`.

    Args:
        backend: answers.
        most_bytes: the largest input.
    """

    def __init__(self, backend: PredictionBackend, most_bytes: int) -> None:
        self._backend, self._most_bytes = backend, most_bytes

    async def predict(self, request: Any) -> Any:
        asked = _asked(request.model_spec)
        self._backend.check_rows(asked, {name: rows_of(tensor) for name, tensor in request.inputs.items()})
        size = sum([tensor.ByteSize() - len(tensor.tensor_content) for tensor in request.inputs.values()])

        def read() -> dict[str, TypedArray]:
            return {name: array_of(name, tensor, self._most_bytes) for name, tensor in request.inputs.items()}

        version, outputs = await self._backend.predict(asked, read, size, list(request.output_filter))
        size = sum([array.nbytes for dtype, array in outputs.values() if dtype == "string"])
        answered = asked._replace(signature=asked.signature or _DEFAULT)
        return await beside_others(size, _response, _spec(answered, version), outputs)

    async def get_model_metadata(self, request: Any) -> Any:
        asked = _asked(request.model_spec)
        unknown = [field for field in request.metadata_field if field != _SIGNATURES]
        if unknown or not request.metadata_field:
            raise RequestError(400, f"metadata_field has to be [{_SIGNATURES!r}]; got {list(request.metadata_field)}.")
        version, signatures = self._backend.signatures(asked)
        made = _class("SignatureDefMap")(signature_def={name: _written(each) for name, each in signatures.items()})
        response = _class("GetModelMetadataResponse")(model_spec=_spec(asked, version))
        response.metadata[_SIGNATURES].Pack(made)
        return response


class ModelService:
    """`GetModelStatus`."""

    def __init__(self, backend: PredictionBackend) -> None:
        self._backend = backend

    async def get_model_status(self, request: Any) -> Any:
        response = _class("GetModelStatusResponse")()
        for version, state, failure in self._backend.states(_asked(request.model_spec)):
            status = {"error_code": _UNKNOWN if failure else 0, "error_message": failure}
            response.model_version_status.add(version=version, state=state, status=status)
        return response


def _response(spec: Mapping[str, Any], outputs: Mapping[str, TypedArray]) -> Any:
    response = _class("PredictResponse")(model_spec=spec)
    for name, (dtype, array) in outputs.items():
        response.outputs[name].CopyFrom(tensor_of(dtype, array))
    return response


def _written(signature: SignatureTensors) -> Any:
    message = message_class("tensorflow.SignatureDef")(method_name=_METHOD)
    for kind in ("inputs", "outputs"):
        for name, (dtype, sizes, tensor) in getattr(signature, kind).items():
            info = getattr(message, kind)[name]
            info.name, info.dtype = tensor, number_of(dtype)
            info.tensor_shape.CopyFrom(shape_of(sizes))
    return message
