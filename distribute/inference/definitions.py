"""The messages and services that a model server speaks, as their specifications define them.

A line is a message, an enumeration or a service, or a part of the one above it: a field with its number, a value, or a
method. Messages inside of messages are written with a dot. The order and the numbers are those of the specifications.
"""

from __future__ import annotations

from typing import NamedTuple


class File(NamedTuple):
    """One file of definitions.

    Attributes:
        name: its name in the pool.
        package: of its messages.
        needs: the names of the files that it uses.
        text: the definitions.
    """

    name: str
    package: str
    needs: tuple[str, ...]
    text: str


OPEN_INFERENCE = File(
    "anabranch/open_inference.proto",
    "inference",
    (),
    """
message ServerLiveRequest
message ServerLiveResponse
    bool live = 1
message ServerReadyRequest
message ServerReadyResponse
    bool ready = 1
message ModelReadyRequest
    string name = 1
    string version = 2
message ModelReadyResponse
    bool ready = 1
message ServerMetadataRequest
message ServerMetadataResponse
    string name = 1
    string version = 2
    repeated string extensions = 3
message ModelMetadataRequest
    string name = 1
    string version = 2
message ModelMetadataResponse
    string name = 1
    repeated string versions = 2
    string platform = 3
    repeated ModelMetadataResponse.TensorMetadata inputs = 4
    repeated ModelMetadataResponse.TensorMetadata outputs = 5
message ModelMetadataResponse.TensorMetadata
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
message InferParameter
    oneof/parameter_choice bool bool_param = 1
    oneof/parameter_choice int64 int64_param = 2
    oneof/parameter_choice string string_param = 3
    oneof/parameter_choice double double_param = 4
    oneof/parameter_choice uint64 uint64_param = 5
message InferTensorContents
    repeated bool bool_contents = 1
    repeated int32 int_contents = 2
    repeated int64 int64_contents = 3
    repeated uint32 uint_contents = 4
    repeated uint64 uint64_contents = 5
    repeated float fp32_contents = 6
    repeated double fp64_contents = 7
    repeated bytes bytes_contents = 8
message ModelInferRequest
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated ModelInferRequest.InferInputTensor inputs = 5
    repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6
    repeated bytes raw_input_contents = 7
message ModelInferRequest.InferInputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
message ModelInferRequest.InferRequestedOutputTensor
    string name = 1
    map InferParameter parameters = 2
message ModelInferResponse
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated ModelInferResponse.InferOutputTensor outputs = 5
    repeated bytes raw_output_contents = 6
message ModelInferResponse.InferOutputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
message ModelStreamInferResponse
    string error_message = 1
    ModelInferResponse infer_response = 2
enum DataType
    TYPE_INVALID = 0
    TYPE_BOOL = 1
    TYPE_UINT8 = 2
    TYPE_UINT16 = 3
    TYPE_UINT32 = 4
    TYPE_UINT64 = 5
    TYPE_INT8 = 6
    TYPE_INT16 = 7
    TYPE_INT32 = 8
    TYPE_INT64 = 9
    TYPE_FP16 = 10
    TYPE_FP32 = 11
    TYPE_FP64 = 12
    TYPE_STRING = 13
    TYPE_BF16 = 14
message ModelInput
    string name = 1
    DataType data_type = 2
    repeated int64 dims = 4
message ModelOutput
    string name = 1
    DataType data_type = 2
    repeated int64 dims = 3
message ModelDynamicBatching
    repeated int32 preferred_batch_size = 1
    uint64 max_queue_delay_microseconds = 2
message ModelSequenceBatching
    uint64 max_sequence_idle_microseconds = 1
message ModelTransactionPolicy
    bool decoupled = 1
message ModelConfig
    string name = 1
    string platform = 2
    int32 max_batch_size = 4
    repeated ModelInput input = 5
    repeated ModelOutput output = 6
    ModelDynamicBatching dynamic_batching = 11
    ModelSequenceBatching sequence_batching = 13
    string backend = 17
    ModelTransactionPolicy model_transaction_policy = 19
message ModelConfigRequest
    string name = 1
    string version = 2
message ModelConfigResponse
    ModelConfig config = 1
message ModelStatisticsRequest
    string name = 1
    string version = 2
message StatisticDuration
    uint64 count = 1
    uint64 ns = 2
message InferStatistics
    StatisticDuration success = 1
    StatisticDuration fail = 2
    StatisticDuration queue = 3
    StatisticDuration compute_input = 4
    StatisticDuration compute_infer = 5
    StatisticDuration compute_output = 6
message InferBatchStatistics
    uint64 batch_size = 1
    StatisticDuration compute_input = 2
    StatisticDuration compute_infer = 3
    StatisticDuration compute_output = 4
message ModelStatistics
    string name = 1
    string version = 2
    uint64 last_inference = 3
    uint64 inference_count = 4
    uint64 execution_count = 5
    InferStatistics inference_stats = 6
    repeated InferBatchStatistics batch_stats = 7
message ModelStatisticsResponse
    repeated ModelStatistics model_stats = 1
message ModelRepositoryParameter
    oneof/parameter_choice bool bool_param = 1
    oneof/parameter_choice int64 int64_param = 2
    oneof/parameter_choice string string_param = 3
    oneof/parameter_choice bytes bytes_param = 4
message RepositoryIndexRequest
    string repository_name = 1
    bool ready = 2
message RepositoryIndexResponse
    repeated RepositoryIndexResponse.ModelIndex models = 1
message RepositoryIndexResponse.ModelIndex
    string name = 1
    string version = 2
    string state = 3
    string reason = 4
message RepositoryModelLoadRequest
    string repository_name = 1
    string model_name = 2
    map ModelRepositoryParameter parameters = 3
message RepositoryModelLoadResponse
message RepositoryModelUnloadRequest
    string repository_name = 1
    string model_name = 2
    map ModelRepositoryParameter parameters = 3
message RepositoryModelUnloadResponse
service GRPCInferenceService
    rpc ServerLive ServerLiveRequest to ServerLiveResponse
    rpc ServerReady ServerReadyRequest to ServerReadyResponse
    rpc ModelReady ModelReadyRequest to ModelReadyResponse
    rpc ServerMetadata ServerMetadataRequest to ServerMetadataResponse
    rpc ModelMetadata ModelMetadataRequest to ModelMetadataResponse
    rpc ModelInfer ModelInferRequest to ModelInferResponse
    rpc ModelStreamInfer stream ModelInferRequest to stream ModelStreamInferResponse
    rpc ModelConfig ModelConfigRequest to ModelConfigResponse
    rpc ModelStatistics ModelStatisticsRequest to ModelStatisticsResponse
    rpc RepositoryIndex RepositoryIndexRequest to RepositoryIndexResponse
    rpc RepositoryModelLoad RepositoryModelLoadRequest to RepositoryModelLoadResponse
    rpc RepositoryModelUnload RepositoryModelUnloadRequest to RepositoryModelUnloadResponse
""",
)

