"""The codec against Google's own, over the messages of the tables; and its behaviour on invalid messages."""

import struct
from array import array
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import (
    BOOL,
    BYTES,
    DOUBLE,
    ENUM,
    FLOAT,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    Enum,
    Field,
    Message,
    ProtobufError,
)
from tidegate.wire.grpc.reflection import descriptor

POOL = descriptor_pool.DescriptorPool()
for file in messages.FILES:
    POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(descriptor(file)))

MESSAGES = [message for file in messages.FILES for message in file.messages]

NUMBERS = {
    INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    UINT32: st.integers(0, (1 << 32) - 1),
    UINT64: st.integers(0, (1 << 64) - 1),
    BOOL: st.booleans(),
    FLOAT: st.floats(width=32, allow_nan=False),
    DOUBLE: st.floats(allow_nan=False),
    STRING: st.text(max_size=40),
    BYTES: st.binary(max_size=300),
}


def theirs(message: Message) -> Any:
    """Returns Google's class of one of the tables' messages."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(message.name))


def values_of(field: Field) -> st.SearchStrategy[Any]:
    if field.kind == ENUM and isinstance(field.of, Enum):
        return st.sampled_from(sorted(field.of.values.values()))
    return values(field.of) if isinstance(field.of, Message) else NUMBERS[field.kind]


@st.composite
def values(draw: st.DrawFn, message: Message) -> dict[str, Any]:
    """Draws any dictionary that the message can have."""
    made: dict[str, Any] = {}
    for field in message.fields:
        if not draw(st.booleans()) or (field.oneof and field.oneof in made):
            continue
        if isinstance(field.of, Message) and field.of.is_map_entry:
            value = field.of.by_number[2]
            made[field.name] = draw(st.dictionaries(st.text(max_size=9), values_of(value), max_size=3))
        elif field.repeated:
            made[field.name] = draw(st.lists(values_of(field), max_size=4))
        else:
            made[field.name] = draw(values_of(field))
            if field.oneof:
                made[field.oneof] = field.name
    return made


def filled(message: Message, fields: dict[str, Any]) -> Any:
    """Returns Google's message with these fields."""
    made = theirs(message)()
    fill(made, message, fields)
    return made


def fill(made: Any, message: Message, fields: dict[str, Any]) -> None:
    for field in message.fields:
        if field.name not in fields:
            continue
        value = fields[field.name]
        target = getattr(made, field.name)
        if isinstance(field.of, Message) and field.of.is_map_entry:
            entry = field.of.by_number[2].of
            assert isinstance(entry, Message)
            for key, item in value.items():
                fill(target[key], entry, item)
                target[key].SetInParent()
        elif isinstance(field.of, Message) and field.repeated:
            for item in value:
                fill(target.add(), field.of, item)
        elif isinstance(field.of, Message):
            target.SetInParent()
            fill(target, field.of, value)
        elif field.repeated:
            target.extend(value)
        else:
            setattr(made, field.name, value)


@given(st.data())
def test_googles_code_reads_what_we_write_and_we_read_what_it_writes(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    fields = data.draw(values(message))
    expected = filled(message, fields)
    assert theirs(message).FromString(message.encode(fields)) == expected
    ours = message.decode(expected.SerializeToString())
    assert theirs(message).FromString(message.encode(ours)) == expected


def test_the_tables_are_those_of_the_public_protocol() -> None:
    """Triton's client contains the protocol's descriptors: the tables are equal, message by message."""
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    public = descriptor_pb2.FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(public)
    by_name = {message.name: message for message in public.message_type}
    ours = descriptor_pb2.FileDescriptorProto.FromString(descriptor(messages.INFERENCE_FILE))
    assert ours.message_type
    for message in ours.message_type:
        assert message == by_name[message.name]
    methods = {method.name: method for method in public.service[0].method}
    for method in ours.service[0].method:
        assert (method.input_type, method.output_type) == (
            methods[method.name].input_type,
            methods[method.name].output_type,
        )
        assert method.client_streaming == methods[method.name].client_streaming
        assert method.server_streaming == methods[method.name].server_streaming


@given(st.sampled_from(MESSAGES), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protobuf_error(message: Message, data: bytes) -> None:
    try:
        found = message.decode(data)
    except ProtobufError:
        return
    assert set(found) <= message.names


@given(st.data())
def test_a_message_that_is_cut_anywhere_is_a_message_or_a_protobuf_error(data: st.DataObject) -> None:
    fields = data.draw(values(messages.MODEL_INFER_REQUEST))
    whole = messages.MODEL_INFER_REQUEST.encode(fields)
    cut = data.draw(st.integers(0, len(whole)))
    try:
        messages.MODEL_INFER_REQUEST.decode(whole[:cut])
    except ProtobufError as error:
        assert str(error)


NUMBERED = Message("test.Numbers", Field(1, "one", INT32), Field(2, "many", INT32, repeated=True))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x08", "truncated"),
        (b"\x08" + b"\xff" * 10, "longer than 64 bits"),
        (b"\x0a\x05abc", "truncated"),
        (b"\x0b", "not a wire type"),
        (b"\x0d\x00\x00\x00\x00", "not its wire type"),
        (b"\x12\x01\x80", "truncated"),
    ],
)
def test_what_is_no_message_is_reported(data: bytes, why: str) -> None:
    with pytest.raises(ProtobufError, match=why):
        NUMBERED.decode(data)


def test_numbers_may_be_packed_or_not_and_unknown_fields_are_skipped() -> None:
    unknown = b"\x18\x07" + b"\x22\x02ab" + b"\x29" + bytes(8) + b"\x35" + bytes(4)
    assert NUMBERED.decode(unknown + b"\x10\x05\x12\x03\x06\xac\x02\x10\x07") == {"many": [5, 6, 300, 7]}


def test_the_last_of_a_scalar_counts_and_a_oneof_has_one_field() -> None:
    assert NUMBERED.decode(b"\x08\x01\x08\x02") == {"one": 2}
    both = messages.PARAMETER.encode({"bool_param": True}) + messages.PARAMETER.encode({"string_param": "x"})
    assert messages.PARAMETER.decode(both) == {"parameter_choice": "string_param", "string_param": "x"}


def test_long_contents_are_taken_as_they_are() -> None:
    numbers = array("f", range(1000))
    data = messages.CONTENTS.encode({"fp32_contents": numbers})
    assert data[3:] == struct.pack("<1000f", *numbers)
    assert messages.CONTENTS.decode(data) == {"fp32_contents": numbers}


def test_many_packed_numbers_are_read_one_by_one() -> None:
    numbers = [300, 5, -1] * 200
    assert NUMBERED.decode(NUMBERED.encode({"many": numbers})) == {"many": numbers}


def test_packed_numbers_have_the_type_of_their_field() -> None:
    flags, counts = Field(1, "flags", BOOL, repeated=True), Field(2, "counts", UINT32, repeated=True)
    found = Message("M", flags, counts).decode(b"\x0a\x02\x01\x00" + b"\x12\x02\x07\x00")
    assert found == {"flags": [True, False], "counts": [7, 0]}
    assert [type(each) for each in found["flags"]] == [bool, bool]


def test_a_number_of_32_bits_is_cut_to_them() -> None:
    assert NUMBERED.decode(b"\x08\xff\xff\xff\xff\x0f") == {"one": -1}


def test_a_field_that_a_message_does_not_have_is_not_lost_silently() -> None:
    with pytest.raises(KeyError, match="many_more"):
        NUMBERED.encode({"many_more": [1]})
