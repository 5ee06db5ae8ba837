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
    MESSAGE,
    STRING,
    UINT32,
    UINT64,
    Enum,
    Field,
    Message,
    ProtobufError,
    map_entry,
    varint,
    write_varint,
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


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, b"\x00"), (1, b"\x01"), (127, b"\x7f"), (128, b"\x80\x01"), (129, b"\x81\x01"), (300, b"\xac\x02"),
        (16_383, b"\xff\x7f"), (16_384, b"\x80\x80\x01"), (2**63, b"\x80" * 9 + b"\x01"),
        (2**64 - 1, b"\xff" * 9 + b"\x01"),
    ],
)  # fmt: skip
def test_a_varint_is_written_in_groups_of_seven_bits(value: int, written: bytes) -> None:
    assert write_varint(value) == written
    assert varint(b"?" + written + b"?", 1) == (value, 1 + len(written))


def test_a_negative_number_takes_ten_bytes() -> None:
    assert write_varint(-1) == b"\xff" * 9 + b"\x01"
    assert write_varint(-(2**63)) == b"\x80" * 9 + b"\x01"


def test_a_varint_ends_within_ten_bytes_and_what_is_beyond_64_bits_is_dropped() -> None:
    assert varint(b"\xff" * 9 + b"\x7f", 0) == (2**64 - 1, 10)
    for data in (b"\xff" * 10, b"\x80" * 10 + b"\x00"):
        with pytest.raises(ProtobufError, match="longer than 64 bits"):
            varint(data, 0)
    with pytest.raises(IndexError):
        varint(b"\xff" * 9, 0)


@pytest.mark.parametrize(
    ("kind", "bits", "value"),
    [
        (UINT64, 2**64 - 1, 2**64 - 1), (UINT64, 2**63, 2**63),
        (INT64, 2**64 - 1, -1), (INT64, 2**63, -(2**63)), (INT64, 2**63 - 1, 2**63 - 1),
        (UINT32, 2**32 - 1, 2**32 - 1), (UINT32, 2**32 + 5, 5), (UINT32, 2**31, 2**31),
        (INT32, 2**32 - 1, -1), (INT32, 2**31, -(2**31)), (INT32, 2**31 - 1, 2**31 - 1), (INT32, 2**64 - 1, -1),
        (INT32, 2**32 + 5, 5), (ENUM, 2**64 - 2, -2), (ENUM, 7, 7),
        (BOOL, 0, False), (BOOL, 1, True), (BOOL, 2, True), (BOOL, 2**63, True),
    ],
)  # fmt: skip
def test_a_number_has_the_bits_of_its_type(kind: int, bits: int, value: int) -> None:
    one, many = Field(1, "one", kind), Field(2, "many", kind, repeated=True)
    written, of = write_varint(bits), Message("M", one, many)
    found = of.decode(b"\x08" + written + b"\x10" + written + b"\x12" + write_varint(len(written)) + written)
    assert found == {"one": value, "many": [value, value]}
    assert type(found["one"]) is type(value)


def test_defaults_are_left_out_but_in_a_oneof_and_for_messages() -> None:
    inner = Message("I", Field(1, "x", INT32))
    of = Message(
        "M", Field(1, "n", INT32), Field(2, "s", STRING), Field(3, "f", FLOAT), Field(4, "o", INT32, oneof="c"),
        Field(5, "m", MESSAGE, inner), Field(6, "many", INT32, repeated=True), Field(7, "b", BYTES),
    )  # fmt: skip
    assert of.encode({"n": 0, "s": "", "f": 0.0, "many": [], "b": b""}) == b""
    assert of.encode({"o": 0}) == b"\x20\x00"
    assert of.encode({"m": {}}) == b"\x2a\x00"
    assert of.encode({"n": None, "m": None}) == b""
    assert of.encode({"many": [0]}) == b"\x32\x01\x00"


def test_entries_of_a_map_may_lack_key_and_value() -> None:
    inner = Message("I", Field(1, "x", INT32))
    for kind, of, none in ((STRING, None, ""), (BYTES, None, b""), (INT32, None, 0), (MESSAGE, inner, {})):
        entry = map_entry("M", "some_things", Field(1, "key", STRING), Field(2, "value", kind, of))
        whole = Message("M", Field(1, "some_things", MESSAGE, entry, repeated=True), nested=(entry,))
        assert entry.name == "M.SomeThingsEntry"
        assert entry.is_map_entry
        assert whole.decode(b"\x0a\x00") == {"some_things": {"": none}}
        assert whole.decode(b"\x0a\x03\x0a\x01k") == {"some_things": {"k": none}}
    numbers = map_entry("M", "n", Field(1, "key", INT32), Field(2, "value", STRING))
    by_number = Message("M", Field(1, "n", MESSAGE, numbers, repeated=True))
    assert by_number.decode(b"\x0a\x03\x12\x01v\x0a\x02\x08\x05") == {"n": {0: "v", 5: ""}}
    assert by_number.encode({"n": {5: "v"}}) == b"\x0a\x05\x08\x05\x12\x01v"


def test_numbers_of_fixed_size_are_read_packed_or_not() -> None:
    floats, doubles = Field(1, "floats", FLOAT, repeated=True), Field(2, "doubles", DOUBLE, repeated=True)
    of = Message("M", floats, doubles, Field(3, "one", DOUBLE))
    one, two = struct.pack("<f", 1.5), struct.pack("<d", 2.5)
    found = of.decode(b"\x0d" + one + b"\x0a\x08" + one * 2 + b"\x11" + two + b"\x12\x08" + two + b"\x19" + two)
    assert found == {"floats": array("f", [1.5] * 3), "doubles": array("d", [2.5] * 2), "one": 2.5}
    for packed in (b"\x0a\x07" + bytes(7), b"\x12\x0c" + bytes(12)):
        with pytest.raises(ProtobufError, match="packed numbers are truncated"):
            of.decode(packed)
    assert of.encode({"floats": [1.5], "doubles": array("f", [2.5])}) == b"\x0a\x04" + one + b"\x12\x08" + two


@pytest.mark.parametrize("kind", [STRING, BYTES])
def test_texts_and_messages_have_the_wire_type_of_bytes(kind: int) -> None:
    of = Message("M", Field(1, "many", kind, repeated=True), Field(2, "one", kind))
    assert [
        bytes(each, "ascii") if kind == STRING else bytes(each) for each in of.decode(b"\x0a\x01a\x0a\x00")["many"]
    ] == [b"a", b""]
    for data in (b"\x08\x01", b"\x10\x01", b"\x0d" + bytes(4)):
        with pytest.raises(ProtobufError, match="is not its wire type"):
            of.decode(data)


def test_a_message_that_is_no_utf_8_or_ends_early_says_which() -> None:
    of = Message("test.Text", Field(1, "text", STRING))
    with pytest.raises(ProtobufError, match=r"test\.Text: a string is not UTF-8"):
        of.decode(b"\x0a\x01\xff")
    for data in (b"\x0a", b"\x0a\x02a", b"\x80", b"\x0a\x80"):
        with pytest.raises(ProtobufError, match=r"test\.Text: the message is truncated"):
            of.decode(data)
    assert of.decode(b"\x0a\x01a") == {"text": "a"}
    assert repr(of) == "<Message test.Text>"