TENSORFLOW = File(
    "anabranch/tensorflow.proto",
    "tensorflow",
    (),
    """
enum DataType
    DT_INVALID = 0
    DT_FLOAT = 1
    DT_DOUBLE = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 5
    DT_INT8 = 6
    DT_STRING = 7
    DT_INT64 = 9
    DT_BOOL = 10
    DT_BFLOAT16 = 14
    DT_UINT16 = 17
    DT_HALF = 19
    DT_UINT32 = 22
    DT_UINT64 = 23
message TensorShapeProto
    repeated TensorShapeProto.Dim dim = 2
    bool unknown_rank = 3
message TensorShapeProto.Dim
    int64 size = 1
    string name = 2
message TensorProto
    DataType dtype = 1
    TensorShapeProto tensor_shape = 2
    int32 version_number = 3
    bytes tensor_content = 4
    repeated float float_val = 5
    repeated double double_val = 6
    repeated int32 int_val = 7
    repeated bytes string_val = 8
    repeated int64 int64_val = 10
    repeated bool bool_val = 11
    repeated int32 half_val = 13
    repeated uint32 uint32_val = 16
    repeated uint64 uint64_val = 17
message TensorInfo
    DataType dtype = 2
    TensorShapeProto tensor_shape = 3
    string name = 1
message SignatureDef
    map TensorInfo inputs = 1
    map TensorInfo outputs = 2
    string method_name = 3
""",
)

