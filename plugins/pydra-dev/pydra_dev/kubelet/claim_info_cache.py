"""What the kubelet remembers of claims, and its checkpoint of them.

Whether a claim is prepared is not in the checkpoint: after a restart plugins are asked again.
Source: pkg/kubelet/cm/dra/claiminfo.go.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from pydra_dev.kubelet.plugin_answers import PreparedDevice
from pydra_dev.kubelet.pod_claims import ClaimKey

DriverDevice: TypeAlias = tuple[str, PreparedDevice]
KIND, API_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class ClaimInfo(msgspec.Struct, kw_only=True):
    """One claim on this node; changed in place, by the preparer alone."""

    key: ClaimKey
    drivers: tuple[str, ...]
    pods: set[str] = msgspec.field(default_factory=set)
    devices: dict[str, list[PreparedDevice]] = msgspec.field(default_factory=dict)
    prepared: bool = False

    def select_devices(self, request: str) -> Iterator[DriverDevice]:
        """The prepared devices for a request, or for all of them when it is empty, each with its driver."""
        for driver in sorted(self.devices):
            for device in self.devices[driver]:
                if not request or not device.requests or request in device.requests:
                    yield driver, device


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    claims: tuple[_Entry, ...] = msgspec.field(name="ClaimInfoStateList")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    uid: str = msgspec.field(name="ClaimUID")
    info: ClaimInfo


class _File(msgspec.Struct, frozen=True, kw_only=True):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


class ClaimCache:
    """Claims by namespace and name; `save` writes the file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._claims: dict[tuple[str, str], ClaimInfo] = {}

    def load(self) -> None:
        """Read the file, if there is one; raises ValueError when it is damaged."""
        try:
            with open(self._path, "rb") as stream:
                file = msgspec.json.decode(stream.read(), type=_File)
        except FileNotFoundError:
            return
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise ValueError(f"checkpoint {self._path} is corrupt: its checksum does not match")
        for entry in msgspec.json.decode(file.data, type=_Checkpoint).claims:
            info = entry.info
            info.prepared = False
            self._claims[info.key.namespace, info.key.name] = info

    def save(self) -> None:
        """Write the file in place of the old one."""
        claims = tuple(_Entry(uid=info.key.uid, info=info) for info in self.infos())
        data = msgspec.json.encode(_Checkpoint(kind=KIND, api_version=API_VERSION, claims=claims))
        draft = f"{self._path}.tmp"
        with open(draft, "wb") as stream:
            stream.write(msgspec.json.encode(_File(data=data.decode(), checksum=zlib.crc32(data))))
        os.replace(draft, self._path)

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """The claim of this name, whatever its uid."""
        return self._claims.get((namespace, name))

    def add(self, info: ClaimInfo) -> None:
        """Remember a claim."""
        self._claims[info.key.namespace, info.key.name] = info

    def remove(self, info: ClaimInfo) -> None:
        """Forget a claim."""
        self._claims.pop((info.key.namespace, info.key.name), None)

    def of_pod(self, uid: str) -> tuple[ClaimInfo, ...]:
        """The claims that a pod uses, in order."""
        return tuple(self._claims[name] for name in sorted(self._claims) if uid in self._claims[name].pods)

    def infos(self) -> tuple[ClaimInfo, ...]:
        """All claims, in order."""
        return tuple(self._claims[name] for name in sorted(self._claims))

    def pods(self) -> frozenset[str]:
        """The uids of all pods that use a claim."""
        return frozenset(uid for info in self._claims.values() for uid in info.pods)
