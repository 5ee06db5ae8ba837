"""Tables of Triton's extensions of the Open Inference Protocol: configuration, statistics, model repository.

They have the numbers and names of Triton's ``grpc_service.proto`` and ``model_config.proto``, without the fields that
the shipped model server has no values for. Only that server reads and writes them, with the first such call, and
reflection does not describe them: they are no whole files.
"""

from typing import Final

from tidegate.wire.grpc.protobuf import (
    BOOL,
    BYTES,
    ENUM,
    INT32,
    INT64,
    MESSAGE,
    STRING,
    UINT64,
    Field,
    Message,
    map_entry,
)

_I: Final = "inference."
_MODEL_INPUT: Final = Message(
    _I + "ModelInput",
    Field(1, "name", STRING),
    Field(2, "data_type", ENUM),
    Field(4, "dims", INT64, repeated=True),
)
_MODEL_OUTPUT: Final = Message(
    _I + "ModelOutput",
    Field(1, "name", STRING),
    Field(2, "data_type", ENUM),
    Field(3, "dims", INT64, repeated=True),
)
_DYNAMIC_BATCHING: Final = Message(_I + "ModelDynamicBatching", Field(2, "max_queue_delay_microseconds", UINT64))
_TRANSACTION_POLICY: Final = Message(_I + "ModelTransactionPolicy", Field(1, "decoupled", BOOL))
_CONFIG: Final = Message(
    _I + "ModelConfig",
    Field(1, "name", STRING),
    Field(2, "platform", STRING),
    Field(4, "max_batch_size", INT32),
    Field(5, "input", MESSAGE, _MODEL_INPUT, repeated=True),
    Field(6, "output", MESSAGE, _MODEL_OUTPUT, repeated=True),
    Field(11, "dynamic_batching", MESSAGE, _DYNAMIC_BATCHING),
    Field(19, "model_transaction_policy", MESSAGE, _TRANSACTION_POLICY),
)
_DURATION: Final = Message(_I + "StatisticDuration", Field(1, "count", UINT64), Field(2, "ns", UINT64))
_INFER_STATISTICS: Final = Message(
    _I + "InferStatistics",
    *(
        Field(number, name, MESSAGE, _DURATION)
        for number, name in enumerate(
            (
                "success",
                "fail",
                "queue",
                "compute_input",
                "compute_infer",
                "compute_output",
                "cache_hit",
                "cache_miss",
            ),
            1,
        )
    ),
)
_BATCH_STATISTICS: Final = Message(_I + "InferBatchStatistics", Field(1, "batch_size", UINT64))
_STATISTICS: Final = Message(
    _I + "ModelStatistics",
    Field(1, "name", STRING),
    Field(2, "version", STRING),
    Field(3, "last_inference", UINT64),
    Field(4, "inference_count", UINT64),
    Field(5, "execution_count", UINT64),
    Field(6, "inference_stats", MESSAGE, _INFER_STATISTICS),
    Field(7, "batch_stats", MESSAGE, _BATCH_STATISTICS, repeated=True),
)
_INDEX: Final = Message(
    _I + "RepositoryIndexResponse.ModelIndex",
    *(Field(number, name, STRING) for number, name in enumerate(("name", "version", "state", "reason"), 1)),
)
_PARAMETER: Final = Message(
    _I + "ModelRepositoryParameter",
    Field(1, "bool_param", BOOL, oneof="parameter_choice"),
    Field(2, "int64_param", INT64, oneof="parameter_choice"),
    Field(3, "string_param", STRING, oneof="parameter_choice"),
    Field(4, "bytes_param", BYTES, oneof="parameter_choice"),
)


def _versioned(method: str) -> Message:
    return Message(f"{_I}{method}Request", Field(1, "name", STRING), Field(2, "version", STRING))


def _command(method: str) -> Message:
    name = f"{_I}{method}Request"
    entry = map_entry(name, "parameters", Field(1, "key", STRING), Field(2, "value", MESSAGE, _PARAMETER))
    return Message(
        name,
        Field(1, "repository_name", STRING),
        Field(2, "model_name", STRING),
        Field(3, "parameters", MESSAGE, entry, repeated=True),
        nested=(entry,),
    )


METHODS: Final = {
    "ModelConfig": (
        _versioned("ModelConfig"),
        Message(_I + "ModelConfigResponse", Field(1, "config", MESSAGE, _CONFIG)),
    ),
    "ModelStatistics": (
        _versioned("ModelStatistics"),
        Message(_I + "ModelStatisticsResponse", Field(1, "model_stats", MESSAGE, _STATISTICS, repeated=True)),
    ),
    "RepositoryIndex": (
        Message(_I + "RepositoryIndexRequest", Field(1, "repository_name", STRING), Field(2, "ready", BOOL)),
        Message(_I + "RepositoryIndexResponse", Field(1, "models", MESSAGE, _INDEX, repeated=True)),
    ),
    "RepositoryModelLoad": (_command("RepositoryModelLoad"), Message(_I + "RepositoryModelLoadResponse")),
    "RepositoryModelUnload": (_command("RepositoryModelUnload"), Message(_I + "RepositoryModelUnloadResponse")),
}
"""Request and response by the name of the method."""
