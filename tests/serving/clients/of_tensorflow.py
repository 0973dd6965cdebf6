"""Asks the model "letters" by tensorflow-serving-api: run by a Python that has it, with an address and two files."""

import sys
from importlib import import_module

import grpc
import numpy as np

tf = import_module("tensorflow")
predictions, models, metadata, states, predict = (
    import_module(f"tensorflow_serving.apis.{name}")
    for name in (
        "prediction_service_pb2_grpc",
        "model_service_pb2_grpc",
        "get_model_metadata_pb2",
        "get_model_status_pb2",
        "predict_pb2",
    )
)
address, given, wanted = sys.argv[1:]
channel = grpc.insecure_channel(address)
service = predictions.PredictionServiceStub(channel)
request = predict.PredictRequest()
request.model_spec.name = "letters"
request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.load(given)))
np.save(wanted, tf.make_ndarray(service.Predict(request, timeout=60).outputs["output_0"]))

asked = metadata.GetModelMetadataRequest()
asked.model_spec.name = "letters"
asked.metadata_field.append("signature_def")
signatures = metadata.SignatureDefMap()
assert service.GetModelMetadata(asked, timeout=60).metadata["signature_def"].Unpack(signatures)
assert signatures.signature_def["serving_default"].inputs["x"].dtype == tf.int64.as_datatype_enum

status = states.GetModelStatusRequest()
status.model_spec.name = "letters"
(found,) = models.ModelServiceStub(channel).GetModelStatus(status, timeout=60).model_version_status
assert found.state == states.ModelVersionStatus.AVAILABLE
channel.close()
