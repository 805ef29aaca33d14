"""One GPU as NVML tells it, as the parts of a scenario: its kind, links, fabric, instances and how it is."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra_nvidia.hardware_types import Gpu, Mig
from pydra_nvidia.nvml.errors import STALE, UNAVAILABLE, Code, NvmlError, code_name
from pydra_nvidia.nvml.gpus import parse_bus_id, read_condition, read_facts, read_monitored, read_persistence
from pydra_nvidia.nvml.library import Nvml, read_fields
from pydra_nvidia.nvml.mig_state import RESETLESS_FIELD, read_mode, read_resetless
from pydra_nvidia.nvml.nvlink import MOST_LINKS, links_of, links_up, read_ends, read_fabric_info, read_link_states
from pydra_nvidia.simulation.model import ClockModel, FabricModel, Model, NvLinkModel, PciModel
from pydra_nvidia.simulation.recording.mig_tables import read_mig, read_presets
from pydra_nvidia.simulation.recording.read_only_guard import DETAILED, SCALAR, CallLog, handle_address
from pydra_nvidia.simulation.scenario import ConditionPart, LinkPart, Preset

MIB = 1 << 20
_CLOCKS = ("graphics", "sm", "memory", "video")
_RESET_FIELD = 226
_FIELDS = (83, 94, RESETLESS_FIELD, 185, 186, 188, 189, 190, 199)
_PARTITIONING_FIELDS = (RESETLESS_FIELD, 199)
"""Field values that a simulated GPU tells by itself, if nobody says that its kind does not."""

_HISTOGRAM = ("max", "high", "partial", "low", "none")

_QUESTIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetComputeMode", ()),
    ("nvmlDeviceGetComputeRunningProcesses_v3", ()),
    ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("nvmlDeviceGetEnforcedPowerLimit", ()),
    ("nvmlDeviceGetPcieReplayCounter", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetTotalEnergyConsumption", ()),
    ("nvmlDeviceGetTemperature", (0,)),
)
"""Asked only for whether they are answered: what they answer is of the moment."""

_TOLD_BY_THE_MODEL = frozenset(
    {
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetBoardPartNumber",
        "nvmlDeviceGetGspFirmwareVersion",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetRowRemapperHistogram",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetVbiosVersion",
    }
)
"""NOT_SUPPORTED from these is what a field of the model says."""

_ABSENT = UNAVAILABLE - {Code.NOT_SUPPORTED} | {Code.NOT_FOUND, Code.INVALID_ARGUMENT}
_ROOT = frozenset(
    {
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetComputeInstances",
    }
)
"""What only root may ask."""


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that answers. `errors` are calls that always failed, with the code, beyond what the model says.

    `privileged` False: it refused what only root may ask.
    """

    gpu: Gpu
    model: Model
    links: tuple[LinkPart, ...] = ()
    fabric: FabricModel | None = None
    presets: tuple[Preset, ...] = ()
    condition: ConditionPart = ConditionPart()
    errors: Mapping[str, str] = {}
    privileged: bool = True


def read_record(nvml: Nvml, gpu: Gpu, pci: PciModel, log: CallLog) -> GpuRecord:
    """All of the GPU; raises NvmlError when it is lost by now."""
    handle = nvml.call("nvmlDeviceGetHandleByIndex", gpu.index, subject=gpu.uuid)
    record = GpuRecord(
        gpu=gpu,
        model=_read_model(nvml, handle, gpu, pci),
        links=_read_links(nvml, handle, gpu),
        fabric=_read_fabric(nvml, handle, gpu.uuid),
        presets=read_presets(nvml, handle, gpu),
        condition=_read_condition(nvml, handle, gpu),
    )
    for name, arguments in _QUESTIONS:
        nvml.look(name, handle, *arguments, subject=gpu.uuid)
    return _with_refusals(record, log.codes(handle_address(handle)))


