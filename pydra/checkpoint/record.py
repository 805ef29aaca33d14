"""The checkpoint record of a claim, and its serialisation.

A file holds one line of JSON:

    {"checksum":"sha256:...","record":{"schema":1,"claim":{...},"driver":"...","stage":"completed",...}}

The checksum is over the bytes of `record` as they are in the file, so a field that a newer version added does not
make a record unreadable. A record is either intact or not used at all. Only the devices that it may hold are read from
a damaged one (`read_partial_record`), since none of them may be given to another claim.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum

import msgspec
from msgspec.structs import replace

from pydra.claim import AllocatedDevice, Claim, HeldClaim, PreparedDevice, restore_configs
from pydra.devices import AttributeValue, CounterConsumption, NetworkData
from pydra.errors import CheckpointError

SCHEMA = 2
"""Increased if the meaning of a field changes, not for an additional one. 2: with steps, which must not be ignored."""

MAX_BYTES = 4 * 1024 * 1024

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DEVICE = re.compile(
    rb'\{"request":"[^"\\]*","pool":"[^"\\]{1,253}","device":"[a-z0-9-]{1,63}","share_id":(?:null|"[^"\\]*"),'
    rb'"consumed_capacity":\{[^{}]*\},"admin_access":(?:true|false)(?=,)'
)
_DEVICE_NAME = re.compile(rb'"pool":"([^"\\]{1,253})","device":"([a-z0-9-]{1,63})"')
_NAMES = re.compile(rb'"uid":"[^"\\]*","namespace":"([a-z0-9-]{1,63})","name":"([a-z0-9.-]{1,253})"')


class Stage(Enum):
    """The state of a claim's preparation."""

    STARTED = "started"
    COMPLETED = "completed"


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim's metadata files say beside what was prepared.

    `pod_claim_name` is the claim's name in the pod's spec if the claim was made from a template. `attributes` are those
    that the devices were published with, by `POOL/DEVICE`. `network_data` is that of each prepared device since the
    files were changed; empty as long as it is what `prepare` said. `generation` grows with each change.
    """

    pod_claim_name: str = ""
    attributes: Mapping[str, Mapping[str, AttributeValue]] = {}
    generation: int = 1
    network_data: tuple[NetworkData | None, ...] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What must outlive the agent's process about one claim.

    `prepared` is what the backend returned; it is kept while the claim is being unprepared, when the stage is
    *started* again. `created` is in seconds since the epoch. `boot_id` names the boot in which it was written.
    `metadata` is None for a claim without metadata files. `consumption` is what its devices consume, by `POOL/DEVICE`.
    `left_over` says why steps of a claim that has ended could not be undone; its uid ends in `.left`.
    """

    schema: int = 1
    claim: Claim
    driver: str
    stage: Stage
    boot_id: str
    prepared: tuple[PreparedDevice, ...] = ()
    created: float = 0.0
    metadata: Metadata | None = None
    consumption: Mapping[str, tuple[CounterConsumption, ...]] = {}
    left_over: str = ""

    def held(self) -> HeldClaim:
        """Return the claim as it is passed to a backend's `plan` and `restore`."""
        is_completed = self.stage is Stage.COMPLETED
        return HeldClaim(
            claim=self.claim, prepared=self.prepared, completed=is_completed, left_over=bool(self.left_over)
        )


class NewerSchemaError(CheckpointError):
    """A newer pydra wrote the record in a form that this version cannot read; the file must stay as it is."""


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checksum: str
    record: msgspec.Raw


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Placeholder(msgspec.Struct, frozen=True):
    missing: bool
    devices: tuple[AllocatedDevice, ...]


_encoder = msgspec.json.Encoder()
_envelope = msgspec.json.Decoder(_Envelope)
_schema = msgspec.json.Decoder(_Schema)
_record = msgspec.json.Decoder(Record)
_allocated = msgspec.json.Decoder(AllocatedDevice)


def build_record(record: Record) -> bytes:
    """Encode the file's content.

    Raises:
        CheckpointError: the record is larger than what `parse_record`'s callers read.
    """
    payload = _encoder.encode(replace(record, schema=SCHEMA) if record.claim.steps else record)
    if len(payload) > MAX_BYTES:
        raise CheckpointError(f"the record has {len(payload)} bytes; at most {MAX_BYTES} can be kept")
    return b'{"checksum":"sha256:%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)


def parse_record(content: bytes) -> Record:
    """Decode the record in a file. In the former format files had several lines, of which the last counts.

    Raises:
        CheckpointError: the content is damaged, is not a record, or lacks what a record needs; says which.
        NewerSchemaError: it is intact, but of a later schema.
    """
    line = content.strip()
    line = line[line.rfind(b"\n") + 1 :]
    if not line:
        raise CheckpointError("the file is empty")
    try:
        envelope = _envelope.decode(line)
    except _UNREADABLE as error:
        raise CheckpointError(f"not a checkpoint record: {error}") from error
    payload = bytes(envelope.record)
    if envelope.checksum != "sha256:" + hashlib.sha256(payload).hexdigest():
        raise CheckpointError("the checksum does not match the record: it was damaged after it was written")
    try:
        found = _schema.decode(payload).schema
        if found > SCHEMA:
            raise NewerSchemaError(
                f"the record has schema {found} and this version reads up to {SCHEMA}: a newer version of pydra wrote "
                "it; upgrade again, or unprepare the claim with that version"
            )
        record = _record.decode(payload)
        return replace(record, claim=restore_configs(record.claim))
    except _UNREADABLE as error:
        raise CheckpointError(f"not a checkpoint record: {error}") from error


def build_placeholder(devices: Sequence[AllocatedDevice]) -> bytes:
    """Build what stands for a record that somebody removed: `read_partial_record` finds the devices in it."""
    return _encoder.encode(_Placeholder(missing=True, devices=tuple(devices))) + b"\n"


def is_placeholder(content: bytes) -> bool:
    """Return whether the content only stands for a record that somebody removed."""
    return content.startswith(b'{"missing":true,')


def read_partial_record(content: bytes, uid: str) -> Claim:
    """Read the devices that it may hold and the claim's name from a damaged record, as far as those bytes are intact.

    A device of which only pool and name are intact has an empty request, and counts as held exclusively.
    """
    devices: list[AllocatedDevice] = []
    for found in _DEVICE.findall(content):
        with suppress(*_UNREADABLE):
            device = _allocated.decode(found + b"}")
            if device not in devices:
                devices.append(device)
    known = {(device.pool, device.device) for device in devices}
    for pool, name in dict.fromkeys(_DEVICE_NAME.findall(content)):
        key = pool.decode(errors="replace"), name.decode()
        if key not in known:
            devices.append(AllocatedDevice(request="", pool=key[0], device=key[1]))
    names = _NAMES.search(content)
    namespace, name = (part.decode() for part in names.groups()) if names else ("", "")
    return Claim(uid=uid, namespace=namespace, name=name, devices=tuple(devices))
