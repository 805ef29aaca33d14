"""A record's bytes: what is written is read again, and what is damaged is never taken for a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.checkpoint.record import (
    MAX_BYTES,
    NewerSchemaError,
    Record,
    Stage,
    build_record,
    parse_record,
    read_partial_record,
)
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig
from pydra.errors import CheckpointError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
configs = st.builds(
    OpaqueConfig,
    source=st.sampled_from(["FromClass", "FromClaim"]),
    position=st.text(),
    parameters=st.dictionaries(st.text(), json_values, max_size=3),
)
devices = st.builds(
    AllocatedDevice,
    request=names,
    pool=names,
    device=names,
    share_id=st.none() | names,
    admin_access=st.booleans(),
    consumed_capacity=st.dictionaries(names, names, max_size=2),
    configs=st.lists(configs, max_size=2).map(tuple),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    held = tuple(draw(st.lists(devices, min_size=1, max_size=3)))
    claim = Claim(uid=draw(names), namespace=draw(names), name=draw(names), devices=held, plan=draw(json_values))
    prepared = tuple(one.prepared(state=draw(json_values)) for one in held)
    stage = draw(st.sampled_from(Stage))
    return Record(claim=claim, driver="d.example.com", stage=stage, boot_id="b", prepared=prepared, created=1.5)


@given(records())
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert parse_record(build_record(record)) == record


@pytest.mark.fuzz
@given(records(), st.data())
def test_a_changed_or_cut_byte_is_noticed(record: Record, data: st.DataObject) -> None:
    content = bytearray(build_record(record))
    at = data.draw(st.integers(0, len(content) - 2))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    with pytest.raises(CheckpointError):
        parse_record(bytes(content))
    read_partial_record(bytes(content), "u")


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_any_other_bytes_are_not_a_record(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_record(content)
    read_partial_record(content, "u")


def test_a_damaged_record_names_its_claim_and_its_devices() -> None:
    looked_at = AllocatedDevice(request="r", pool="node-1", device="gpu-0", admin_access=True)
    share = AllocatedDevice(request="r", pool="node-1", device="gpu-1", share_id="s", consumed_capacity={"memory": "1"})
    claim = Claim(uid="u", namespace="team", name="gpus", devices=(looked_at, share))
    content = build_record(Record(claim=claim, driver="d", stage=Stage.COMPLETED, boot_id="b"))
    partial = read_partial_record(content[:-20], "u")
    assert (partial.namespace, partial.name) == ("team", "gpus")
    assert partial.devices == (looked_at, share)
    alone = AllocatedDevice(request="", pool="node-1", device="gpu-1")
    assert read_partial_record(content.replace(b'"share_id":"s"', b'"share_id":s"'), "u").devices == (looked_at, alone)


def test_a_later_schema_is_distinguished_from_damage() -> None:
    claim = Claim(uid="u", namespace="n", name="c", devices=())
    record = Record(schema=3, claim=claim, driver="d", stage=Stage.COMPLETED, boot_id="b")
    with pytest.raises(NewerSchemaError, match="has schema 3 and this version reads up to 2"):
        parse_record(build_record(record))


def test_a_record_too_large_to_be_read_is_not_written() -> None:
    claim = Claim(uid="u", namespace="n", name="c", devices=(), plan="x" * MAX_BYTES)
    with pytest.raises(CheckpointError, match="at most"):
        build_record(Record(claim=claim, driver="d", stage=Stage.STARTED, boot_id="b"))
