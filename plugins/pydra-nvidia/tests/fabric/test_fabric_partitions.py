"""Fabric Manager's partitions: read through the C structures, planned for a claim, activated and given back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_values import gpu
from pydra import AllocatedDevice, ClaimError, LeftBehind, TerminalError, UndoLater
from pydra_nvidia.claim_records import Entry, Hold
from pydra_nvidia.claim_targets import Passthrough, WholeGpu
from pydra_nvidia.fabric.active_partitions import ActivePartitions, RecordsUnread
from pydra_nvidia.fabric.apply_fabric import ActivateFabricApplier, FabricChanged
from pydra_nvidia.fabric.plan_fabric import explain_disconnected, match_members, plan_fabric
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import FabricPartition, Gpu, Reading, SharedFabric
from pydra_nvidia.host.driver_root import find_driver_root
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.inventory.attributes import describe_fabric
from pydra_nvidia.nvfm import (
    ACTIVE_VERSION,
    CONNECT_VERSIONS,
    LIST_VERSION,
    TIMEOUT,
    ActiveStruct,
    ConnectStruct,
    FabricManager,
    FabricManagerError,
    Group,
    ListStruct,
    Member,
    PartitionStruct,
)
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.persistence import PersistenceMode, set_persistence
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import parse_settings
from pydra_nvidia.simulation.simulation import open_simulation
from pydra_nvidia.steps import ActivateFabric
from pydra_pci import PciFunction
from step_agent import build_claim

ONE, TWO, THREE = (f"0000:1{number}:00.0" for number in (1, 2, 3))
PAIR = FabricPartition(id=4, gpus=(ONE, TWO))
SINGLE = FabricPartition(id=8, gpus=(ONE,))
FABRIC = SharedFabric(partitions=(PAIR, SINGLE))


def target(address: str, *, guest: bool = False, admin: bool = False) -> Any:
    allocated = AllocatedDevice(request="r", pool="n", device="gpu-0", admin_access=admin)
    if guest:
        function = PciFunction(address=address, vendor="0x10de", device="0x2330", pci_class="0x030200", driver="nvidia")
        return Passthrough(allocated=allocated, function=function)
    return WholeGpu(allocated=allocated, gpu=gpu(0, "a", address))


def test_the_structures_have_the_sizes_and_versions_of_the_vendors_header() -> None:
    assert ctypes.sizeof(PartitionStruct) == 2060
    assert (ctypes.sizeof(ListStruct), LIST_VERSION) == (131852, 0x0102030C)
    assert (ctypes.sizeof(ActiveStruct), ACTIVE_VERSION) == (264, 0x01000108)
    assert (ctypes.sizeof(ConnectStruct), CONNECT_VERSIONS) == (272, (0x0100010C, 0x02000110))


@pytest.mark.parametrize(
    ("members", "gpus"),
    [
        pytest.param([Member(module=1), Member(module=2)], (ONE, TWO), id="by module ID"),
        pytest.param([Member(module=9, uuid="GPU-b"), Member(module=8, uuid="GPU-a")], (ONE, TWO), id="by UUID"),
        pytest.param([Member(module=1, uuid="GPU-a"), Member(module=2)], None, id="a number beside UUIDs says nothing"),
        pytest.param([Member(module=1, bus_id="00000000:13:00.0")], (THREE,), id="by PCI address, though in a guest"),
        pytest.param([Member(module=1), Member(module=7)], None, id="a GPU that is not known"),
        pytest.param([], None, id="no GPU"),
    ],
)
def test_members_are_known_by_their_identity_or_else_by_their_position(
    members: list[Member], gpus: tuple[str, ...] | None
) -> None:
    known = (gpu(0, "a", ONE), gpu(1, "b", TWO))
    found = match_members([Group(id=4, active=False, members=tuple(members))], known, {ONE: 1, TWO: 2})
    assert [(one.id, one.gpus) for one in found] == ([(4, gpus)] if gpus else [])


@pytest.mark.parametrize(
    ("targets", "fabric", "outcome"),
    [
        ([target(TWO), target(ONE)], FABRIC, 4),
        ([target(TWO), target(ONE, guest=True)], FABRIC, 4),
        ([target(ONE), target(TWO, admin=True)], FABRIC, 8),
        ([target(ONE)], SharedFabric(partitions=FABRIC.partitions, problem="away"), 8),
        ([target(ONE)], None, None),
        ([target(ONE, admin=True)], FABRIC, None),
        ([target(TWO)], FABRIC, (TerminalError, r"1 GPU only these: 8 has .*matchAttribute: .*/partition1")),
        ([target(TWO), target(ONE), target(THREE)], FABRIC, (TerminalError, "connects no 3 GPUs")),
        ([target(ONE)], SharedFabric(problem="does not run"), (ClaimError, "not known: does not run")),
    ],
)
def test_the_gpus_of_a_claim_are_one_partition_or_are_refused(targets: list[Any], fabric: Any, outcome: Any) -> None:
    if isinstance(outcome, tuple):
        with pytest.raises(ClaimError, match=outcome[1]) as caught:
            plan_fabric(targets, Reading(fabric=fabric))
        assert type(caught.value) is outcome[0]
    else:
        found = [step.partition for step in plan_fabric(targets, Reading(fabric=fabric))]
        assert found == ([] if outcome is None else [outcome])


@pytest.mark.parametrize(
    ("partitions", "there", "lost"),
    [
        ((replace(PAIR, active=True),), (ONE, TWO), ""),
        ((PAIR, SINGLE), (ONE, TWO), "partition 4, which is not active: Fabric Manager was restarted without"),
        (
            (SINGLE,),
            (ONE, TWO),
            f"partition 4, but none of exactly {ONE}, {TWO} is in its table of partitions any more",
        ),
        ((SINGLE,), (ONE,), ""),
    ],
    ids=["active", "not active", "not in the table", "a GPU is lost, not the partition"],
)
def test_a_gpu_whose_claim_has_lost_its_partition_is_unhealthy(
    partitions: tuple[FabricPartition, ...], there: tuple[str, ...], lost: str
) -> None:
    step = ActivateFabric(partition=4, gpus=(ONE, TWO), members=())
    holds = (Hold(device="gpu-0", hardware=ONE),)
    entry = Entry(uid="u", name="default/u", holds=holds, begun=(step,), completed=True)
    functions = {one: target(one, guest=True).function for one in there}
    reading = Reading(functions=functions, modules={ONE: 1, TWO: 2}, fabric=SharedFabric(partitions=partitions))
    found = explain_disconnected([entry], reading)
    assert lost in found.get("gpu-0", "") if lost else found == {}


def test_a_gpu_has_the_partition_of_each_size_unless_there_are_two() -> None:
    other = SharedFabric(partitions=(*FABRIC.partitions, FabricPartition(id=5, gpus=(ONE, THREE))))
    assert describe_fabric(ONE, FABRIC) == {"partition1": 8, "partition2": 4}
    assert (describe_fabric(ONE, other), describe_fabric(TWO, other)) == ({"partition1": 8}, {"partition2": 4})
    assert describe_fabric(THREE, FABRIC) == describe_fabric(ONE, None) == {}


class Machine:
    """Eight GPUs of a model, whose Fabric Manager runs in this mode; all are in persistence mode."""

    def __init__(self, path: Path, model: str = "h100-80gb", gate: Gate | None = None) -> None:
        self._path = path / "scenario.yaml"
        self._model = model
        self.set_mode(1)
        simulation = open_simulation(str(self._path), str(path / "state"))
        self.machine = simulation.machine
        self.inject = simulation.inject
        self.tree = simulation.tree
        self.settings = parse_settings({}, simulation.settings)
        self.refusals = list[int]()
        self.answer: Callable[[int], int] = lambda code: code

        def load() -> Any:
            """The library; `answer` changes those for activations, `refusals` are those for the next lists."""
            library = simulation.load_fabric()
            activate = library.fmActivateFabricPartition
            library.fmActivateFabricPartition = lambda *given: self.answer(activate(*given))
            if self.refusals:
                library.fmSetActivatedFabricPartitions = lambda *_: self.refusals.pop()
            return library

        self.manager = FabricManager(load, "/run/socket")
        self.session = NvmlSession(simulation.load, gate)

        persistenced = Persistenced(simulation.tree, lambda: find_driver_root(simulation.tree, self.settings))
        self.held: tuple[Entry, ...] = ()
        self.when_read: Callable[[], object] = lambda: None
        self.partitions = ActivePartitions(self.manager, self._read_held)
        self.partitions.knows_claims = True
        persistence = PersistenceMode(simulation.tree, self.session, persistenced)
        self.applier = ActivateFabricApplier(self.partitions, self.session, persistence)

    def _read_held(self) -> tuple[Entry, ...]:
        self.when_read()
        return self.held

    def set_mode(self, mode: int | None, first: int = 0) -> None:
        told = "null" if mode is None else mode
        self._path.write_text(
            f"driver: {{fabricMode: {told}, fabricFirst: {first}}}\ngpus:\n- {{model: {self._model}, count: 8}}\n"
        )

    @property
    def active(self) -> list[int]:
        return self.machine.read().state.fabric

    def persistent(self) -> set[bool]:
        return {one.persistence for one in self.machine.read().state.gpus.values()}

    def step(self, first: int, last: int) -> ActivateFabric:
        """For the GPUs at these positions of the baseboard."""
        boards = {board.module: board.address for board in self.machine.read().boards.values()}
        gpus = tuple(boards[module] for module in range(first, last + 1))
        return next(
            ActivateFabric(partition=one.id, gpus=gpus, members=one.members)
            for one in match_members(self.manager.list_groups(), self.gpus(), {v: k for k, v in boards.items()})
            if one.gpus == gpus
        )

    def gpus(self) -> list[Gpu]:
        boards = self.machine.read().boards.values()
        return [replace(gpu(0, "a", board.address), uuid=board.uuid) for board in boards]


@pytest.mark.parametrize("model", ["h100-80gb", "a100-40gb"])
async def test_a_partition_is_activated_while_nothing_has_its_gpus_open_and_given_back(
    tmp_path: Path, model: str
) -> None:
    machine = Machine(tmp_path, model)
    await machine.session.run(lambda nvml: nvml.call("nvmlDeviceGetCount"))
    pair, other = machine.step(1, 2), machine.step(3, 4)
    claim = build_claim("c1", pair)
    for step in (pair, pair, other):  # a step that is done already is fine
        assert await machine.applier.apply(step, None, claim)
    assert (machine.active, machine.persistent()) == ([pair.partition, other.partition], {True})
    with pytest.raises(FabricManagerError, match=r"FM_ST_IN_USE .*another one that is active"):
        await machine.applier.apply(machine.step(1, 4), None, claim)
    assert machine.persistent() == {True}
    for step in (pair, pair):
        await machine.applier.undo(step, True, claim)
    assert (machine.active, machine.persistent()) == ([other.partition], {True})


async def test_gpus_get_their_persistence_mode_back_also_after_a_process_that_was_killed_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    step = machine.step(1, 2)
    known = [replace(one, persistence=True) for one in machine.gpus()]
    (planned,) = plan_fabric(
        [target(one) for one in step.gpus],
        Reading(
            gpus=tuple(known),
            fabric=SharedFabric(partitions=(FabricPartition(id=step.partition, gpus=step.gpus, members=step.members),)),
        ),
    )
    claim = build_claim("c1", planned)

    async def kill() -> None:
        for address in planned.gpus:
            await machine.session.run(lambda nvml, address=address: set_persistence(nvml, address, on=False))
        assert machine.persistent() == {True, False}

    await kill()
    assert await machine.applier.apply(planned, None, claim)
    assert machine.persistent() == {True}
    await kill()
    assert await machine.applier.apply(planned, None, claim)
    assert machine.persistent() == {True}
    for _ in range(2):
        await kill()
        await machine.applier.undo(planned, True, claim)
        assert (machine.active, machine.persistent()) == ([], {True})


async def test_nothing_is_said_of_the_persistence_mode_of_gpus_that_the_driver_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are for a guest."""
    machine = Machine(tmp_path)
    step = machine.step(1, 2)
    step = replace(step, persistent=step.gpus)
    for address in step.gpus:
        machine.tree.write(machine.tree.sys(f"bus/pci/devices/{address}/driver/unbind"), address)
    assert await machine.applier.apply(step, None, build_claim("c1", step))
    assert (machine.active, caplog.messages) == ([step.partition], [])


