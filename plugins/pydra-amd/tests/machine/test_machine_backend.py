"""The backend as pydra calls it, over the files of a simulated machine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import pydra_amd
from amd_claims import Claims, held_by
from amd_values import GIB, allocated_device
from pydra import (
    AllocatedDevice,
    ClaimError,
    HealthStatus,
    HeldClaim,
    PreparedDevice,
    PydraError,
    StepStage,
    TaintEffect,
    UnknownDevice,
)
from pydra.claims.steps import set_stage
from pydra.testing import check_backend
from pydra_amd import Settings
from pydra_amd.settings import Partitioning

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

FIRST = "gpu-1-128"
CPX = f"{FIRST}-cpx-nps1"
ADDRESS = "0000:05:00.0"
GPUS = Path("tree/sys/bus/pci/drivers/amdgpu")


@asynccontextmanager
async def machine(root: Path, **settings: object) -> AsyncIterator[AmdBackend]:
    given = {"scenario": "mi300x-2", "state": str(root), "poll_period": 0.01, **settings}
    async with pydra_amd.connect(Settings(**given)) as backend:  # type: ignore[arg-type]
        yield backend


@asynccontextmanager
async def node_of(root: Path, held: dict[str, HeldClaim] | None = None, **settings: object) -> AsyncIterator[Claims]:
    """A machine whose claims choose modes, unless settings say otherwise."""
    async with machine(root, **{"partitioning": Partitioning.COMPUTE, **settings}) as backend:
        claims = Claims(backend, held)
        with held_by(claims):
            yield claims


def mode_of(root: Path, address: str = "0000:05:00.0") -> str:
    return (root / GPUS / address / "current_compute_partition").read_text().strip()


def nodes_of(prepared: PreparedDevice) -> list[str]:
    return [one.path for one in prepared.edits.device_nodes]


@pytest.mark.parametrize(
    ("scenario", "vfio", "sharing", "device"),
    [("w7900", "true", "false", "gpu-vfio-0"), ("mi300x-2", "false", "true", FIRST)],
)
def test_it_keeps_the_contract(
    scenario: str, vfio: str, sharing: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDRA_AMD_SCENARIO", scenario)
    monkeypatch.setenv("PYDRA_AMD_VFIO", vfio)
    monkeypatch.setenv("PYDRA_AMD_SHARING", sharing)
    monkeypatch.setenv("PYDRA_AMD_STATE", str(tmp_path))
    report = check_backend("amd", device=device)
    assert report.ok, report.text


def test_what_is_changed_for_a_claim_is_undone_wherever_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory mode, and the compute mode after it; the checks kill the backend, and cancel calls, at each wait."""
    device = f"{FIRST}-cpx-nps4-3"
    given = {"PARTITIONING": "memory", "SCENARIO": "mi300x-2", "STATE": str(tmp_path)}
    for key, text in {"FIRST_DEVICE": device, **{f"PYDRA_FIRST_DEVICE_{one}": given[one] for one in given}}.items():
        monkeypatch.setenv(key, text)
    report = check_backend("first_device:")
    assert report.ok, report.text
    assert mode_of(tmp_path) == "SPX"
    assert (tmp_path / GPUS / "0000:05:00.0" / "current_memory_partition").read_text().strip() == "NPS1"


