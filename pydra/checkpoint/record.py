"""A claim's checkpoint: the value, and its bytes both ways. Pure; how lines make a file is in `pydra.checkpoint.pages`.

A record is one line of JSON:

    {"checksum":"sha256:...","record":{"boot_id":"...","claim":{...},...,"schema":1,"stage":"started"}}

The checksum is over the bytes of `record` as they lie there, never over what this version would
write, so a newer pydra's fields do not make a file "corrupt". They are kept, in `Record.unknown`, and
written back: an upgrade, a downgrade and another upgrade lose nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.checkpoint.unknown import find_unknown, restore_unknown
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig, PreparedDevice
from pydra.errors import CheckpointError

SCHEMA = 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Stage(Enum):
    """How far the preparation came."""

    STARTED = "started"
    COMPLETED = "completed"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What must survive a crash about one claim.

    `prepared` is what the backend made; a record that is *started* again, to be taken back, keeps it.
    `created` is in seconds since the epoch. `unknown` holds what a newer version wrote and this one
    does not know, JSON pointers to values; a record for a new preparation starts without.
    """

    claim: Claim
    driver: str
    stage: Stage
    boot_id: str
    prepared: tuple[PreparedDevice, ...] = ()
    created: float = 0.0
    unknown: Mapping[str, Any] = {}


class NewerSchemaError(CheckpointError):
    """The record was written by a newer pydra in a form that this one cannot read; it must stay as it is."""


Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: Mapping[int, Migration] = {}
"""From a schema to the one after it. A field more is no new schema; a field with another meaning is."""


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checksum: str
    record: msgspec.Raw


def build_record(record: Record) -> bytes:
    """The record as one line, newline included."""
    payload = _build_payload(record)
    return b'{"checksum":"%s","record":%s}\n' % (_checksum(payload).encode(), payload)


def parse_record(line: bytes) -> Record:
    """The record in one whole line.

    Raises:
        CheckpointError: the line is damaged, is no record, or lacks what a record needs; says which.
        NewerSchemaError: it is intact, but of a later schema.
    """
    if not line.endswith(b"\n"):
        raise CheckpointError("the record is cut off")
    try:
        envelope = msgspec.json.decode(line, type=_Envelope)
    except _UNREADABLE as error:
        raise CheckpointError(f"not a checkpoint record: {error}") from error
    payload = bytes(envelope.record)
    if envelope.checksum != _checksum(payload):
        raise CheckpointError("the checksum does not fit the record: it was damaged after it was written")
    return _parse_own(payload) or _parse_any(payload)


def migrate(
    document: dict[str, Any], *, schema: object, to: int = SCHEMA, migrations: Mapping[int, Migration] = MIGRATIONS
) -> dict[str, Any]:
    """The document in the schema `to`, one step after the other.

    Raises:
        NewerSchemaError: it is later than `to`.
        CheckpointError: no schema, or one that was never written.
    """
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise CheckpointError("not a checkpoint record: it names no schema")
    if schema > to:
        raise NewerSchemaError(
            f"the record has schema {schema} and this pydra reads up to {to}: "
            "it was written by a newer version; upgrade again, or unprepare the claim with that version"
        )
    for step in range(schema, to):
        migration = migrations.get(step)
        if migration is None:
            raise CheckpointError(f"the record has schema {schema}, from which no migration leads to {to}")
        document = migration(document)
    return document


class _Schema(msgspec.Struct, frozen=True):
    schema: int


def _parse_own(payload: bytes) -> Record | None:
    """The record, if it is exactly what this version writes: nearly all are, and it takes a tenth of the time."""
    try:
        if _SCHEMA.decode(payload).schema != SCHEMA:
            return None
        record = _opaque(_RECORD.decode(payload))
    except _UNREADABLE:
        return None
    return record if _build_payload(record) == payload else None


def _parse_any(payload: bytes) -> Record:
    try:
        document = msgspec.json.decode(payload)
    except _UNREADABLE as error:
        raise CheckpointError(f"not a checkpoint record: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError("not a checkpoint record: the record is no JSON object")
    document = migrate(document, schema=document.pop("schema", None))
    known = {key: value for key, value in document.items() if key != "unknown"}
    try:
        record = _opaque(msgspec.convert(known, Record))
    except msgspec.ValidationError as error:
        raise CheckpointError(f"the record lacks something, or has it in another form: {error}") from error
    return replace(record, unknown=dict(find_unknown(document, record)))


_SCHEMA = msgspec.json.Decoder(_Schema)
_RECORD = msgspec.json.Decoder(Record)


def _opaque(record: Record) -> Record:
    devices = tuple(map(_with_opaque_configs, record.claim.devices))
    return replace(record, claim=replace(record.claim, devices=devices))


def _with_opaque_configs(device: AllocatedDevice) -> AllocatedDevice:
    if not device.configs:
        return device
    return replace(device, configs=tuple(msgspec.convert(config, OpaqueConfig) for config in device.configs))


def _build_payload(record: Record) -> bytes:
    document = msgspec.to_builtins(record)
    del document["unknown"]
    restore_unknown(document, record.unknown)
    return msgspec.json.encode({"schema": SCHEMA, **document}, order="deterministic")


def _checksum(payload: bytes) -> str:
    return "sha256:" + hashlib.sha256(payload).hexdigest()
