"""What a node publishes in and outside a fabric, and when it is ready: the backend over simulated machines."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    Health,
    HealthStatus,
    HeldClaim,
    Inventory,
    PreparedDevice,
    PydraError,
    TerminalError,
)
from pydra.backends.claim_config import find_config_problems
from pydra.testing import check_backend
from pydra_nvidia import compute_domain
from pydra_nvidia.compute_domain.backend import ComputeDomainBackend
from pydra_nvidia.compute_domain.claim_config import CONFIG_TYPES, ComputeDomainChannelConfig, ComputeDomainDaemonConfig
from pydra_nvidia.compute_domain.settings import Settings
from pydra_nvidia.compute_domain.steps import MakeDomainDirectory
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.nvlink import GpuFabric, NodeFabric, find_fabric
from step_agent import StepAgent

ID = "0f4a1c5e-7d0b-4f38-9d3a-5a0c4f7e2b11"
RACK = {"cluster": "5a4f3c1e-9d27-4b86-a0c5-7e1f2b3d4c5a", "clique": 2}
PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainDaemonConfig", "domainID": ID}


def gpus(*fabrics: dict[str, Any], channels: int = 2048, **more: Any) -> str:
    """A scenario with one GB200 for each of these fabrics."""
    groups = [{"model": "gb200-186gb", "fabric": {**RACK, **fabric}, **more} for fabric in fabrics]
    return f"host: {{imexChannels: {channels}}}\ngpus: {groups}\n".replace("'", '"')


class Machine:
    """A simulated machine in a folder; `backend` serves it."""

    def __init__(self, path: Path, backend: ComputeDomainBackend) -> None:
        self.path = path
        self.backend = backend
        self.domains = path / "state" / "run" / "domains"

    def becomes(self, scenario: str) -> None:
        """The scenario changes, as a fabric does that was not ready."""
        (self.path / "scenario.yaml").write_text(scenario)

    async def prepare(self, claim: Claim) -> Sequence[PreparedDevice]:
        """As the agent does: plan, each step, prepare."""
        for step in (await self.backend.plan(claim, ())).steps:
            await self.backend.apply(step, None, claim)
        return await self.backend.prepare(claim)

    async def health(self) -> Health:
        """That of all its devices."""
        (health,) = {one.health for one in (await self.backend.discover()).devices}
        return health


@asynccontextmanager
async def machine(path: Path, scenario: str, **settings: Any) -> AsyncIterator[Machine]:
    (path / "scenario.yaml").write_text(scenario)
    given = {"scenario": str(path / "scenario.yaml"), "state": str(path / "state"), "poll_period": 0.01, **settings}
    async with compute_domain.connect(Settings(**given)) as backend:
        yield Machine(path, backend)


def claim(kind: str, *, admin_access: bool = False, mode: Any = None) -> Claim:
    config: Any = ComputeDomainDaemonConfig(domain=ID)
    if kind == "channel":
        config = ComputeDomainChannelConfig(domain=ID, mode=mode)
    device = AllocatedDevice(
        request="it", pool="node", device=f"{kind}-0", configs=(config,), explicit=(True,), admin_access=admin_access
    )
    return Claim(uid=f"uid-{kind}", namespace="default", name=kind, devices=(device,))


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_NVIDIA_COMPUTE_DOMAIN_SCENARIO", "gb200")
    monkeypatch.setenv("PYDRA_NVIDIA_COMPUTE_DOMAIN_STATE", str(tmp_path))
    report = check_backend("nvidia-compute-domain", parameters=[PARAMETERS])
    assert report.ok, report.text
    # Its two devices need different configuration, so no two claims can be prepared alike, nor one for both.
    skipped = [check.rule for check in report.checks if check.mark == "skip"]
    assert skipped == ["together", "concurrent", "shared"], report.text


@pytest.mark.parametrize(
    ("kind", "fields", "found"),
    [
        ("Daemon", {}, "$.domainID: missing"),
        ("Daemon", {"domainID": ""}, '$.domainID: found ""'),
        ("Daemon", {"domainID": ID, "allocationMode": "All"}, "$.allocationMode: unknown field"),
        ("Channel", {"domainID": ID, "allocationMode": "Some"}, '$.allocationMode: found "Some"'),
    ],
)
def test_a_config_that_is_wrong_is_refused_with_its_field(kind: str, fields: dict[str, str], found: str) -> None:
    parameters = {"apiVersion": PARAMETERS["apiVersion"], "kind": f"ComputeDomain{kind}Config", **fields}
    (problem,) = find_config_problems(parameters, CONFIG_TYPES)
    assert problem.startswith(found)


@pytest.mark.parametrize(
    "fabric",
    [{"state": 0}, {"cluster": "00000000-0000-0000-0000-000000000000", "clique": 0}],
    ids=["not supported", "switches of this node alone"],
)
async def test_outside_a_fabric_claims_are_ready_at_once_without_channels(
    tmp_path: Path, fabric: dict[str, Any]
) -> None:
    async with machine(tmp_path, gpus(fabric, channels=0)) as node:
        inventory = await node.backend.discover()
        assert {one.name: dict(one.attributes) for one in inventory.devices} == {
            "channel-0": {"type": "channel", "id": 0},
            "daemon-0": {"type": "daemon", "id": 0},
        }
        assert await node.health() == Health()
        (prepared,) = await node.backend.prepare(claim("channel"))
        assert prepared.edits.device_nodes == ()
        (prepared,) = await node.backend.prepare(claim("daemon"))
        assert prepared.edits.env["CLIQUE_ID"] == ""
        assert not [one for one in prepared.edits.device_nodes if "nvidia-cap" in one.path]


async def test_a_machine_without_nvidia_hardware_has_no_devices(tmp_path: Path) -> None:
    async with machine(tmp_path, "gpus: []\n") as node:
        assert await node.backend.discover() == Inventory()


async def test_gpus_that_are_all_passed_through_are_in_no_fabric(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({}, driver="vfio-pci")) as node:
        names = [one.name for one in (await node.backend.discover()).devices]
        assert names == ["channel-0", "daemon-0"]
        assert await node.health() == Health()


async def test_a_driver_that_is_not_loaded_yet_is_reported(tmp_path: Path) -> None:
    async with machine(tmp_path, "driver: {state: unloaded}\n" + gpus({})) as node:
        with pytest.raises(PydraError, match="kernel driver is not loaded"):
            await node.backend.discover()


@pytest.mark.parametrize(
    ("fabrics", "channels", "words"),
    [
        pytest.param([{}, {"state": 2}], 2048, r"GPU GPU-.* is joining its NVLink fabric", id="in progress"),
        pytest.param([{"state": 1}], 2048, "has not begun to join", id="not started"),
        pytest.param([{"status": 999}], 2048, r"could not join .*NVML_ERROR_UNKNOWN \(999\)", id="failed"),
        pytest.param([{}, {"clique": 3}], 2048, r"several cliques of NVLink fabrics: 5a4f.*\.2, 5a4f.*\.3", id="two"),
        pytest.param([{}], 0, "IMEX channels of the NVIDIA kernel driver: found 0", id="no channels"),
    ],
)
async def test_a_fabric_that_is_not_ready_makes_the_devices_unhealthy_until_it_is(
    tmp_path: Path, fabrics: list[dict[str, Any]], channels: int, words: str
) -> None:
    async with machine(tmp_path, gpus(*fabrics, channels=channels)) as node:
        health = await node.health()
        assert health.status is HealthStatus.UNHEALTHY
        with pytest.raises(ClaimError, match=words) as caught:
            await node.backend.prepare(claim("channel"))
        assert caught.value.retryable
        assert health.message in str(caught.value)
        node.becomes(gpus(*({} for _ in fabrics)))
        await asyncio.wait_for(node.backend.wait_changed(), 30)
        assert await node.health() == Health()


async def test_a_driver_that_is_too_old_for_daemons_is_reported(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        await node.backend.discover()
        (tmp_path / "state/tree/proc/driver/nvidia/capabilities/fabric-imex-mgmt").unlink()
        health = await node.health()
        assert (health.status, health.reason) == (HealthStatus.UNHEALTHY, "FabricNotReady")
        assert "fabric-imex-mgmt" in health.message


async def test_a_driver_whose_imex_knows_no_names_is_reported(tmp_path: Path) -> None:
    async with machine(tmp_path, "driver: {version: 570.124.06}\n" + gpus({})) as node:
        assert "the NVIDIA driver is 570.124.06" in (await node.health()).message
        node.becomes("driver: {version: 570.158.01}\n" + gpus({}))
        assert await node.health() == Health()


@pytest.mark.parametrize(
    ("said", "fabric"),
    [
        ([], NodeFabric()),
        ([GpuFabric(), GpuFabric(clique="a.1")], NodeFabric(clique="a.1")),
        ([GpuFabric(problem="gone", lost=True), GpuFabric(clique="a.1")], NodeFabric(clique="a.1")),
        ([GpuFabric(problem="gone", lost=True)], NodeFabric(problem="gone")),
        ([GpuFabric(problem="one"), GpuFabric(problem="two")], NodeFabric(problem="one; two")),
    ],
)
def test_lost_gpus_leave_the_others_in_their_clique(said: list[GpuFabric], fabric: NodeFabric) -> None:
    assert find_fabric(said) == fabric


async def test_a_prepare_waits_for_a_daemon_that_is_about_to_be_ready(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        await node.prepare(claim("daemon"))
        waiting = asyncio.create_task(node.prepare(claim("channel")))
        (node.domains / ID / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")
        (prepared,) = await asyncio.wait_for(waiting, 30)
        assert [one.minor for one in prepared.edits.device_nodes] == [0]


async def test_what_no_held_claim_explains_is_removed_at_the_start(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        await node.prepare(claim("daemon"))
        (node.domains / "other").mkdir()
        damaged = AllocatedDevice(request="it", pool="node", device="daemon-0")
        lost = Claim(uid="lost", namespace="default", name="lost", devices=(damaged,))
        await node.backend.restore([HeldClaim(claim=lost, completed=True)])
        assert sorted(path.name for path in node.domains.iterdir()) == [ID, "other"]
        (node.domains / "notes").write_text("an admin's file keeps nobody from serving")
        await node.backend.restore([HeldClaim(claim=claim("daemon"), completed=False)])
        (node.domains / "notes").unlink()
        assert [path.name for path in node.domains.iterdir()] == [ID]
        for _ in range(2):
            await node.backend.undo(MakeDomainDirectory(domain=ID), None, claim("daemon"))
        assert list(node.domains.iterdir()) == []


async def test_what_a_daemons_container_leaves_for_the_agent_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({}), ready_deadline=0.1) as node:
        await node.prepare(claim("daemon"))
        directory, other = node.domains / ID, tmp_path / "of-the-node"
        other.write_text("untouched")
        (directory / f"imexd.cfg.tmpl.{os.getpid()}").symlink_to(other)
        await node.prepare(claim("daemon"))
        assert other.read_text() == "untouched"
        assert "IMEX_CMD_PORT=50005" in (directory / "imexd.cfg.tmpl").read_text()

        (directory / "imexd.cfg").symlink_to(other)
        with pytest.raises(ClaimError, match="not a regular file"):
            await node.prepare(claim("channel"))
        (directory / "imexd.cfg").unlink()
        (directory / "imexd.cfg").write_text("IMEX_CMD_PORT=50005\n")

        pipe = directory / "domain.json"
        os.mkfifo(pipe)
        with subprocess.Popen(["sh", "-c", 'echo >"$0"', str(pipe)]) as waits:  # noqa: ASYNC220
            try:
                await node.prepare(claim("channel"))
                assert waits.poll() is None, "the pipe was opened to be read"
            finally:
                waits.kill()
        pipe.unlink()
        pipe.write_text("[" * 100_000)
        await node.prepare(claim("channel"))


async def test_a_daemons_directory_is_removed_however_deep_its_container_made_it(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        await node.prepare(claim("daemon"))
        place = os.open(node.domains / ID, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("deep", dir_fd=place)
            os.symlink("/", "link", dir_fd=place)
            below = os.open("deep", os.O_RDONLY, dir_fd=place)
            os.close(place)
            place = below
        os.close(place)
        try:
            await node.backend.undo(MakeDomainDirectory(domain=ID), None, claim("daemon"))
            assert list(node.domains.iterdir()) == []
        finally:  # what is left pytest could not remove
            subprocess.run(["rm", "-rf", node.domains], check=True)  # noqa: ASYNC221


async def test_a_directory_in_which_a_container_removes_something_meanwhile_goes_later(tmp_path: Path) -> None:
    """As the daemon of a pod that was deleted by force, which writes its files by way of drafts."""
    async with machine(tmp_path, gpus({})) as node:
        agent = StepAgent(node.backend)
        await agent.prepare(claim("daemon"))
        (node.domains / ID / "draft").touch()
        _vanishing.append("draft")
        await agent.unprepare("uid-daemon")
        assert "cannot be removed: a container removed something in it meanwhile" in agent.later[0]
        await agent.retry()
        assert (list(node.domains.iterdir()), agent.records) == ([], {})


_vanishing: list[str] = []


def _remove_before(event: str, arguments: tuple[object, ...]) -> None:
    """A file of this name is gone by the time when it is removed."""
    if event == "os.remove" and arguments[0] in _vanishing:
        _vanishing.remove(str(arguments[0]))
        os.remove(str(arguments[0]), dir_fd=int(str(arguments[1])))


sys.addaudithook(_remove_before)


async def test_what_cannot_be_listed_at_the_start_stays_until_the_next(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        node.domains.parent.mkdir(parents=True, exist_ok=True)
        node.domains.write_text("not a directory")
        await node.backend.restore(())


async def test_a_directory_that_a_full_disk_has_no_place_for_does_not_stay(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        agent = StepAgent(node.backend)
        planned = await agent.plan(claim("daemon"))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            with pytest.raises(ClaimError, match="cannot be made: File too large"):
                await agent.carry_out(planned)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(node.domains.iterdir()) == []


async def test_a_daemon_is_not_had_twice_and_not_with_its_channel(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        with pytest.raises(TerminalError, match="adminAccess"):
            await node.prepare(claim("daemon", admin_access=True))
        both = (*claim("daemon").devices, *claim("channel").devices)
        with pytest.raises(TerminalError, match="no claim can have both"):
            await node.prepare(Claim(uid="both", namespace="default", name="both", devices=both))
        assert not node.domains.exists()


async def test_a_daemon_is_for_claims_of_the_controllers_namespace(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({}), daemon_namespace="pydra") as node:
        with pytest.raises(TerminalError, match="and this claim is of default") as error:
            await node.prepare(claim("daemon"))
        assert error.value.reason == "DaemonOfOtherNamespace"
        assert not node.domains.exists()
        await node.prepare(replace(claim("daemon"), namespace="pydra"))


async def test_during_maintenance_nobody_opens_nvml_and_the_devices_stay_as_they_were(tmp_path: Path) -> None:
    async with machine(tmp_path, gpus({})) as node:
        before = await node.backend.discover()
        gate = Gate(str(tmp_path / "state" / "run"))
        gate.ask(60)
        assert gate.wait_left(1)
        assert await node.backend.discover() == before
        with pytest.raises(ClaimError, match="maintenance of its GPUs"):
            await node.prepare(claim("daemon"))
        gate.withdraw()
        await node.prepare(claim("daemon"))
