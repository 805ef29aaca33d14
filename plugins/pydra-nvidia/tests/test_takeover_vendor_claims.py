"""What NVIDIA's driver prepared is recognised on the hardware as it is, and what would undo it is decided."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Placement, Reading
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from pydra_nvidia.steps import BindVfio, CreateMig, MigModeOn, SetTimeSlice, Step
from pydra_nvidia.takeover.vendor_checkpoint import VendorClaim, VendorDevice, VendorResult
from pydra_nvidia.takeover.vendor_claims import convert_claim, plan_cleaning

STATIC = Settings(state="/s")
DYNAMIC = Settings(state="/s", dynamic_mig=True)
ADDRESS = "0000:65:00.0"
GROUPS = [
    {
        "model": "h100-80gb",
        "minors": [0],
        "mig": True,
        "instances": [
            {"profile": "1g.10gb", "start": 2},
            {"profile": "3g.40gb", "start": 4, "compute": [1, 2]},
            {"profile": "1g.10gb", "start": 3, "compute": []},
        ],
    },
    {"model": "a30", "minors": [1], "mig": True, "instances": [{"profile": "2g.12gb", "start": 0}]},
    {"model": "h100-80gb", "minors": [2], "addresses": [ADDRESS], "driver": "vfio-pci"},
    {"model": "t4", "minors": [3]},
]


class Node(Reading, frozen=True, kw_only=True):
    """A reading, with names for what is in it."""

    simulation: Any = None

    def uuid(self, minor: int) -> str:
        return next(gpu.uuid for gpu in self.gpus if gpu.minor == minor)

    def partition(self, minor: int, start: int) -> str:
        mig = next(gpu.mig for gpu in self.gpus if gpu.minor == minor)
        assert mig is not None
        return next(one.compute[0].uuid for one in mig.instances if one.placement.start == start)


@pytest.fixture
async def node(tmp_path: Path) -> Reading:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"host": {"onlyGpus": True}, "gpus": GROUPS, "settings": {"vfio": True}}))
    simulation: Simulation = open_simulation(str(path), str(tmp_path / "machine"))
    session = NvmlSession(simulation.load)
    reading = await HardwareReader(session, simulation.tree, settings=STATIC).read()
    session.close()
    values = {name: getattr(reading, name) for name in reading.__struct_fields__}
    return Node(**values)


def claim(*devices: VendorDevice, **fields: Any) -> VendorClaim:
    return VendorClaim(uid="u", completed=True, devices=devices, **fields)


def device(kind: str, name: str, **fields: Any) -> VendorDevice:
    return VendorDevice(kind=kind, device=name, pool="n", request="r", **fields)


def strip(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps without the names of the devices that they are for."""
    return tuple(replace(step, holds=None) for step in steps)


@pytest.mark.parametrize("name", ["gpu-0-mig-1g10gb-19-2", "gpu-0-mig-19-2-1"], ids=["today", "25.8"])
def test_a_partition_is_known_by_its_uuid_whatever_it_is_called(node: Node, name: str) -> None:
    made = convert_claim(claim(device("mig", name, uuid=node.partition(0, 2))), node, settings=DYNAMIC)
    assert strip(made.steps) == (
        MigModeOn(gpu=node.uuid(0)),
        CreateMig(
            gpu=node.uuid(0),
            profile=19,
            profile_name="1g.10gb",
            placement=Placement(2, 1),
        ),
    )
    (hold,) = made.holds
    assert (hold.device, hold.place) == (name, Placement(2, 1))
    assert made.claim.devices[0].device == name
    assert not made.notes


def test_the_mode_of_a_gpu_that_needs_a_reset_for_it_stays(node: Node) -> None:
    made = convert_claim(
        claim(device("mig", "gpu-1-mig-2g12gb-5-0", uuid=node.partition(1, 0))), node, settings=DYNAMIC
    )
    assert [type(step) for step in strip(made.steps)] == [CreateMig]


def test_a_partition_that_was_there_before_is_not_undone(node: Node) -> None:
    made = convert_claim(
        claim(device("mig", "gpu-0-mig-1g10gb-19-2", uuid=node.partition(0, 2))), node, settings=STATIC
    )
    assert strip(made.steps) == ()
    assert len(made.holds) == 1


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        pytest.param("gpu", "gpu-3", {"uuid": "GPU-other"}, id="another GPU has its number"),
        pytest.param("mig", "gpu-0-mig-1g10gb-19-2", {"uuid": "MIG-other"}, id="another partition has its place"),
        pytest.param("vfio", "gpu-vfio-0", {"address": "0000:99:00.0"}, id="no function there"),
        pytest.param("vfio", "gpu-vfio-1", {"uuid": "GPU-what"}, id="a UUID of no address"),
    ],
)
def test_what_is_something_else_by_now_is_void(node: Node, kind: str, name: str, fields: dict[str, Any]) -> None:
    made = convert_claim(claim(device(kind, name, **fields)), node, settings=DYNAMIC)
    assert made.is_void
    assert (strip(made.steps), made.holds) == ((), ())
    assert made.notes == (
        f"claim u: device {name} is no longer there as NVIDIA's driver prepared it; nothing is undone for it",
    )


def test_a_function_that_its_driver_has_back_is_void(node: Node) -> None:
    address = next(gpu.pci for gpu in node.gpus if gpu.minor == 3)
    assert convert_claim(claim(device("vfio", "gpu-vfio-3", address=address)), node, settings=STATIC).is_void


