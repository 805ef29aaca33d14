"""One `Reading` of all hardware, from NVML and the kernel's files. What cannot change is read once.

Everything here blocks, so it runs in a thread, one reading at a time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra_nvidia.atomic_files import StateFile
from pydra_nvidia.device_names import gpu_name
from pydra_nvidia.fabric.active_partitions import ActivePartitions, RecordsUnread
from pydra_nvidia.fabric.plan_fabric import match_members
from pydra_nvidia.hardware_types import Driver, Gpu, LostGpu, Mig, Reading, SharedFabric
from pydra_nvidia.health.lost_gpus import find_lost
from pydra_nvidia.host.device_nodes import lacks_uvm
from pydra_nvidia.host.driver_root import DriverMissing, find_driver_root
from pydra_nvidia.host.kernel_driver import is_excluded, list_instances, read_module_version
from pydra_nvidia.host.pci import DRIVER, find_gpus, has_switches, list_bridges
from pydra_nvidia.host.product_names import PciIds
from pydra_nvidia.nvfm import FabricManagerError
from pydra_nvidia.nvml.errors import LOST, STALE, Code, NvmlError
from pydra_nvidia.nvml.gpus import read_condition, read_driver, read_facts, read_monitored
from pydra_nvidia.nvml.mig_state import (
    Kind,
    Offer,
    find_missing,
    read_instances,
    read_mode,
    read_mode_by_count,
    read_offer,
    read_resetless,
)
from pydra_nvidia.nvml.nvlink import Ends, links_of, links_up, read_ends, read_fabric, read_link_states
from pydra_nvidia.nvml.persistence import read_persistence
from pydra_nvidia.nvml.pynvml_library import Nvml, address_of
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.waiting import in_thread, turn
from pydra_pci import PciFunction, Tree, VfioDrivers, is_vfio, read_vfio_host

GONE = LOST | {Code.GPU_NOT_FOUND}
"""The GPU is there no more, or answers nothing until it is reset; any other error may be over the next time."""

_FATAL = GONE | STALE
"""Errors that leave nothing to be asked of the GPU."""

BASEBOARD_FILE = "baseboard.json"
"""In the state directory: the positions of GPUs on the baseboard, by PCI address. A reboot empties the directory."""


class _Known(msgspec.Struct, kw_only=True):
    """What need not be read again of a GPU while one session with NVML lasts and its MIG mode stays."""

    handle: Any
    epoch: int
    facts: Gpu
    enabled: bool | None
    resetless: bool
    monitored: bool
    offer: Offer
    compute: dict[int, tuple[Kind, ...]] = {}
    ends: Ends = Ends()
    unreported: str = ""


_log = logging.getLogger(__name__)
_READINGS = 10
"""At most, while functions change their drivers: the end of that is noticed, and read then."""


class HardwareReader:
    """The node's NVIDIA hardware; `session` is used by nobody else while a reading is made.

    What the driver withholds that is wanted is logged once. The file `baseboard` keeps positions on the baseboard;
    without `partitions` those of Fabric Manager are not read.
    """

    def __init__(
        self,
        session: NvmlSession,
        tree: Tree,
        *,
        settings: Settings,
        baseboard: str = "",
        partitions: ActivePartitions | None = None,
    ) -> None:
        self._session = session
        self._tree = tree
        self._settings = settings
        what = "the positions of GPUs on the baseboard"
        self._baseboard = StateFile(baseboard, dict[str, int], what, _log.warning) if baseboard else None
        self._positions: dict[str, int] | None = None
        self._partitions = partitions
        self._switches: tuple[object, bool] | None = None
        self._said: list[str] = []
        self._partly: set[str] = set()
        self._bus = find_gpus(tree)
        self._names = PciIds(tree)
        self._vfio_drivers = VfioDrivers(tree)
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._by_index: dict[int, Gpu] = {}
        self._driver: Driver | None = None
        self._missing: NvmlError | None = None
        self._generation = 0
        self._opened_for: object = None
        self._last: Reading | None = None

    async def read(self) -> Reading:
        """All of it. A GPU that does not answer is among the lost and costs the others nothing.

        Raises:
            DriverMissing: there is NVIDIA hardware, and no driver for it yet.
            NvmlError: NVML as a whole does not answer.
        """
        return await in_thread(self.read_here)

    def read_here(self) -> Reading:
        """The same in this thread, which may be blocked for long."""
        return self._locked(self._read)

    async def reread(self, gpus: Collection[int | str]) -> Reading:
        """The last reading, with the MIG state of these GPUs and the drivers of all functions read again.

        Each GPU by its minor number or UUID. It is a whole reading when there was none in this session, when a
        function has come, gone or changed its driver, or when one of the GPUs was not there. Raises as `read` does.
        """
        return await in_thread(self.reread_here, gpus)

    def reread_here(self, gpus: Collection[int | str]) -> Reading:
        """The same in this thread, which may be blocked for long."""
        return self._locked(self._reread, frozenset(gpus))

    @property
    def last(self) -> Reading:
        """The last reading; an empty one when there was none."""
        return self._last or Reading()

    def signature(self) -> object:
        """Differs when something changed from outside: functions, drivers, partitions, Fabric Manager. Cheap.

        Partitions that were replaced by others with the same ids between two looks are not noticed.
        """
        try:
            root: object = find_driver_root(self._tree, self._settings)
        except DriverMissing:
            root = None
        modules = read_module_version(self._tree), lacks_uvm(self._tree)
        return self._bus.drivers(), modules, list_instances(self._tree), root, self._socket()

    def note_claims(self) -> None:
        """The records of all claims are known from now on."""
        if self._partitions is not None:
            self._partitions.knows_claims = True

    def is_fabric_back(self) -> bool:
        """Whether Fabric Manager, which did not answer at the last reading, does now. Blocks."""
        fabric = self.last.fabric
        try:
            return self._partitions is not None and bool(fabric and fabric.problem) and self._partitions.is_waiting()
        except DriverMissing:
            return False

    def _socket(self) -> object:
        """Differs when Fabric Manager was started again."""
        if self._partitions is None:
            return None
        try:
            found = os.stat(self._tree.here(self._settings.fabric_manager_socket))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _locked(self, work: Callable[..., Reading], *arguments: Any) -> Reading:
        with turn(self._lock, "reading the hardware"):
            self._last = work(*arguments)
            return self._last

    def _read(self) -> Reading:
        reading = self._read_hardware()
        known = {*self.last.gone, *(one.address for one in self.last.functions.values() if not one.is_virtual)}
        reading = replace(reading, gone=frozenset(known - reading.functions.keys()))
        if self._baseboard is not None and (self._settings.vfio or self._settings.fabric_partitions):
            reading = replace(reading, modules=self._add_positions(self._baseboard, reading.gpus))
        return replace(reading, fabric=self._read_fabric(reading))

    def _add_positions(self, file: StateFile[dict[str, int]], gpus: Collection[Gpu]) -> Mapping[str, int]:
        """All that are known, with those of these GPUs.

        NVML reports them only while its driver has the GPUs, and what is published of a function must not depend on its
        driver. They belong to the addresses, so those of functions that are bound for a guest are kept.
        """
        before = self._positions if self._positions is not None else file.read() or {}
        self._positions = {**before, **{gpu.pci: gpu.module for gpu in gpus if gpu.module}}
        if self._positions != before:
            file.write(self._positions)
        return self._positions

    def _read_fabric(self, reading: Reading) -> SharedFabric | None:
        """Fabric Manager's partitions; as they were while it does not answer, so that devices stay published alike."""
        if self._partitions is None or not self._has_switches():
            return None
        try:
            groups = self._partitions.list_groups()
        except (FabricManagerError, DriverMissing, RecordsUnread) as error:
            last = self.last.fabric
            return SharedFabric(partitions=last.partitions if last is not None else (), problem=str(error))
        return SharedFabric(partitions=match_members(groups, reading.gpus, reading.modules))

    def _has_switches(self) -> bool:
        """Looked at again when there are other devices: reading what a bridge is takes long."""
        names = list_bridges(self._tree)
        if self._switches is None or self._switches[0] != names:
            self._switches = names, has_switches(self._tree)
        return self._switches[1]

    def _read_hardware(self) -> Reading:
        """Read again if functions changed their drivers: NVML does not know one that seems to have the old driver."""
        for _ in range(_READINGS):
            reading = self._read_at_once()
            if self._has_drivers_of(reading):
                break
        return reading

    def _has_drivers_of(self, reading: Reading) -> bool:
        """Whether the same functions are there, with the same drivers."""
        present = {address: driver for address, _, driver in self._bus.drivers()}
        return present == {address: one.driver for address, one in reading.functions.items()}

    def _read_at_once(self) -> Reading:
        functions = self._functions()
        vfio = read_vfio_host(self._tree)
        if not any(one.driver == DRIVER for one in functions.values()):
            if self._awaits_driver(functions):
                raise DriverMissing(_awaited(functions, read_module_version(self._tree)))
            return Reading(functions=functions, vfio=vfio)
        self._refresh_session()
        found = self._run(lambda nvml: self._read_gpus(nvml, functions))
        return replace(found, vfio=vfio, lacks_uvm=bool(found.gpus) and lacks_uvm(self._tree))

    def _awaits_driver(self, functions: Mapping[str, PciFunction]) -> bool:
        """Whether a driver has yet to take what is there; nodes for passthrough alone have none installed."""
        if all(is_vfio(one.driver) for one in functions.values()):
            return False
        if not self._settings.vfio or read_module_version(self._tree):
            return True
        try:
            find_driver_root(self._tree, self._settings)
        except DriverMissing:
            return False
        return True

    def _functions(self) -> dict[str, PciFunction]:
        """With what only passthrough needs where it is wanted: long lists of the host are read for it."""
        functions = self._bus.functions()
        if not self._settings.vfio:
            return functions
        return {
            address: replace(
                one, name=self._names.name(one.device), vfio_driver=self._vfio_drivers.choose(one.modalias)
            )
            for address, one in functions.items()
        }

    def _refresh_session(self) -> None:
        """NVML counts GPUs when it is initialised: one that came or went later needs another session."""
        wanted = tuple(one for one in self._bus.drivers() if one[2] == DRIVER), read_module_version(self._tree)
        if self._opened_for != wanted:  # unprepare may have opened one before the first reading
            self._session.close()
        self._opened_for = wanted

    def _read_gpus(self, nvml: Nvml, functions: Mapping[str, PciFunction]) -> Reading:
        if self._generation != self._session.generation:
            self._known.clear()
            self._by_index.clear()
            self._driver = None
            self._missing = find_missing(nvml) if self._settings.dynamic_mig else None
            self._generation = self._session.generation
        self._driver = self._driver or read_driver(nvml)
        gpus: list[Gpu] = []
        failures: dict[int, NvmlError] = {}
        for index in range(nvml.call("nvmlDeviceGetCount")):
            try:
                self._by_index[index] = self._read_twice(nvml, index, functions)
                gpus.append(self._by_index[index])
            except NvmlError as error:
                if error.code in STALE:
                    raise
                known = self._by_index.get(index)
                if known is not None and error.code not in GONE:  # it is still there, and may answer the next time
                    gpus.append(replace(known, condition=replace(known.condition, silence=str(error))))
                elif known is None and (partly := self._read_partly(nvml, index, functions)) is not None:
                    gpus.append(partly)
                else:
                    failures[index] = error
        self._say_unreported(gpus)
        return Reading(
            driver=self._driver,
            gpus=tuple(gpus),
            lost=find_lost(failures, gpus, self._last, self._without_excluded(functions, gpus)),
            functions=functions,
        )

    def _without_excluded(
        self, functions: Mapping[str, PciFunction], answering: Collection[Gpu]
    ) -> Mapping[str, PciFunction]:
        """The functions without GPUs that the admin has excluded from the driver's use."""
        known = {gpu.pci for gpu in answering}
        return {
            address: one
            for address, one in functions.items()
            if address in known or one.driver != DRIVER or not is_excluded(self._tree, address)
        }

    def _say_unreported(self, gpus: Collection[Gpu]) -> None:
        if not self._settings.dynamic_mig:
            return
        unreported = {gpu.minor: self._known[gpu.uuid].unreported for gpu in gpus if gpu.uuid in self._known}
        names = [gpu_name(minor) for minor, why in sorted(unreported.items()) if why]
        if names and names != self._said:
            why = next(filter(None, unreported.values()))
            _log.warning(
                "no partitions are made for claims on %s, since their places are not known: %s", ", ".join(names), why
            )
        self._said = names

    def _read_twice(self, nvml: Nvml, index: int, functions: Mapping[str, PciFunction]) -> Gpu:
        """One call of many may fail for a moment, as while the mode of the GPU is being changed."""
        try:
            return self._read_gpu(nvml, index, functions)
        except NvmlError as error:
            if error.code in GONE | STALE:
                raise
        return self._read_gpu(nvml, index, functions)

    def _read_partly(self, nvml: Nvml, index: int, functions: Mapping[str, PciFunction]) -> Gpu | None:
        """A GPU that could not be read whole yet: a question that fails costs its answer; None: all of them fail."""
        try:
            return self._read_gpu(nvml, index, functions, partly=True)
        except NvmlError as error:
            if error.code in STALE:
                raise
            return None

    def _read_gpu(self, nvml: Nvml, index: int, functions: Mapping[str, PciFunction], *, partly: bool = False) -> Gpu:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index, subject=f"GPU {index}")
        uuid = nvml.call("nvmlDeviceGetUUID", handle, subject=f"GPU {index}")
        self._partly.discard(uuid)
        if partly:
            self._partly.add(uuid)
        known, mig, unread = self._read_mig(nvml, handle, uuid, index)
        states = read_link_states(nvml, handle, subject=uuid)
        up = links_up(states)
        resting = not up and mig is not None and mig.enabled  # in MIG mode, where the ends are not known
        if up != known.ends.up and not resting:
            known.ends = read_ends(nvml, handle, up, functions, subject=uuid)
        return replace(
            known.facts,
            index=index,
            mig=mig,
            unread=unread,
            links=links_of(states, known.ends),
            fabric=read_fabric(nvml, handle, subject=uuid),
            persistence=read_persistence(nvml, handle, subject=uuid),
            condition=read_condition(nvml, handle, monitored=known.monitored, subject=uuid),
        )

    def _read_mig(self, nvml: Nvml, handle: Any, uuid: str, index: int) -> tuple[_Known, Mig | None, str]:
        """What is known of the GPU, how it is partitioned, and why that is not known.

        Raises NvmlError where a GPU is not read partly.
        """
        partly = uuid in self._partly
        mode, unreported, unread = None, "", ""
        try:
            mode = read_mode(nvml, handle, subject=uuid)
        except NvmlError as error:
            if not partly or error.code in _FATAL:
                raise
            unreported = str(error)
            try:
                mode = read_mode_by_count(nvml, handle, subject=uuid)
            except NvmlError as second:
                if second.code in _FATAL:
                    raise
                unread = unreported
        known = self._know(nvml, uuid, handle, index, mode)
        if known.offer.failure is not None and not partly:
            raise known.offer.failure
        known.unreported = unreported or known.offer.unreported if mode is None or mode[0] or known.resetless else ""
        if mode is None:
            return known, None, unread
        enabled, pending = mode
        try:
            instances = read_instances(nvml, handle, known.offer, known.compute, subject=uuid) if enabled else ()
        except NvmlError as error:
            if not partly or error.code in _FATAL:
                raise
            return known, None, str(error)
        mig = Mig(
            enabled=enabled,
            pending=pending,
            resetless=known.resetless,
            profiles=known.offer.profiles,
            instances=instances,
            unseen=str(known.offer.unseen or ""),
        )
        return known, mig, ""

    def _know(self, nvml: Nvml, uuid: str, handle: Any, index: int, mode: tuple[bool, bool] | None) -> _Known:
        enabled = None if mode is None else mode[0]
        known = self._known.get(uuid)
        if known is not None and known.epoch == nvml.epochs[uuid] and _is_other(known, enabled, handle):
            nvml.renew(uuid)  # somebody else has changed its mode
        nvml.handles[uuid] = handle
        if known is None or known.epoch != nvml.epochs[uuid] or known.offer.unreported:
            # A change of the mode can change the minor number and, before Hopper, what is offered. What was not
            # reported may be reported now.
            facts = read_facts(nvml, handle, index=index, uuid=uuid)
            known = self._known[uuid] = _Known(
                handle=handle,
                epoch=nvml.epochs[uuid],
                facts=facts,
                enabled=enabled,
                resetless=mode is not None and read_resetless(nvml, handle, facts.architecture, subject=uuid),
                monitored=read_monitored(nvml, handle, subject=uuid),
                offer=Offer() if mode is None else self._read_offer(nvml, handle, facts, uuid),
                ends=Ends() if known is None else known.ends,
            )
        known.handle = handle
        return known

    def _read_offer(self, nvml: Nvml, handle: Any, facts: Gpu, uuid: str) -> Offer:
        """Without places for partitions where making or removing them could fail for want of knowledge or functions."""
        offer = read_offer(nvml, handle, facts.memory, subject=uuid)
        lacking = offer.unseen or self._missing
        return offer if lacking is None else offer.without_places(str(lacking))

    def _reread(self, wanted: frozenset[int | str]) -> Reading:
        last = self._last
        if last is None or (last.fabric is not None and last.fabric.problem):
            return self._read()
        if not wanted <= {name for gpu in last.gpus for name in (gpu.minor, gpu.uuid)}:
            return self._read()
        if not self._has_drivers_of(last):
            return self._read()
        if last.driver is None:
            return last
        return self._run(lambda nvml: self._reread_gpus(nvml, last, wanted))

    def _run(self, work: Callable[[Nvml], Reading]) -> Reading:
        """Once more, in a new session, when the driver went away under the old one and came back."""
        try:
            return self._session.run_here(work)
        except NvmlError as error:
            if error.code not in STALE:
                raise
        return self._session.run_here(work)

    def _reread_gpus(self, nvml: Nvml, last: Reading, wanted: frozenset[int | str]) -> Reading:
        if self._generation != self._session.generation:
            reading = self._read_gpus(nvml, last.functions)
            return replace(reading, vfio=last.vfio, modules=last.modules, fabric=last.fabric, gone=last.gone)
        gpus: list[Gpu] = []
        lost = list(last.lost)
        for gpu in last.gpus:
            settled = gpu.mig is None and not gpu.unread
            if settled or wanted.isdisjoint((gpu.minor, gpu.uuid)):
                gpus.append(gpu)
                continue
            try:
                gpus.append(self._reread_gpu(nvml, gpu))
            except NvmlError as error:
                if error.code not in GONE:
                    raise
                lost.append(LostGpu(index=gpu.index, code=error.code, message=str(error), last=gpu, pci=gpu.pci))
        return replace(last, gpus=tuple(gpus), lost=tuple(lost))

    def _reread_gpu(self, nvml: Nvml, gpu: Gpu) -> Gpu:
        known, mig, unread = self._read_mig(nvml, nvml.find(gpu.uuid), gpu.uuid, gpu.index)
        return replace(gpu, minor=known.facts.minor, mig=mig, unread=unread)


async def read_once(session: NvmlSession, tree: Tree, settings: Settings) -> Reading:
    """All of it, in a session that ends with it. Raises as `HardwareReader.read` does."""
    try:
        return await HardwareReader(session, tree, settings=settings).read()
    finally:
        session.close()


def read_without_driver(tree: Tree) -> Reading:
    """What the kernel reports about the hardware alone. Blocks."""
    return Reading(functions=find_gpus(tree).functions(), vfio=read_vfio_host(tree))


def _is_other(known: _Known, enabled: bool | None, handle: Any) -> bool:
    return known.enabled is not enabled or address_of(known.handle) != address_of(handle)


def _awaited(functions: Mapping[str, PciFunction], module: str) -> str:
    waiting = [one for one in functions.values() if not is_vfio(one.driver)]
    listed = ", ".join(
        f"{one.address} ({f'bound to {one.driver}' if one.driver else 'bound to no driver'})" for one in waiting
    )
    what = (
        f"the NVIDIA driver {module} is loaded but has none of this node's GPUs"
        if module
        else "the NVIDIA driver is not loaded on this node yet"
    )
    return f"{what}: {listed}; waiting until one of them is bound to {DRIVER}"
