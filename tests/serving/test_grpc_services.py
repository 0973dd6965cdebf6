"""gRPC's health and reflection, over a real channel, as tools use them."""

import threading
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from shared.serving_clients import call, call_stream
from shared.waiting import PATIENCE, Waiting

from anabranch.distribute.inference.messages import SERVICE, methods_of

HEALTH = "grpc.health.v1.Health"


def test_health(served: Any) -> None:
    address = served.server.grpc_address
    for name in ("", "letters", "inference.GRPCInferenceService"):
        assert call(address, f"{HEALTH}/Check", service=name).status == 1
    with pytest.raises(grpc.RpcError) as caught:
        call(address, f"{HEALTH}/Check", service="half")
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.NOT_FOUND


def test_health_is_watched(served: Any) -> None:
    watch = next(each for each in methods_of(HEALTH) if each.name == "Watch")
    with grpc.insecure_channel(served.server.grpc_address) as channel:
        stub = channel.unary_stream(
            f"/{HEALTH}/Watch",
            request_serializer=watch.request.SerializeToString,
            response_deserializer=watch.response.FromString,
        )
        for name, status in (("letters", 1), ("half", 3)):
            found = stub(watch.request(service=name), timeout=60)
            assert next(found).status == status
            found.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(served: Any, version: str) -> None:
    method = f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    wanted = "tensorflow.serving.PredictionService"
    asked = [
        {"list_services": ""},
        {"file_containing_symbol": wanted},
        {"file_containing_symbol": f"{wanted}.Predict"},
        {"file_by_filename": "google/protobuf/any.proto"},
        {"file_containing_symbol": "nothing.Here"},
        {"all_extension_numbers_of_type": "x"},
    ]
    listed, file, again, known, missing, other = call_stream(served.server.grpc_address, method, asked)
    names = {each.name for each in listed.list_services_response.service}
    assert {wanted, HEALTH, "inference.GRPCInferenceService", f"grpc.reflection.{version}.ServerReflection"} <= names
    assert again.file_descriptor_response == file.file_descriptor_response
    assert len(known.file_descriptor_response.file_descriptor_proto) == 1
    assert (missing.error_response.error_code, other.error_response.error_code) == (5, 12)
    pool = descriptor_pool.DescriptorPool()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(each)
        for each in file.file_descriptor_response.file_descriptor_proto
    ]
    for each in sorted(files, key=lambda each: len(each.dependency)):
        pool.Add(each)
    request: Any = pool.FindMessageTypeByName("tensorflow.serving.PredictRequest")
    assert [field.name for field in request.fields] == ["model_spec", "inputs", "output_filter"]


@pytest.mark.slow
def test_calls_that_wait_for_a_busy_process_are_answered(served: Any) -> None:
    """gRPC's core would cancel those that the process has not come to within 30 s, and all but 3,000."""
    begun = threading.Event()

    async def hold() -> None:
        begun.set()
        threading.Event().wait(32)

    ready = next(each for each in methods_of(SERVICE) if each.name == "ModelReady")
    with grpc.insecure_channel(served.server.grpc_address) as channel:
        stub = channel.unary_unary(
            f"/{SERVICE}/ModelReady",
            request_serializer=ready.request.SerializeToString,
            response_deserializer=ready.response.FromString,
        )
        held = Waiting(lambda: served.server.on_loop(hold))
        assert begun.wait(PATIENCE)
        asked = [stub.future(ready.request(name="letters"), timeout=120) for _ in range(4000)]
        assert [each.result().ready for each in asked] == [True] * 4000
        held.result()