@pytest.mark.parametrize(
    "fields",
    [{"address": ADDRESS}, {"uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, ADDRESS))}],
    ids=["address", "25.12"],
)
def test_a_function_is_given_back_to_the_driver_with_its_persistence(node: Node, fields: dict[str, Any]) -> None:
    one = claim(device("vfio", "gpu-vfio-7", **fields))
    made = convert_claim(one, node, settings=STATIC, overridden=[ADDRESS])
    assert strip(made.steps) == (BindVfio(address=ADDRESS, before="nvidia", target="vfio-pci", persistence=True),)
    assert made.notes == ()


def test_a_function_that_was_bound_without_that_driver_stays_bound(node: Node) -> None:
    made = convert_claim(claim(device("vfio", "gpu-vfio-7", address=ADDRESS)), node, settings=STATIC)
    assert strip(made.steps) == (BindVfio(address=ADDRESS, before="vfio-pci", target="vfio-pci"),)
    assert made.notes == (
        f"claim u: function {ADDRESS} has no driver_override, so somebody else bound it to vfio-pci; it stays so when"
        " the claim ends",
    )


def test_one_device_that_is_gone_does_not_cost_the_claim_the_others(node: Node) -> None:
    made = convert_claim(
        claim(device("gpu", "gpu-9", uuid="GPU-gone"), device("gpu", "gpu-3", uuid=node.uuid(3), time_sliced=True)),
        node,
        settings=STATIC,
    )
    assert not made.is_void
    assert strip(made.steps) == (SetTimeSlice(gpu=node.uuid(3), interval=0),)
    assert [target is None for target in made.targets] == [True, False]


def test_admin_access_undoes_nothing_and_shares_keep_their_ids(node: Node) -> None:
    results = (
        VendorResult(request="r", driver="gpu.nvidia.com", pool="n", device="gpu-1"),
        VendorResult(request="q", driver="gpu.nvidia.com", pool="n", device="gpu-3"),
        VendorResult(request="r", driver="gpu.nvidia.com", pool="n", device="gpu-3", admin_access=True, share_id="s"),
    )
    made = convert_claim(
        claim(device("gpu", "gpu-3", uuid=node.uuid(3), time_sliced=True), results=results), node, settings=STATIC
    )
    assert strip(made.steps) == ()
    assert [(hold.admin, hold.share) for hold in made.holds] == [(True, "s")]


def begun(*names: str, driver: str = "gpu.nvidia.com", **fields: Any) -> VendorClaim:
    results = tuple(VendorResult(request="r", driver=driver, pool="n", device=name, **fields) for name in names)
    return VendorClaim(uid="b", completed=False, namespace="ns", name="c", results=results)


def test_what_was_begun_is_looked_for_by_name(node: Node) -> None:
    vfio = f"gpu-vfio-{sorted(node.functions).index(ADDRESS)}"
    wanted = begun("gpu-0-mig-1g10gb-19-3", "gpu-0-mig-1g10gb-19-0", vfio, "gpu-3", "gpu-0-mig-1g10gb-19-9")
    cleaning = plan_cleaning(wanted, node, driver="gpu.nvidia.com", taken=(), settings=DYNAMIC, overridden=[ADDRESS])
    assert [type(step) for step in cleaning.steps if not isinstance(step, BindVfio)] == [MigModeOn, CreateMig]
    assert [step.placement for step in cleaning.steps if isinstance(step, CreateMig)] == [Placement(3, 1)]
    assert [step.address for step in cleaning.steps if isinstance(step, BindVfio)] == [ADDRESS]
    assert cleaning.notes == ()


def test_what_the_admin_may_have_made_is_left_and_reported(node: Node) -> None:
    index = sorted(node.functions).index(ADDRESS)
    wanted = begun("gpu-0-mig-1g10gb-19-2", f"gpu-vfio-{index}")
    cleaning = plan_cleaning(wanted, node, driver="gpu.nvidia.com", taken=(), settings=DYNAMIC)
    assert cleaning.steps == ()
    partition, function = cleaning.notes
    assert "partition gpu-0-mig-1g10gb-19-2 is left as it is" in partition
    assert f"function {ADDRESS}, bound to vfio-pci, is left as it is" in function


@pytest.mark.parametrize(
    ("claimed", "settings"),
    [
        pytest.param(begun("gpu-0-mig-1g10gb-19-3"), STATIC, id="static"),
        pytest.param(begun("gpu-0-mig-1g10gb-19-3", driver="other"), DYNAMIC, id="another driver's"),
        pytest.param(begun("gpu-0-mig-1g10gb-19-3", admin_access=True), DYNAMIC, id="only looking"),
    ],
)
def test_what_it_did_not_make_is_not_undone(node: Node, claimed: VendorClaim, settings: Settings) -> None:
    assert plan_cleaning(claimed, node, driver="gpu.nvidia.com", taken=(), settings=settings).steps == ()


def test_what_a_completed_claim_has_is_not_undone_for_one_that_was_begun(node: Node) -> None:
    taken = convert_claim(
        claim(device("mig", "gpu-0-mig-1g10gb-19-2", uuid=node.partition(0, 2))), node, settings=DYNAMIC
    )
    cleaning = plan_cleaning(
        begun("gpu-0-mig-1g10gb-19-2"), node, driver="gpu.nvidia.com", taken=[taken], settings=DYNAMIC
    )
    assert (cleaning.steps, cleaning.notes) == ((), ())
