"""The tables of Triton's extensions against the descriptors inside Triton's own client."""

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.runtime.protocols.triton import DATA_TYPES
from tidegate.wire.grpc.protobuf import Message
from tidegate.wire.grpc.triton_messages import METHODS

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def compare(ours: Message, theirs: Any) -> None:
    assert ours.name == theirs.full_name
    for field in ours.fields:
        public = theirs.fields_by_number[field.number]
        oneof = public.containing_oneof.name if public.containing_oneof else ""
        assert (field.name, field.kind, field.repeated) == (public.name, public.type, public.is_repeated)
        assert field.oneof in ("", oneof)
        if isinstance(field.of, Message):
            compare(field.of, public.message_type)


@pytest.mark.parametrize("method", METHODS)
def test_the_tables_are_tritons(method: str) -> None:
    request, response = METHODS[method]
    compare(request, SERVICE.methods_by_name[method].input_type)
    compare(response, SERVICE.methods_by_name[method].output_type)


def test_the_numbers_of_datatypes_are_tritons() -> None:
    theirs = dict(model_config_pb2.DataType.items())
    assert theirs == {"TYPE_INVALID": 0, **DATA_TYPES}
