"""Fabric Manager of a machine whose GPUs end at NVSwitches, below `pydra_nvidia.nvfm`: libnvfm's functions.

It offers the GPUs of each 1, 2, 4 ... neighbouring positions on the baseboard, as on HGX machines. In its restart mode
it answers nothing until it gets the list of active partitions, without the original's end after a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydra_nvidia.nvfm import (
    ACTIVE_VERSION,
    CONNECT_VERSIONS,
    CONNECTION_NOT_VALID,
    IN_USE,
    LIST_VERSION,
    NOT_CONFIGURED,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    VERSION_MISMATCH,
)
from pydra_nvidia.simulation.library.arguments import number, pointed
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_gpus import Board, spell_bus_id

BAD_PARAMETER = -1
HOPPER = 9


class FabricLibrary:
    """Its functions have the names, arguments and codes of the C functions."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.fmLibInit = self.fmDisconnect = lambda *_handle: SUCCESS
        self.fmConnect = self._connect
        self.fmGetSupportedFabricPartitions = self._list
        self.fmActivateFabricPartition = self._activate
        self.fmDeactivateFabricPartition = self._deactivate
        self.fmSetActivatedFabricPartitions = self._set_active

    def _connect(self, params: Any, _handle: Any) -> int:
        if pointed(params).version not in CONNECT_VERSIONS:
            return VERSION_MISMATCH
        running = self._machine.read().scenario.driver.fabric_mode is not None
        return SUCCESS if running else CONNECTION_NOT_VALID

    def _list(self, _handle: Any, reference: Any) -> int:
        view, found = self._machine.read(), pointed(reference)
        if found.version != LIST_VERSION:
            return VERSION_MISMATCH
        if not view.scenario.driver.fabric_mode:
            return NOT_SUPPORTED
        if view.state.fabric_phase == "waiting":
            return NOT_CONFIGURED
        groups = _find_groups(view)
        found.numPartitions = found.maxNumPartitions = len(groups)
        for entry, (id_, members) in zip(found.partitionInfo, groups.items(), strict=False):
            entry.partitionId, entry.isActive, entry.numGpus = id_, id_ in view.state.fabric, len(members)
            for place, board in zip(entry.gpuInfo, members, strict=False):
                place.physicalId, place.pciBusId = board.module, b"00000000:00:00.0"
                if board.model.architecture < HOPPER:
                    place.uuid, place.pciBusId = board.uuid.encode(), spell_bus_id(board.address).encode()
                    place.physicalId = 9 - board.module
        return SUCCESS

    def _activate(self, _handle: Any, partition: Any) -> int:
        with self._machine.change() as view:
            if view.state.fabric_phase == "waiting":
                return NOT_CONFIGURED
            groups = _find_groups(view)
            wanted = groups.get(number(partition), ())
            taken = {board.uuid for id_ in view.state.fabric for board in groups.get(id_, ())}
            if not wanted:
                return BAD_PARAMETER
            if self._is_kept(view, wanted) or taken & {board.uuid for board in wanted}:
                return IN_USE
            view.state.fabric = sorted((*view.state.fabric, number(partition)))
        return SUCCESS

    def _deactivate(self, _handle: Any, partition: Any) -> int:
        with self._machine.change() as view:
            if view.state.fabric_phase == "waiting":
                return NOT_CONFIGURED
            if number(partition) not in view.state.fabric:
                return UNINITIALIZED
            if self._is_kept(view, _find_groups(view).get(number(partition), ())):
                return IN_USE
            view.state.fabric.remove(number(partition))
        return SUCCESS

    def _set_active(self, _handle: Any, reference: Any) -> int:
        request = pointed(reference)
        if request.version != ACTIVE_VERSION:
            return VERSION_MISMATCH
        ids = list(request.partitionIds[: request.numPartitions])
        with self._machine.change() as view:
            if view.state.fabric_phase == "normal":
                return NOT_SUPPORTED
            groups = _find_groups(view)
            gpus = [board.uuid for id_ in ids for board in groups.get(id_, ())]
            if not set(ids) <= groups.keys() or len(gpus) != len(set(gpus)):
                return BAD_PARAMETER
            view.state.fabric, view.state.fabric_phase = sorted(ids), "resumed"
        return SUCCESS

    def _is_kept(self, view: View, boards: tuple[Board, ...]) -> bool:
        """Whether something has one of the GPUs open: NVML, or the persistence mode."""
        mine = [view.state.gpus[board.uuid] for board in boards]
        return bool(self._machine.clients()) or any(gpu.driver == "nvidia" and gpu.persistence for gpu in mine)


def _find_groups(view: View) -> Mapping[int, tuple[Board, ...]]:
    """All of them by ID, large ones first."""
    boards = sorted(
        (one for one in view.boards.values() if one.model.nvlink and one.model.nvlink.switched),
        key=lambda one: one.module,
    )
    sizes = [size for size in (16, 8, 4, 2, 1) if size <= len(boards)]
    groups = (tuple(boards[at : at + size]) for size in sizes for at in range(0, len(boards) - size + 1, size))
    return dict(enumerate(groups, view.scenario.driver.fabric_first))