def read_failing(nvml: Nvml, index: int, pci: Mapping[str, PciModel], log: CallLog) -> GpuRecord | None:
    """A GPU that cannot be read as a whole, as far as it answers; None when it does not."""
    subject = f"GPU {index}"
    try:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index, subject=subject)
        gpu = _read_without_instances(nvml, handle, index, pci)
        return read_record(nvml, gpu, pci[gpu.pci], log) if gpu.pci in pci else None
    except NvmlError as error:
        if error.code in STALE:
            raise
        return None


def _read_without_instances(nvml: Nvml, handle: Any, index: int, functions: Collection[str]) -> Gpu:
    uuid = nvml.call("nvmlDeviceGetUUID", handle, subject=f"GPU {index}")
    gpu = read_facts(nvml, handle, index=index, uuid=uuid)
    mode = read_mode(nvml, handle, subject=uuid)
    states = read_link_states(nvml, handle, subject=uuid)
    monitored = read_monitored(nvml, handle, subject=uuid)
    return replace(
        gpu,
        mig=None
        if mode is None
        else Mig(
            enabled=mode[0], pending=mode[1], resetless=read_resetless(nvml, handle, gpu.architecture, subject=uuid)
        ),
        links=links_of(states, read_ends(nvml, handle, links_up(states), functions, subject=uuid)),
        persistence=read_persistence(nvml, handle, subject=uuid),
        condition=read_condition(nvml, handle, monitored=monitored, subject=uuid),
    )


