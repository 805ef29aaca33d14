"""NVIDIA's own driver as it was on the node before, with the checkpoint that it leaves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from claim_requests import request_for
from pydra.kube.api_resources import RESOURCE_CLAIMS, JsonObject
from pydra_nvidia import DRIVER
from pydra_nvidia.claim_config import GROUP_VERSION

if TYPE_CHECKING:
    from conftest import Scene


class Vendor:
    """NVIDIA's own driver as it was here: its claims, and the checkpoint that it leaves."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._completed: dict[str, Any] = {}
        self._started: dict[str, Any] = {}
        self.directory = Path(scene.node.settings.root, "plugins", DRIVER)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file = self.directory / "checkpoint.json"

    async def allocate(self, name: str, *devices: str, config: Mapping[str, Any] | None = None) -> str:
        """A claim that the scheduler gave these devices; its uid."""
        requests = [{**request_for(device), "name": f"r{number}"} for number, device in enumerate(devices)]
        claim = await self._scene.create_configured(name, *requests, config=config)
        pool = self._scene.node.settings.node_name
        results = [
            {"request": f"r{number}", "driver": DRIVER, "pool": pool, "device": device}
            for number, device in enumerate(devices)
        ]
        claim["status"] = {"allocation": {"devices": {"results": results}}}
        await self._scene.node.client.replace(RESOURCE_CLAIMS, name, claim, namespace="default", subresource="status")
        return str(claim["metadata"]["uid"])

    async def prepare(self, name: str, *devices: str, config: Mapping[str, Any] | None = None, **state: Any) -> str:
        """The claim is prepared, with `state` as configState; the hardware must be as it says already."""
        uid = await self.allocate(name, *devices, config=config)
        prepared = [self._device(f"r{number}", device, uid) for number, device in enumerate(devices)]
        groups = [{"devices": prepared, "configState": {"mpsControlDaemonID": "", **state}}]
        status = await self._status(name, config)
        self._completed[uid] = {"status": status, "preparedDevices": groups}
        return uid

    async def begin(self, name: str, *devices: str) -> str:
        """It was stopped while it prepared the claim."""
        uid = await self.allocate(name, *devices)
        self._started[uid] = {"status": await self._status(name, None), "name": name, "namespace": "default"}
        return uid

    def leave(self, *, boot: str | None = None) -> None:
        """Write its checkpoint."""
        boot = self._scene.boot_id_file.read_text().strip() if boot is None else boot
        v1: dict[str, Any] = {"preparedClaims": self._completed} if self._completed else {}
        claims = {uid: {"checkpointState": "PrepareCompleted", **claim} for uid, claim in self._completed.items()}
        claims |= {uid: {"checkpointState": "PrepareStarted", **claim} for uid, claim in self._started.items()}
        v2 = {**({"preparedClaims": claims} if claims else {}), "nodeBootID": boot}
        self.file.write_text(json.dumps({"v1": v1, "v2": v2}))

    async def _status(self, name: str, config: Mapping[str, Any] | None) -> JsonObject:
        claim = await self._scene.node.client.get(RESOURCE_CLAIMS, name, namespace="default")
        allocation = claim["status"]["allocation"]
        if config is not None:
            opaque = {"driver": DRIVER, "parameters": {"apiVersion": GROUP_VERSION, **config}}
            allocation["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
        return {"allocation": allocation}

    def _device(self, request: str, name: str, uid: str) -> JsonObject:
        scene = self._scene
        names = {
            "Requests": [request],
            "PoolName": scene.node.settings.node_name,
            "DeviceName": name,
            "CDIDeviceIDs": [f"k8s.{DRIVER}/claim={uid}-{name}"],
        }
        if "vfio" in name:
            boards = scene.simulation.machine.read().boards.values()
            address = sorted(board.address for board in boards)[int(name.rpartition("-")[2])]
            info = {"uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, address)), "pciBusID": address}
            return {"gpu": None, "mig": None, "vfio": {"info": info, "device": names}}
        minor = int(name.split("-")[1])
        if "-mig-" not in name:
            return {"gpu": {"info": {"uuid": scene.uuid(minor)}, "device": names}, "mig": None}
        instance = next(one for one in scene.gpus()[minor].instances if one.start == int(name.rpartition("-")[2]))
        concrete = {
            "parentMinor": minor,
            "giId": instance.id,
            "ciId": instance.compute[0].id,
            "migUUID": instance.compute[0].uuid,
            "parentUUID": scene.uuid(minor),
        }
        return {"gpu": None, "mig": {"concrete": concrete, "device": names}}


@pytest.fixture
def vendor_of() -> Callable[[Scene], Vendor]:
    """NVIDIA's driver on the scene's node."""
    return Vendor