TENSORFLOW_SERVING = File(
    "anabranch/tensorflow_serving.proto",
    "tensorflow.serving",
    (TENSORFLOW.name, "google/protobuf/wrappers.proto", "google/protobuf/any.proto"),
    """
message ModelSpec
    string name = 1
    oneof/version_choice google.protobuf.Int64Value version = 2
    oneof/version_choice string version_label = 4
    string signature_name = 3
message PredictRequest
    ModelSpec model_spec = 1
    map tensorflow.TensorProto inputs = 2
    repeated string output_filter = 3
message PredictResponse
    map tensorflow.TensorProto outputs = 1
    ModelSpec model_spec = 2
message GetModelMetadataRequest
    ModelSpec model_spec = 1
    repeated string metadata_field = 2
message GetModelMetadataResponse
    ModelSpec model_spec = 1
    map google.protobuf.Any metadata = 2
message SignatureDefMap
    map tensorflow.SignatureDef signature_def = 1
message GetModelStatusRequest
    ModelSpec model_spec = 1
message StatusProto
    int32 error_code = 1
    string error_message = 2
enum ModelVersionStatus.State
    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50
message ModelVersionStatus
    int64 version = 1
    ModelVersionStatus.State state = 2
    StatusProto status = 3
message GetModelStatusResponse
    repeated ModelVersionStatus model_version_status = 1
service PredictionService
    rpc Predict PredictRequest to PredictResponse
    rpc GetModelMetadata GetModelMetadataRequest to GetModelMetadataResponse
service ModelService
    rpc GetModelStatus GetModelStatusRequest to GetModelStatusResponse
""",
)

HEALTH = File(
    "anabranch/health.proto",
    "grpc.health.v1",
    (),
    """
enum HealthCheckResponse.ServingStatus
    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3
message HealthCheckRequest
    string service = 1
message HealthCheckResponse
    HealthCheckResponse.ServingStatus status = 1
service Health
    rpc Check HealthCheckRequest to HealthCheckResponse
    rpc Watch HealthCheckRequest to stream HealthCheckResponse
""",
)


def _reflection(version: str) -> File:
    return File(
        f"anabranch/reflection_{version}.proto",
        f"grpc.reflection.{version}",
        (),
        """
message ServerReflectionRequest
    string host = 1
    oneof/message_request string file_by_filename = 3
    oneof/message_request string file_containing_symbol = 4
    oneof/message_request ExtensionRequest file_containing_extension = 5
    oneof/message_request string all_extension_numbers_of_type = 6
    oneof/message_request string list_services = 7
message ExtensionRequest
    string containing_type = 1
    int32 extension_number = 2
message ServerReflectionResponse
    string valid_host = 1
    ServerReflectionRequest original_request = 2
    oneof/message_response FileDescriptorResponse file_descriptor_response = 4
    oneof/message_response ExtensionNumberResponse all_extension_numbers_response = 5
    oneof/message_response ListServiceResponse list_services_response = 6
    oneof/message_response ErrorResponse error_response = 7
message FileDescriptorResponse
    repeated bytes file_descriptor_proto = 1
message ExtensionNumberResponse
    string base_type_name = 1
    repeated int32 extension_number = 2
message ListServiceResponse
    repeated ServiceResponse service = 1
message ServiceResponse
    string name = 1
message ErrorResponse
    int32 error_code = 1
    string error_message = 2
service ServerReflection
    rpc ServerReflectionInfo stream ServerReflectionRequest to stream ServerReflectionResponse
""",
    )


REFLECTION = _reflection("v1")
REFLECTION_ALPHA = _reflection("v1alpha")
FILES = (OPEN_INFERENCE, TENSORFLOW, TENSORFLOW_SERVING, HEALTH, REFLECTION, REFLECTION_ALPHA)