async def test_a_partition_waits_for_a_fabric_manager_that_is_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    step = machine.step(1, 8)
    claim = build_claim("c1", step)
    await machine.applier.apply(step, None, claim)
    machine.set_mode(None)
    with pytest.raises(FabricManagerError, match=r"fmConnect failed .*FM_CMD_UNIX_SOCKET_PATH"):
        await machine.applier.apply(step, None, claim)
    with pytest.raises(UndoLater, match="CONNECTION_NOT_VALID"):
        await machine.applier.undo(step, True, claim)
    machine.set_mode(0)
    with pytest.raises(FabricManagerError, match="FABRIC_MODE=1"):
        await machine.applier.undo(step, True, claim)
    machine.set_mode(1)
    for other in (replace(step, gpus=step.gpus[:2], members=()), replace(step, members=step.members[1:])):
        with pytest.raises(FabricChanged):
            await machine.applier.apply(other, None, claim)
    await machine.applier.undo(step, True, claim)
    assert machine.active == []


@pytest.mark.parametrize("trouble", ["maintenance begins", "the answer comes too late", "no answer comes any more"])
async def test_a_partition_that_was_activated_before_something_failed_is_given_back(
    tmp_path: Path, trouble: str
) -> None:
    gate = Gate(str(tmp_path / "run"))
    machine = Machine(tmp_path, gate=gate)
    step = machine.step(1, 2)
    step = replace(step, persistent=step.gpus)
    claim = build_claim("c1", step)

    def answer(code: int) -> int:
        if trouble == "maintenance begins":
            gate.ask(600)
            return code
        if trouble == "no answer comes any more":
            machine.set_mode(None)
        return TIMEOUT

    machine.answer = answer
    with pytest.raises(LeftBehind, match=rf"partition {step.partition} may be active"):
        await machine.applier.apply(step, None, claim)
    assert machine.active == [step.partition]
    gate.withdraw()
    machine.set_mode(1)
    await machine.applier.undo(step, None, claim)
    assert (machine.active, machine.persistent()) == ([], {True})
    machine.session.close()


