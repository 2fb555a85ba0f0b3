"""The open inference protocol's service and messages, with the numbers that KServe and Triton gave the fields.

Those that are not here (streams, statistics, shared memory, …) are refused by name; see service.py.
"""

from typing import Final

from aie_server.grpc.schema import Field, Message, map_of

__all__ = ["CONTENTS", "METHODS", "SERVICE"]

SERVICE: Final = "inference.GRPCInferenceService"

_EMPTY = Message("Empty")
_NAME_AND_VERSION = (Field(1, "name", "string"), Field(2, "version", "string"))

_PARAMETER = Message(
    "InferParameter",
    Field(1, "bool_param", "bool"),
    Field(2, "int64_param", "int64"),
    Field(3, "string_param", "string"),
    Field(4, "double_param", "double"),
    Field(5, "uint64_param", "uint64"),
    choice=True,
)
CONTENTS: Final = Message(
    "InferTensorContents",
    Field(1, "bool_contents", "bool", repeated=True),
    Field(2, "int_contents", "int32", repeated=True),
    Field(3, "int64_contents", "int64", repeated=True),
    Field(4, "uint_contents", "uint32", repeated=True),
    Field(5, "uint64_contents", "uint64", repeated=True),
    Field(6, "fp32_contents", "float", repeated=True),
    Field(7, "fp64_contents", "double", repeated=True),
    Field(8, "bytes_contents", "bytes", repeated=True),
)
_TENSOR_FACTS = (
    Field(1, "name", "string"),
    Field(2, "datatype", "string"),
    Field(3, "shape", "int64", repeated=True),
)
_TENSOR = (*_TENSOR_FACTS, map_of(4, "parameters", _PARAMETER), Field(5, "contents", CONTENTS))
_REQUESTED = Message("InferRequestedOutputTensor", Field(1, "name", "string"), map_of(2, "parameters", _PARAMETER))
_CALL = (
    Field(1, "model_name", "string"),
    Field(2, "model_version", "string"),
    Field(3, "id", "string"),
    map_of(4, "parameters", _PARAMETER),
)
_METADATA = Message("TensorMetadata", *_TENSOR_FACTS)
_INDEX = Message("ModelIndex", *_NAME_AND_VERSION, Field(3, "state", "string"), Field(4, "reason", "string"))
_REPOSITORY_PARAMETER = Message(
    "ModelRepositoryParameter",
    Field(1, "bool_param", "bool"),
    Field(2, "int64_param", "int64"),
    Field(3, "string_param", "string"),
    Field(4, "bytes_param", "bytes"),
    choice=True,
)
_REPOSITORY_CALL = (
    Field(1, "repository_name", "string"),
    Field(2, "model_name", "string"),
    map_of(3, "parameters", _REPOSITORY_PARAMETER),
)

# method → what comes, what goes
METHODS: Final[dict[str, tuple[Message, Message]]] = {
    "ServerLive": (_EMPTY, Message("ServerLiveResponse", Field(1, "live", "bool"))),
    "ServerReady": (_EMPTY, Message("ServerReadyResponse", Field(1, "ready", "bool"))),
    "ModelReady": (
        Message("ModelReadyRequest", *_NAME_AND_VERSION),
        Message("ModelReadyResponse", Field(1, "ready", "bool")),
    ),
    "ServerMetadata": (
        _EMPTY,
        Message("ServerMetadataResponse", *_NAME_AND_VERSION, Field(3, "extensions", "string", repeated=True)),
    ),
    "ModelMetadata": (
        Message("ModelMetadataRequest", *_NAME_AND_VERSION),
        Message(
            "ModelMetadataResponse",
            Field(1, "name", "string"),
            Field(2, "versions", "string", repeated=True),
            Field(3, "platform", "string"),
            Field(4, "inputs", _METADATA, repeated=True),
            Field(5, "outputs", _METADATA, repeated=True),
        ),
    ),
    "ModelInfer": (
        Message(
            "ModelInferRequest",
            *_CALL,
            Field(5, "inputs", Message("InferInputTensor", *_TENSOR), repeated=True),
            Field(6, "outputs", _REQUESTED, repeated=True),
            Field(7, "raw_input_contents", "bytes", repeated=True),
        ),
        Message(
            "ModelInferResponse",
            *_CALL,
            Field(5, "outputs", Message("InferOutputTensor", *_TENSOR), repeated=True),
            Field(6, "raw_output_contents", "bytes", repeated=True),
        ),
    ),
    "RepositoryIndex": (
        Message("RepositoryIndexRequest", Field(1, "repository_name", "string"), Field(2, "ready", "bool")),
        Message("RepositoryIndexResponse", Field(1, "models", _INDEX, repeated=True)),
    ),
    "RepositoryModelLoad": (Message("RepositoryModelLoadRequest", *_REPOSITORY_CALL), _EMPTY),
    "RepositoryModelUnload": (Message("RepositoryModelUnloadRequest", *_REPOSITORY_CALL), _EMPTY),
}
