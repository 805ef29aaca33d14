"""What AMD's own driver has prepared, taken over from its checkpoint.

The checkpoint is written here as that driver's Go structures print it.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import pydra_amd
from amd_values import claim_of, held_claim
from pydra import ClaimError, DeviceInUse
from pydra_amd import Settings
from pydra_amd.claim_plan import ModeConflict
from pydra_amd.settings import Partitioning


@pytest.fixture
def plugin() -> Iterator[Path]:
    """The plugin directory; short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="pydra-") as path:
        yield Path(path)


def leave(plugin: Path, **claims: list[str]) -> Path:
    """A checkpoint with these claims, by uid, and their devices."""
    prepared = {
        uid: [
            {
                "request_names": ["gpus"],
                "pool_name": "node",
                "device_name": name,
                "cdi_device_ids": ["k8s.gpu.amd.com/gpu=common", f"k8s.gpu.amd.com/gpu={uid}-{name}"],
                "ContainerEdits": {"env": ["KUBERNETES_NODE_NAME=node"]},
            }
            for name in names
        ]
        for uid, names in claims.items()
    }
    path = plugin / "checkpoint.json"
    path.write_text(json.dumps({"checksum": 1234, "v1": {"preparedClaims": prepared}}))
    return path


def settings(root: Path, scenario: str = "mi300x-2", **fields: object) -> Settings:
    return Settings(**{"scenario": scenario, "state": str(root), "amdsmi": False, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", ["mi300x-2", "mi300x-8-cpx"])
async def test_a_claim_keeps_its_devices_with_the_nodes_that_it_had(
    scenario: str, plugin: Path, tmp_path: Path
) -> None:
    path = leave(plugin, first=["gpu-1-128", "gpu-9-136"])
    async with pydra_amd.connect(settings(tmp_path, scenario)) as backend:
        taken = await backend.inherit(str(plugin))
        assert taken.files == (str(path),)
        (one,) = taken.claims
        nodes = [node.path for device in one.prepared for node in device.edits.device_nodes]
        assert nodes[:3] == ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"]
        assert nodes[3:] == ["/dev/kfd", "/dev/dri/card9", "/dev/dri/renderD136"]
        held = held_claim(one.claim)
        with pytest.raises(DeviceInUse):
            await backend.plan(claim_of("gpu-9-136", uid="other"), [held])
        assert await backend.plan(claim_of("gpu-9-136", uid="other"), [])


async def test_a_gpu_of_such_a_claim_keeps_its_mode(plugin: Path, tmp_path: Path) -> None:
    leave(plugin, first=["gpu-1-128"])
    async with pydra_amd.connect(settings(tmp_path, partitioning=Partitioning.COMPUTE)) as backend:
        (one,) = (await backend.inherit(str(plugin))).claims
        with pytest.raises(ModeConflict):
            await backend.plan(claim_of("gpu-1-128-cpx-nps1-0"), [held_claim(replace(one.claim, name="other"))])


async def test_a_claim_whose_device_is_not_there_is_told_and_the_others_are_taken(
    plugin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave(plugin, lost=["gpu-0-cpx-nps1"], kept=["gpu-1-128"])
    async with pydra_amd.connect(settings(tmp_path)) as backend:
        (one,) = (await backend.inherit(str(plugin))).claims
    assert one.claim.uid == "kept"
    assert "claim lost, which AMD's driver prepared, has gpu-0-cpx-nps1" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"v2": {}}',
        b'{"v1": {"preparedClaims": {"uid": [{"device_name": 3}]}}}',
        b'{"v1": {"preparedClaims": {"\xff": []}}}',
        b"[" * 5000,
    ],
)
async def test_a_file_that_is_no_checkpoint_is_put_aside(
    content: bytes, plugin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = plugin / "checkpoint.json"
    path.write_bytes(content)
    async with pydra_amd.connect(settings(tmp_path)) as backend:
        taken = await backend.inherit(str(plugin))
    assert (taken.claims, taken.files) == ((), (str(path),))
    assert "cannot be read, its claims are prepared again" in caplog.text


async def test_nothing_is_taken_while_that_driver_serves(plugin: Path, tmp_path: Path) -> None:
    async with pydra_amd.connect(settings(tmp_path)) as backend:
        assert (await backend.inherit(str(plugin))).files == ()
        leave(plugin, first=["gpu-1-128"])
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(plugin / "dra.sock"))
            kubelet.listen()
            with pytest.raises(ClaimError, match="AMD's own DRA driver still serves"):
                await backend.inherit(str(plugin))
        assert len((await backend.inherit(str(plugin))).claims) == 1


async def test_claims_wait_for_an_agent_that_may_see_the_gpus(plugin: Path, tmp_path: Path) -> None:
    leave(plugin, first=["gpu-1-128"])
    async with pydra_amd.connect(settings(tmp_path)) as backend:
        nodes = [*(tmp_path / "tree/sys/class/kfd/kfd/topology/nodes").glob("*/properties")]
        shown = {path: path.read_text() for path in nodes}
        for path in nodes:
            path.write_text("")  # as the kernel has it for a container that may not open the GPUs
        with pytest.raises(ClaimError, match=r"KFD shows no node for it, .* backends.amd.privileged.* remove the file"):
            await backend.inherit(str(plugin))
        for path, text in shown.items():
            path.write_text(text)
        assert [one.claim.uid for one in (await backend.inherit(str(plugin))).claims] == ["first"]