async def test_a_whole_gpu_comes_with_its_nodes_and_the_environment_of_amds_driver(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        assert len((await backend.discover()).devices) == 2
        (prepared,) = await Claims(backend).prepare("gpu-9-136")
    assert nodes_of(prepared) == ["/dev/kfd", "/dev/dri/card9", "/dev/dri/renderD136"]
    assert prepared.edits.env == {"DRA_RESOURCE_DRIVER_NAME": "gpu.amd.com", "KUBERNETES_NODE_NAME": "node"}


async def test_the_claims_status_names_the_partition_and_the_gpu_that_it_has(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        published = {one.name: one.attributes for one in (await node.backend.discover()).devices}
        (part,) = await node.prepare(f"{CPX}-7")
        (whole,) = await node.prepare("gpu-9-136", uid="uid-2")
    assert part.status is not None
    assert part.status.data == {
        "pciBusID": "0000:05:00.0",
        "uniqueID": published[f"{CPX}-7"]["uniqueID"],
        "partitionProfile": "cpx_nps1",
        "partition": 7,
        "cardIndex": 8,
        "renderIndex": 135,
    }
    assert whole.status is not None
    assert "partition" not in whole.status.data


async def test_the_mode_is_set_for_the_first_claim_of_a_gpu_and_set_back_after_the_last(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        await node.prepare(f"{CPX}-0")
        (second,) = await node.prepare(f"{CPX}-7", uid="uid-2")
        (beside,) = await node.prepare("gpu-9-136", uid="uid-3")
        assert (mode_of(tmp_path), mode_of(tmp_path, "0000:27:00.0")) == ("CPX", "SPX")
        await node.end()
        assert mode_of(tmp_path) == "CPX"
        await node.end("uid-2")
        assert mode_of(tmp_path) == "SPX"
        await node.end("uid-3")
    assert nodes_of(second) == ["/dev/kfd", "/dev/dri/card8", "/dev/dri/renderD135"]
    assert second.attributes == {"cardIndex": 8, "renderIndex": 135}
    assert nodes_of(beside)[1:] == ["/dev/dri/card9", "/dev/dri/renderD136"]


async def test_a_mode_that_a_killed_process_set_is_set_back_when_the_claim_ends(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        await node.prepare(f"{CPX}-0")
        node.hold(set_stage(node.held["uid-1"].claim, 0, StepStage.BEGUN), completed=False)
    async with node_of(tmp_path, node.held) as node:
        assert mode_of(tmp_path) == "CPX"
        await node.end()
        assert mode_of(tmp_path) == "SPX"


async def test_claims_that_share_a_gpu_have_masks_of_their_own_that_a_restart_keeps(tmp_path: Path) -> None:
    def share(units: int) -> AllocatedDevice:
        consumed = {"computeUnits": str(units), "memory": "48Gi"}
        return allocated_device(FIRST, share_id=f"share-{units}", consumed_capacity=consumed)

    options = {"sharing": True, "partitioning": Partitioning.EXISTING}
    async with node_of(tmp_path, **options) as node:
        (first,) = await node.prepare(share(152))
        (second,) = await node.prepare(share(72), uid="uid-2")
        await node.end()
    async with node_of(tmp_path, node.held, **options) as node:
        (third,) = await node.prepare(share(160), uid="uid-3")
    masks = [prepared.edits.env["HSA_CU_MASK"] for prepared in (first, second, third)]
    assert masks == ["0:0-151", "0:152-223", "0:0-151,224-231"]
    assert nodes_of(first) == nodes_of(second)


async def test_what_the_admin_set_is_left_as_it_is_and_its_partitions_are_devices(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        await node.prepare(f"{CPX}-0")
    async with node_of(tmp_path, partitioning=Partitioning.EXISTING) as node:
        assert len((await node.backend.discover()).devices) == 9
        (prepared,) = await node.prepare("gpu-3-130")
        assert nodes_of(prepared) == ["/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD130"]
        await node.end()
        assert mode_of(tmp_path) == "CPX"


async def test_a_mode_that_the_driver_refuses_is_an_error_of_the_claim_with_what_it_answered(tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        claim = await node.plan(f"{CPX}-0")
        (one,) = claim.steps
        refused = replace(claim, steps=(replace(one, step=replace(one.step, target="tpx")),))
        with pytest.raises(ClaimError, match=r"writing TPX to .*current_compute_partition failed: Invalid argument"):
            await node.carry_out(refused)
        assert mode_of(tmp_path) == "SPX"


async def test_a_device_node_that_goes_is_noticed_and_so_is_its_return(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        await backend.discover()
        node = tmp_path / "tree" / "dev" / "dri" / "renderD128"
        target = node.readlink()
        for change in (node.unlink, lambda: node.symlink_to(target)):
            waiting = asyncio.create_task(backend.wait_changed())
            change()
            await asyncio.wait_for(waiting, 30)
            device = next(one for one in (await backend.discover()).devices if one.name == FIRST)
            assert (device.health.status is HealthStatus.HEALTHY) is node.exists()


@pytest.mark.parametrize(
    ("lost", "words"),
    [("drm", "it has no nodes in /dev/dri"), ("topology", "KFD has no node for it")],
)
async def test_a_gpu_that_lacks_something_is_told_and_the_others_are_published(
    lost: str, words: str, tmp_path: Path
) -> None:
    async with machine(tmp_path) as backend:
        sys = tmp_path / "tree" / "sys"
        shutil.rmtree(
            tmp_path / GPUS / "0000:27:00.0" / "drm" if lost == "drm" else sys / "class/kfd/kfd/topology/nodes/3"
        )
        inventory = await backend.discover()
    assert len(inventory.devices) == 1
    (text,) = inventory.unreadable
    assert f"GPU 0000:27:00.0 is bound to amdgpu and cannot be used: {words}" in text


async def test_a_gpu_that_falls_off_the_bus_is_an_error_of_the_claim(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        node = Claims(backend)
        claim = await node.plan(FIRST)
        (tmp_path / GPUS / "0000:05:00.0").unlink()
        with pytest.raises(UnknownDevice, match=r"no GPU 0000:05:00\.0 any more"):
            await node.carry_out(claim)


async def test_errors_that_a_gpu_counts_make_it_unhealthy_until_the_driver_counts_none(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        file = tmp_path / GPUS / "0000:05:00.0" / "ras" / "umc_err_count"
        for count, status in ((1, HealthStatus.UNHEALTHY), (0, HealthStatus.HEALTHY)):
            file.write_text(f"ue: {count}\nce: 3\nde: 1\n")
            found = {one.name: one.health for one in (await backend.discover()).devices}
            assert (found[FIRST].status, found["gpu-9-136"].status) == (status, HealthStatus.HEALTHY)
        file.write_text("Query currently inaccessible\n")
        assert (await backend.discover()).devices[0].health.status is HealthStatus.HEALTHY


async def test_a_reset_is_told_while_it_lasts_and_so_are_links_that_are_down(tmp_path: Path) -> None:
    async with machine(tmp_path, poll_period=30) as backend:
        await backend.discover()
        faults = tmp_path / "library" / "0000:05:00.0"
        faults.mkdir(parents=True)
        (faults / "links").write_text("UUUDUUUX")
        for event, taint in (("GPU_PRE_RESET", "reset"), ("GPU_POST_RESET", "xgmi-link")):
            waiting = asyncio.create_task(backend.wait_changed())
            (faults / "draft").write_text(f"{event}\n")
            (faults / "draft").rename(faults / "events")
            await asyncio.wait_for(waiting, 30)
            health = next(one.health for one in (await backend.discover()).devices if one.name == FIRST)
            assert health.taint == f"gpu.amd.com/{taint}"
        states = {
            one.labels["state"]: one.value
            for one in await backend.measure()
            if one.name == "xgmi_links" and one.device == FIRST
        }
    assert states == {"up": 6, "down": 1, "disabled": 1}


async def test_without_health_and_library_all_devices_are_healthy(tmp_path: Path) -> None:
    async with machine(tmp_path, health=False, amdsmi=False) as backend:
        (tmp_path / GPUS / "0000:05:00.0" / "ras" / "umc_err_count").write_text("ue: 1\n")
        assert {one.health.status for one in (await backend.discover()).devices} == {HealthStatus.HEALTHY}
        assert not [one for one in await backend.measure() if one.name == "xgmi_links"]
    assert not (tmp_path / "tree/sys/class/kfd/kfd/proc").exists()


async def test_throttling_is_told_for_some_minutes_by_a_taint_without_effect(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        faults = tmp_path / "library" / "0000:05:00.0"
        faults.mkdir(parents=True)
        found = []
        for count in ("1000", "1000", "1001", "1001"):
            (faults / "throttled").write_text(count)
            device = next(one for one in (await backend.discover()).devices if one.name == FIRST)
            assert device.health.status is HealthStatus.HEALTHY
            found.append([(one.key, one.effect) for one in device.taints])
    told = [("gpu.amd.com/throttling", TaintEffect.NONE)]
    assert found == [[], [], told, told]


async def test_counts_that_the_library_does_not_report_for_a_while_are_no_throttling(tmp_path: Path) -> None:
    """As while modes change, or the library fails."""
    async with machine(tmp_path) as backend:
        faults = tmp_path / "library"
        (faults / "0000:05:00.0").mkdir(parents=True)
        (faults / "0000:05:00.0/throttled").write_text("1000")
        for fails in ("", "amdsmi_get_gpu_metrics_info 2", ""):
            (faults / "fails").write_text(fails)
            assert [one.taints for one in (await backend.discover()).devices] == [(), ()]


async def test_numbers_of_a_gpu_are_measured_and_what_it_does_not_tell_is_left_out(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        assert await backend.measure() == []
        await backend.discover()
        folder = tmp_path / GPUS / "0000:05:00.0"
        (folder / "ras" / "umc_err_count").write_text("ue: 1\nce: 3\nde: 2\n")
        (folder / "gpu_busy_percent").write_text("50\n")
        (folder / "hwmon" / "hwmon4" / "power1_average").write_text("N/A\n")
        samples = [one for one in await backend.measure() if one.device == FIRST]
        (folder / "hwmon" / "hwmon4" / "power1_input").write_text("95000000\n")
        power = {one.value for one in await backend.measure() if (one.device, one.name) == (FIRST, "power_watts")}
    found = {(one.name, *one.labels.values()): one.value for one in samples}
    assert found["memory_used_bytes",] + found["memory_free_bytes",] == 192 * GIB - (16 << 20)
    assert found["utilization_ratio",] == 0.5
    assert found["temperature_celsius", "junction"] == 41
    assert [found["ecc_errors_total", "umc", kind] for kind in ("uncorrectable", "correctable", "deferred")] == [
        1,
        3,
        2,
    ]
    assert found["bad_pages",] == 0
    assert ("power_watts",) not in found
    assert power == {95}, "where the driver has no average"
    assert found["power_limit_watts",] == 750


@pytest.mark.parametrize(
    ("scenario", "parameter", "version", "tolerated"),
    [
        pytest.param("mi300x-2", "-1", "13.0.6", 127, id="default"),
        pytest.param("mi300x-2", "-1", "13.0.14", 255, id="twice-as-many-rows"),
        pytest.param("mi210-4", "", "", 127, id="without-a-list-of-blocks"),
        pytest.param("mi300x-2", "-2", "13.0.6", 1964, id="by-size"),
        pytest.param("mi300x-2", "64", "13.0.6", 63, id="the-admins"),
        pytest.param("w7900", "-1", "13.0.10", 490, id="workstation"),
    ],
)
async def test_a_gpu_is_unhealthy_when_as_many_pages_are_out_of_use_as_the_driver_says(
    scenario: str, parameter: str, version: str, tolerated: int, tmp_path: Path
) -> None:
    async with machine(tmp_path, scenario=scenario) as backend:
        gpu = next((tmp_path / GPUS).glob("0000:*"))
        (block := gpu / "ip_discovery/die/0/MP0/0").mkdir(parents=True)
        for name, number in zip(("major", "minor", "revision"), version.split("."), strict=False):
            (block / name).write_text(f"{number}\n")
        (parameters := tmp_path / "tree/sys/module/amdgpu/parameters").mkdir(parents=True, exist_ok=True)
        (parameters / "bad_page_threshold").write_text(f"{parameter}\n")
        (gpu / "ras").mkdir(exist_ok=True)
        states = []
        for count in (tolerated, tolerated + 1):
            (gpu / "ras/gpu_vram_bad_pages").write_text("0x00000001 : 0x00001000 : R\n" * count)
            found = (await backend.discover()).devices
            states.append({one.health.status for one in found if one.attributes["pciAddr"] == gpu.name})
    assert states == [{HealthStatus.HEALTHY}, {HealthStatus.UNHEALTHY}]


async def test_no_memory_is_measured_of_a_gpu_that_has_none_of_its_own(tmp_path: Path) -> None:
    async with machine(tmp_path, scenario="mi300a-4") as backend:
        await backend.discover()
        names = {one.name for one in await backend.measure()}
    assert "utilization_ratio" in names
    assert not [name for name in names if name.startswith("memory_") and name.endswith("_bytes")]


@pytest.mark.parametrize("lose", ["falls", "is removed"])
async def test_a_claim_whose_gpu_is_lost_can_end_and_the_others_modes_are_set_back(lose: str, tmp_path: Path) -> None:
    async with node_of(tmp_path) as node:
        await node.prepare(f"{CPX}-0", "gpu-9-136-cpx-nps1-0")
        if lose == "falls":
            (tmp_path / GPUS / ADDRESS / "config").write_bytes(b"\xff" * 64)
        else:
            (tmp_path / GPUS / ADDRESS).unlink()
        await node.end()
        assert mode_of(tmp_path, "0000:27:00.0") == "SPX"
        (later,) = node.later
        assert "the mode spx is set again when amdgpu has the GPU: GPU 0000:05:00.0 is gone" in later
        assert await node.plan("gpu-9-136", uid="uid-2")


async def test_a_gpu_that_sleeps_is_published_and_not_woken_to_ask_how_it_is(tmp_path: Path) -> None:
    async with machine(tmp_path, scenario="w7900") as backend:
        folder = tmp_path / GPUS / "0000:03:00.0"
        (folder / "config").write_bytes(b"\xff" * 64)
        (folder / "power").mkdir()
        (folder / "power" / "runtime_status").write_text("suspended\n")
        (device,) = (await backend.discover()).devices
        assert device.health.status is HealthStatus.HEALTHY
        assert await backend.measure() == []


async def test_virtual_functions_that_the_settings_do_not_offer_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with machine(tmp_path, scenario="mi300x-2-sriov") as backend:
        assert (await backend.discover()).devices == (await backend.discover()).devices == ()
    assert caplog.text.count("2 virtual functions are not offered; with PYDRA_AMD_VFIO=true they are") == 1


async def test_a_machine_without_the_driver_has_no_devices(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        shutil.rmtree(tmp_path / "tree" / "sys" / "bus")
        assert (await backend.discover()).devices == ()


RIGHTS = [
    (
        "/host",
        0,
        {"partitioning": Partitioning.MEMORY},
        "memory needs the capabilities SYS_MODULE and SYS_CHROOT, to reload",
    ),
    ("/", 1 << 18, {"partitioning": Partitioning.MEMORY}, "memory needs the capabilities SYS_MODULE, to reload"),
    ("/host", 1 << 16 | 1 << 18, {"partitioning": Partitioning.MEMORY}, ""),
    (
        "/host",
        1 << 19,
        {"vfio": True},
        r"vfio needs the capabilities DAC_READ_SEARCH, .*in the chart backends.amd.capab",
    ),
]


@pytest.mark.parametrize(("host", "capabilities", "settings", "told"), RIGHTS)
async def test_what_the_agent_has_no_rights_for_is_refused_at_the_start(
    host: str, capabilities: int, settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tpython3\nCapEff:\t{capabilities:016x}\n")
    given = Settings(host_root=host, sys_root=str(tmp_path), proc_root=str(tmp_path), **settings)
    with pytest.raises(PydraError, match=told) if told else nullcontext():
        async with pydra_amd.connect(given):
            pass


async def test_a_scenario_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(PydraError, match=r"no scenario mi9; bundled are: .*mi300x-8"):
        async with machine(tmp_path, scenario="mi9"):
            pass