def _read_model(nvml: Nvml, handle: Any, gpu: Gpu, pci: PciModel) -> Model:
    def ask(name: str, *arguments: Any, **options: Any) -> Any:
        return nvml.look(name, handle, *arguments, subject=gpu.uuid, **options)

    memory = ask("nvmlDeviceGetMemoryInfo", version=nvml.pynvml.nvmlMemory_v2)
    bar1 = ask("nvmlDeviceGetBAR1MemoryInfo")
    mig = read_mig(nvml, handle, gpu)
    fields = tuple(one for one in _FIELDS if mig is not None or one not in _PARTITIONING_FIELDS)
    told = dict(zip(fields, read_fields(nvml, handle, fields, subject=gpu.uuid), strict=True))
    spares = ask("nvmlDeviceGetRowRemapperHistogram")
    clocks = {name: ask("nvmlDeviceGetMaxClockInfo", kind) for kind, name in enumerate(_CLOCKS)}
    power = ask("nvmlDeviceGetPowerManagementDefaultLimit")
    return Model(
        name=gpu.name,
        brand=gpu.brand,
        architecture=int(gpu.architecture),
        compute=gpu.compute,
        memory=max(1, (gpu.memory or 0) // MIB),
        reserved=0 if memory is None else memory.reserved // MIB,
        bar1=0 if bar1 is None else bar1.bar1Total // MIB,
        memory_told=gpu.memory is not None,
        pci=replace(
            pci,
            generation=ask("nvmlDeviceGetMaxPcieLinkGeneration") or 0,
            width=ask("nvmlDeviceGetMaxPcieLinkWidth") or 0,
        ),
        mig=mig,
        nvlink=_read_nvlink(nvml, handle, gpu),
        clocks=ClockModel(**{name: value or 0 for name, value in clocks.items()}),
        power_limit=(power or 0) // 1000,
        ecc=ask("nvmlDeviceGetTotalEccErrors", 1, 0) is not None,
        row_remapping=gpu.condition.remap_pending is not None,
        remap_banks=0 if spares is None else sum(getattr(spares, part) for part in _HISTOGRAM),
        page_retirement=gpu.condition.retirement_pending is not None,
        repair_status=ask("nvmlDeviceGetRepairStatus") is not None,
        recovery_action=gpu.condition.recovery is not None,
        addressing=gpu.addressing if gpu.addressing in (0, 1, 2) else None,
        numa_node=ask("nvmlDeviceGetNumaNodeId") is not None,
        virtualization=gpu.virtualization,
        module=gpu.module is not None,
        serial=bool(gpu.serial),
        part_number=ask("nvmlDeviceGetBoardPartNumber") or "",
        vbios=ask("nvmlDeviceGetVbiosVersion") or "",
        gsp_firmware=_text(ask("nvmlDeviceGetGspFirmwareVersion")),
        events=ask("nvmlDeviceGetSupportedEventTypes") or 0,
        unsupported_fields=tuple(one for one in fields if told[one] is None),
    )


def _read_nvlink(nvml: Nvml, handle: Any, gpu: Gpu) -> NvLinkModel | None:
    if gpu.links is None:
        return None
    version = nvml.look("nvmlDeviceGetNvLinkVersion", handle, 0, subject=gpu.uuid)
    return NvLinkModel(links=min(gpu.links.total, MOST_LINKS), version=version or 0, switched=gpu.links.switched)


def _read_links(nvml: Nvml, handle: Any, gpu: Gpu) -> tuple[LinkPart, ...]:
    links: list[LinkPart] = []
    for number, state in enumerate(read_link_states(nvml, handle, subject=gpu.uuid)):
        kind = nvml.look("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number, subject=gpu.uuid)
        remote = nvml.look("nvmlDeviceGetNvLinkRemotePciInfo", handle, number, subject=gpu.uuid)
        links.append(
            LinkPart(
                state=min(state, 2),
                remote=255 if kind is None else kind,
                address="" if remote is None else parse_bus_id(_text(remote.busId)),
            )
        )
    return tuple(links)


def _read_fabric(nvml: Nvml, handle: Any, subject: str) -> FabricModel | None:
    info = read_fabric_info(nvml, handle, subject=subject)
    if info is None:
        return None
    return FabricModel(
        state=min(info.state, 3),
        status=info.status,
        cluster=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        health_mask=getattr(info, "healthMask", 0),
        summary=min(getattr(info, "healthSummary", 0), 3),
    )


def _read_condition(nvml: Nvml, handle: Any, gpu: Gpu) -> ConditionPart:
    def errors(kind: int, counter: int) -> int:
        return nvml.look("nvmlDeviceGetTotalEccErrors", handle, kind, counter, subject=gpu.uuid) or 0

    (reset,) = read_fields(nvml, handle, (_RESET_FIELD,), subject=gpu.uuid)
    rows = nvml.look("nvmlDeviceGetRemappedRows", handle, subject=gpu.uuid) or (0, 0, 0, 0)
    return ConditionPart(
        recovery=gpu.condition.recovery or 0,
        reset_required=bool(reset),
        ecc_corrected=errors(0, 1),
        ecc_uncorrected=errors(1, 1),
        ecc_corrected_volatile=errors(0, 0),
        ecc_uncorrected_volatile=errors(1, 0),
        remapped_corrected=rows[0],
        remapped_uncorrected=rows[1],
        remap_pending=bool(rows[2]),
        remap_failed=bool(rows[3]),
        retirement_pending=bool(gpu.condition.retirement_pending),
    )


def _with_refusals(record: GpuRecord, codes: Mapping[str, set[int]]) -> GpuRecord:
    """With the calls that were refused whenever they were made."""
    always = {symbol: next(iter(found)) for symbol, found in codes.items() if len(found) == 1}
    unsupported = {
        symbol
        for symbol, code in always.items()
        if code == Code.NOT_SUPPORTED and symbol in SCALAR and symbol not in _TOLD_BY_THE_MODEL
    }
    if any(link.state for link in record.links):
        ends = ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2")
        unsupported |= {symbol for symbol in ends if always.get(symbol) == Code.NOT_SUPPORTED}
    usual = {Code.SUCCESS, Code.NOT_SUPPORTED} | _ABSENT
    errors = {
        symbol: code_name(code)
        for symbol, code in sorted(always.items())
        if code not in usual or (code not in (Code.SUCCESS, Code.NOT_SUPPORTED) and symbol in SCALAR)
    }
    privileged = not any(errors.get(symbol) == Code.NO_PERMISSION.name for symbol in _ROOT & DETAILED)
    return replace(
        record,
        model=replace(record.model, unsupported=tuple(sorted(unsupported))),
        errors={symbol: name for symbol, name in errors.items() if privileged or symbol not in _ROOT},
        privileged=privileged,
    )


def _text(value: bytes | str | None) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
