"""A record's bytes: read back, damaged, of another version."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits
from pydra.checkpoint.record import NewerSchemaError, Record, Stage, build_record, migrate, parse_record
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig
from pydra.errors import CheckpointError
from tests.unit.checkpoint import strategies

DEVICE = AllocatedDevice(
    request="gpu",
    pool="node-a",
    device="gpu-0",
    configs=(OpaqueConfig(source="FromClaim", position="config[0]", parameters={"kind": "GpuConfig"}),),
)
CLAIM = Claim(uid="a1b2", namespace="default", name="one", devices=(DEVICE,))
STARTED = Record(claim=CLAIM, driver="gpu.example.com", stage=Stage.STARTED, boot_id="boot-1", created=1700000000.25)
COMPLETED = replace(
    STARTED, stage=Stage.COMPLETED, prepared=(DEVICE.prepared(ContainerEdits().with_env("A", "1"), {"mig": [1, 2]}),)
)


@settings(max_examples=50)
@given(record=strategies.records)
def test_what_is_written_is_read_back(record: Record) -> None:
    line = build_record(record)
    assert line.count(b"\n") == 1
    assert parse_record(line) == record
    assert build_record(parse_record(line)) == line


def test_the_file_format_is_kept() -> None:
    """This line is on nodes: a change here needs a schema and a migration."""
    line = (
        b'{"checksum":"sha256:%s","record":{"schema":1,"boot_id":"boot-1","claim":{"uid":"a1b2","namespace":"default",'
        b'"name":"one","devices":[{"request":"gpu","pool":"node-a","device":"gpu-0"}]},"driver":"gpu.example.com",'
        b'"stage":"completed","prepared":[{"request":"gpu","pool":"node-a","device":"gpu-0","edits":{"env":{"A":"1"},'
        b'"mounts":[{"host_path":"/a","container_path":"/b"}]},"state":7}],"created":1.5}}\n'
    )
    start = line.index(b'"record":') + len(b'"record":')
    line %= hashlib.sha256(line[start:-2]).hexdigest().encode()
    plain = replace(DEVICE, configs=())
    edits = ContainerEdits().with_env("A", "1").with_mount("/a", "/b")
    assert parse_record(line) == replace(
        COMPLETED, claim=replace(CLAIM, devices=(plain,)), created=1.5, prepared=(plain.prepared(edits, 7),)
    )


def test_the_checksum_is_that_of_the_bytes_as_they_lie_there() -> None:
    line = build_record(COMPLETED)
    payload = line[line.index(b'"record":') + len(b'"record":') : -2]
    assert json.loads(line)["checksum"] == "sha256:" + hashlib.sha256(payload).hexdigest()


@settings(max_examples=300)
@given(data=st.data())
def test_every_flipped_bit_is_detected(data: st.DataObject) -> None:
    line = build_record(COMPLETED)
    bit = data.draw(st.integers(0, len(line) * 8 - 1))
    damaged = bytearray(line)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CheckpointError):
        parse_record(bytes(damaged))


def test_every_truncation_is_detected() -> None:
    line = build_record(COMPLETED)
    for length in range(len(line)):
        with pytest.raises(CheckpointError):
            parse_record(line[:length])


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        pytest.param(b"[]", "no JSON object", id="no object"),
        pytest.param(b"{}", "names no schema", id="no schema"),
        pytest.param(b'{"schema":true}', "names no schema", id="a schema that is no number"),
        pytest.param(b'{"schema":0}', "schema 0, from which no migration leads to 1", id="a schema of nobody"),
        pytest.param(b'{"schema":1}', "missing required field `claim`", id="fields missing"),
        pytest.param(b'{"schema":1,"claim":3}', "Expected `object`, got `int` - at `$.claim`", id="another form"),
        pytest.param(b'{"schema":1,"driver":"\xff"}', "not a checkpoint record", id="not UTF-8"),
    ],
)
def test_a_record_that_is_intact_but_wrong_says_what_is_wrong(payload: bytes, found: str) -> None:
    with pytest.raises(CheckpointError, match=found.replace("$", r"\$")):
        parse_record(_envelope(payload))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(b"", "cut off", id="empty"),
        pytest.param(b"{}\n", "missing required field `checksum`", id="no envelope"),
        pytest.param(b'{"checksum":"","record":{},"more":1}\n', "unknown field `more`", id="more in the envelope"),
        pytest.param(b'{"checksum":"sha256:0","record":{}}\n', "checksum does not fit", id="wrong checksum"),
        pytest.param(b"\xff\xfe\n", "not a checkpoint record", id="binary"),
        pytest.param(b"[" * 50_000 + b"\n", "not a checkpoint record", id="nested without end"),
    ],
)
def test_what_is_no_record_says_so(line: bytes, found: str) -> None:
    with pytest.raises(CheckpointError, match=found):
        parse_record(line)


def test_a_record_of_a_newer_schema_says_who_can_read_it() -> None:
    with pytest.raises(NewerSchemaError, match=r"schema 7 .* reads up to 1: .* upgrade again"):
        parse_record(_envelope(b'{"schema":7,"everything":"else"}'))


def test_fields_of_a_newer_version_survive_a_rewrite_by_this_one() -> None:
    newer = _with_fields_of_tomorrow(COMPLETED)
    record = parse_record(_envelope(msgspec.json.encode(newer)))
    assert replace(record, unknown={}) == COMPLETED
    assert _payload(build_record(record)) == newer


def test_what_is_unknown_of_a_device_goes_with_it() -> None:
    record = parse_record(_envelope(msgspec.json.encode(_with_fields_of_tomorrow(COMPLETED))))
    emptied = _payload(build_record(replace(record, stage=Stage.STARTED, prepared=())))
    assert emptied["prepared"] == []
    assert emptied["claim"]["priority"] == 3


def test_migrations_run_one_after_the_other() -> None:
    def first(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "steps": [1]}

    def second(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "steps": [*document["steps"], 2]}

    migrated = migrate({"a": 1}, schema=1, to=3, migrations={1: first, 2: second})
    assert migrated == {"a": 1, "steps": [1, 2]}
    assert migrate({"steps": [1]}, schema=2, to=3, migrations={1: first, 2: second}) == {"steps": [1, 2]}


def test_a_gap_in_the_migrations_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="schema 1, from which no migration leads to 3"):
        migrate({}, schema=1, to=3, migrations={2: dict})


def _payload(line: bytes) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(line)["record"]
    return payload


def _envelope(payload: bytes) -> bytes:
    return b'{"checksum":"sha256:%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)


def _with_fields_of_tomorrow(record: Record) -> dict[str, Any]:
    document = _payload(build_record(record))
    document["tomorrow"] = {"a/b": [1, {"c~d": 2}]}
    document["claim"]["priority"] = 3
    document["claim"]["devices"][0]["e/f"] = None
    document["claim"]["devices"][0]["configs"][0]["origin"] = "class"
    document["prepared"][0]["edits"]["cgroup"] = ["x"]
    return document