async def test_maintenance_that_begins_in_an_activation_that_fails_leaves_persistence_modes_to_later(
    tmp_path: Path,
) -> None:
    gate = Gate(str(tmp_path / "run"))
    machine = Machine(tmp_path, gate=gate)
    pair, four = machine.step(1, 2), machine.step(1, 4)
    four = replace(four, persistent=four.gpus)
    claim = build_claim("c1", four)
    await machine.applier.apply(pair, None, build_claim("c2", pair))

    def answer(code: int) -> int:
        gate.ask(600)
        return code

    machine.answer = answer
    with pytest.raises(LeftBehind, match="maintenance"):
        await machine.applier.apply(four, None, claim)
    gate.withdraw()
    await machine.applier.undo(four, None, claim)
    assert (machine.active, machine.persistent()) == ([pair.partition], {True})
    machine.session.close()


def hold(*steps: ActivateFabric, left_over: bool = False, unread: bool = False) -> Entry:
    return Entry(uid="u", name="default/u", begun=steps, completed=True, left_over=left_over, unread=unread)


async def test_a_restarted_fabric_manager_gets_the_partitions_of_claims_before_anything_else(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pair, other, ended, own = (machine.step(at, at + 1) for at in (1, 3, 5, 7))
    for step in (pair, other, ended):
        await machine.applier.apply(step, None, build_claim("u", step))
    machine.held = (hold(pair), hold(other), hold(ended, left_over=True))
    machine.inject.restart_fabric_manager()
    assert machine.partitions.is_waiting()
    assert machine.active == []
    await machine.applier.apply(own, None, build_claim("v", own))
    assert machine.active == sorted([pair.partition, other.partition, own.partition])
    machine.inject.restart_fabric_manager()
    await machine.applier.undo(other, True, build_claim("u", other))  # which the records still have
    assert machine.active == [pair.partition]
    await machine.applier.apply(other, None, build_claim("u", other))
    machine.inject.restart_fabric_manager()
    machine.partitions.list_groups()
    assert machine.active == sorted([pair.partition, other.partition])


async def test_of_claims_that_have_ended_nothing_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    step = machine.step(1, 2)
    for uid in ("u", "v", "w"):
        await machine.applier.apply(step, None, build_claim(uid, step))
        await machine.applier.undo(step, True, build_claim(uid, step))
    assert machine.partitions._ended == {("w", step.key)}, "its record may still be there"


async def test_a_fabric_manager_with_another_list_gets_the_list_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    pair, foreign, taken = machine.step(1, 2), machine.step(7, 8), machine.step(5, 8)
    machine.held = (hold(pair, taken),)
    machine.inject.restart_fabric_manager()
    machine.manager.set_active([foreign.partition])
    assert {one.id for one in machine.partitions.list_groups() if one.active} == {pair.partition, foreign.partition}
    machine.inject.restart_fabric_manager(cold=True)
    machine.held = (hold(pair),)
    for _ in range(3):
        assert not any(one.active for one in machine.partitions.list_groups())
    assert caplog.text.count("has lost partitions that claims have") == 1, "not once for each call"


async def test_fabric_manager_gets_no_list_while_a_record_cannot_be_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    step = machine.step(1, 2)
    machine.held = (hold(step), hold(unread=True))
    machine.inject.restart_fabric_manager()
    with pytest.raises(RecordsUnread, match="default/u has cannot be read"):
        await machine.applier.apply(step, None, build_claim("u", step))
    with pytest.raises(UndoLater, match="cannot be read"):
        await machine.applier.undo(step, True, build_claim("u", step))
    assert machine.machine.read().state.fabric_phase == "waiting"


async def test_an_id_that_the_table_lacks_does_not_keep_other_claims_from_their_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    pair, moved, gone = machine.step(1, 2), machine.step(3, 4), machine.step(5, 6)
    without = replace(gone, partition=61, members=("module 8", "module 9"))
    machine.held = (hold(pair, replace(moved, partition=60)), replace(hold(without), uid="v", name="default/v"))
    machine.inject.restart_fabric_manager()
    machine.partitions.list_groups()
    assert machine.active == [pair.partition, moved.partition]
    lost = "has lost its partition"
    assert [one for one in caplog.messages if lost in one] == [
        f"claim default/v {lost} 61: Fabric Manager has none of exactly {', '.join(gone.gpus)} any more"
    ]


async def test_no_shorter_list_is_sent_for_a_refusal_that_is_not_of_an_id(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pair, other = machine.step(1, 2), machine.step(3, 4)
    machine.held = (hold(pair, other),)
    machine.inject.restart_fabric_manager()
    machine.refusals = [-2]
    with pytest.raises(FabricManagerError, match="waits for the list of active partitions"):
        machine.partitions.list_groups()
    assert machine.machine.read().state.fabric_phase == "waiting"
    machine.partitions.list_groups()
    assert machine.active == [pair.partition, other.partition]


@pytest.mark.parametrize("gets_active", [True, False], ids=["activated", "deactivated"])
def test_what_is_changed_while_lost_partitions_are_added_stays_so(tmp_path: Path, gets_active: bool) -> None:
    machine = Machine(tmp_path)
    pair, other = machine.step(1, 2), machine.step(3, 4)
    machine.inject.restart_fabric_manager()
    machine.manager.set_active([] if gets_active else [other.partition])
    for address in other.gpus:
        machine.session.run_here(lambda nvml, address=address: set_persistence(nvml, address, on=False))
    machine.session.close()
    with ThreadPoolExecutor(1) as threads:
        begun = list[Future[None]]()

        def begin() -> None:
            if not begun:
                change = machine.partitions.activate if gets_active else machine.partitions.deactivate
                begun.append(threads.submit(change, other.partition))
                wait(begun, timeout=0.2)

        machine.held, machine.when_read = (hold(pair),), begin
        machine.partitions.list_groups()
        begun[0].result()
    assert machine.active == [pair.partition, *([other.partition] if gets_active else [])]


async def test_an_id_that_names_other_gpus_by_now_is_neither_listed_nor_deactivated(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pair = machine.step(1, 2)
    machine.held = (hold(pair),)
    machine.set_mode(1, first=1)
    (moved,) = (one for one in machine.manager.list_groups() if one.identities == pair.members)
    assert moved.id == pair.partition + 1
    machine.inject.restart_fabric_manager()
    machine.partitions.list_groups()
    assert machine.active == [moved.id]
    await machine.applier.undo(replace(pair, members=("module 9",)), True, build_claim("u", pair))
    assert machine.active == [moved.id]
    await machine.applier.undo(pair, True, build_claim("u", pair))
    assert machine.active == []


async def test_devices_keep_their_partitions_while_fabric_manager_is_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    baseboard = str(tmp_path / "baseboard.json")
    reader = HardwareReader(
        machine.session,
        machine.tree,
        settings=replace(machine.settings, fabric_partitions=True),
        baseboard=baseboard,
        partitions=machine.partitions,
    )
    first = (await reader.read()).fabric
    machine.set_mode(None)
    away = (await reader.read()).fabric
    machine.set_mode(1)
    back = (await reader.reread([0])).fabric
    assert first is not None
    assert sorted(len(one.gpus) for one in first.partitions) == [1] * 8 + [2] * 4 + [4] * 2 + [8]
    assert (first.problem, away and away.partitions, back) == ("", first.partitions, first)
    assert away is not None
    assert "FM_CMD_UNIX_SOCKET_PATH" in away.problem
    machine.session.close()
