"""Messages are written and read as Google's protobuf library does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from pydra_nri.messages import ObjectRequest, SynchronizeRequest
from pydra_nri.protobuf import Malformed, Value, decode, encode
from pydra_nri.values import Container, Mount
from tests.fuzz.damage import damage

PROTO = """\
syntax = "proto3";
message Text { string value = 1; }
message Number { int64 value = 1; }
message Truth { bool value = 1; }
message Inner { string name = 1; uint32 count = 2; }
message Sample {
  string text = 1;
  int64 number = 2;
  bool truth = 3;
  bytes data = 4;
  Inner inner = 5;
  repeated Inner list = 6;
  repeated string words = 7;
  map<string, string> labels = 8;
  Text some_text = 9;
  Number some_number = 10;
  Truth some_truth = 200;
  double unknown_double = 11;
  fixed32 unknown_fixed = 12;
  repeated int32 unknown_packed = 13;
}
"""


class Inner(Value, frozen=True, kw_only=True):
    name: Annotated[str, 1] = ""
    count: Annotated[int, 2] = 0


class Sample(Value, frozen=True, kw_only=True):
    text: Annotated[str, 1] = ""
    number: Annotated[int, 2] = 0
    truth: Annotated[bool, 3] = False
    data: Annotated[bytes, 4] = b""
    inner: Annotated[Inner, 5] = Inner()
    list: Annotated[tuple[Inner, ...], 6] = ()
    words: Annotated[tuple[str, ...], 7] = ()
    labels: Annotated[Mapping[str, str], 8] = {}
    some_text: Annotated[str | None, 9] = None
    some_number: Annotated[int | None, 10] = None
    some_truth: Annotated[bool | None, 200] = None


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("proto")
    (folder / "nri_sample.proto").write_text(PROTO)
    protoc.main(["protoc", f"-I{folder}", f"--python_out={folder}", str(folder / "nri_sample.proto")])
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("nri_sample_pb2").Sample
    finally:
        sys.path.remove(str(folder))


TEXT = st.text(max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
INNER = st.builds(Inner, name=TEXT, count=st.integers(0, 2**32 - 1))
SAMPLES = st.builds(
    Sample,
    text=TEXT,
    number=NUMBERS,
    truth=st.booleans(),
    data=st.binary(max_size=5),
    inner=INNER,
    list=st.lists(INNER, max_size=3).map(tuple),
    words=st.lists(TEXT, max_size=3).map(tuple),
    labels=st.dictionaries(TEXT, TEXT, max_size=3),
    some_text=st.none() | TEXT,
    some_number=st.none() | NUMBERS,
    some_truth=st.none() | st.booleans(),
)


def to_google(google: Any, sample: Sample) -> Any:
    message = google(text=sample.text, number=sample.number, truth=sample.truth, data=sample.data, words=sample.words)
    if sample.inner != Inner():
        message.inner.name, message.inner.count = sample.inner.name, sample.inner.count
    for one in sample.list:
        message.list.add(name=one.name, count=one.count)
    message.labels.update(sample.labels)
    for name in ("some_text", "some_number", "some_truth"):
        if (value := getattr(sample, name)) is not None:
            getattr(message, name).SetInParent()
            getattr(message, name).value = value
    return message


@given(SAMPLES)
def test_google_reads_what_is_written(google: Any, sample: Sample) -> None:
    assert google.FromString(encode(sample)) == to_google(google, sample)


@given(SAMPLES)
def test_what_google_writes_is_read_without_the_fields_that_are_unknown_here(google: Any, sample: Sample) -> None:
    message = to_google(google, sample)
    message.unknown_double, message.unknown_fixed = 1.5, 7
    message.unknown_packed.extend([1, -1])
    assert decode(message.SerializeToString(), Sample) == sample


WRITTEN = bytes.fromhex("0a0b0a036162631a0475696431120d0a0363696422") + b"\x06\x0a\x01a\x12\x01b"


@pytest.mark.fuzz
@given(damage(WRITTEN) | st.binary(max_size=50))
def test_damaged_bytes_are_a_message_or_malformed(data: bytes) -> None:
    for kind in (ObjectRequest, SynchronizeRequest, Sample):
        try:
            message = decode(data, kind)
        except Malformed:
            continue
        assert decode(encode(message), kind) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05ab", "field 1 has 5 bytes, of which 2 are there"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "field 1 has 9223372036854775807 bytes"),
        (b"\x80", "the number at byte 0 does not end"),
        (b"\xff" * 11, "the number at byte 0 does not end"),
        (b"\x0b", "field 1 has the wire type 3"),
        (b"\x0a\x01\xff", "text is not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_error_says_what_is_malformed(data: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode(data, Sample)


def test_what_containers_have_alike_is_decoded_once() -> None:
    """Runtimes wait for 2 s for the answer to Synchronize, which has all containers of the node."""
    mounts = (Mount(destination="/proc", type="proc", options=("nosuid", "noexec")),)
    containers = tuple(Container(id=name, mounts=mounts) for name in ("first", "second"))
    first, second = decode(encode(SynchronizeRequest(containers=containers)), SynchronizeRequest).containers
    assert (first, second) == containers
    assert first.mounts[0] is second.mounts[0]
