"""`pydra-nvidia show`: what the backend sees on this node, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pydra import AllocatedDevice, HealthStatus, PydraError
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.cdi.hooks import describe_hooks, find_hook
from pydra_nvidia.claim_targets import Partition, Target, WholeGpu
from pydra_nvidia.cli.arguments import add_node_arguments, machine_of
from pydra_nvidia.device_names import gpu_name, mig_name
from pydra_nvidia.hardware_reader import read_once, read_without_driver
from pydra_nvidia.hardware_types import Mig, NvLinks, Reading
from pydra_nvidia.health.diagnosis import WELL, Diagnosis, diagnose
from pydra_nvidia.health.incident_store import FILE, Incident, IncidentStore
from pydra_nvidia.health.xid_catalogue import explain
from pydra_nvidia.host.device_nodes import UVM_NOT_LOADED
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot, find_driver_root
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.machine_access import MachineAccess
from pydra_nvidia.mig.plan_partitions import can_change_mode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_pci import Assessment, PciFunction, is_vfio


def add_command(commands: Any) -> None:
    """The subcommand."""
    parser = commands.add_parser(
        "show",
        help="what the backend sees on this node, and what it lacks",
        description="Show what the backend sees on this node: GPUs, partitions, links, health, driver, and how "
        "containers are set up. The exit code is 1 when claims could not be served.",
    )
    add_node_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the reading of the hardware, as JSON")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises SettingsError, ScenarioError; what is wrong with the hardware is shown."""
    look = asyncio.run(look_at(machine_of(parsed, environ)))
    if parsed.json:
        print(msgspec.json.format(msgspec.json.encode(look.reading), indent=2).decode())
        for problem in look.problems:
            print(f"pydra-nvidia: {problem}", file=sys.stderr)
    else:
        print("\n".join(describe(look)))
    return 1 if look.problems else 0


async def look_at(machine: MachineAccess) -> Look:
    """All that is to be said."""
    problems: list[str] = []
    try:
        reading = await read_once(NvmlSession(machine.load, machine.gate), machine.tree, machine.settings)
    except PydraError as error:
        problems.append(str(error))
        reading = await asyncio.to_thread(read_without_driver, machine.tree)
    root = await asyncio.to_thread(_find_root, machine, problems, needed=bool(reading.functions))
    try:
        containers = await asyncio.to_thread(_describe_containers, machine, reading)
    except PydraError as error:
        containers = ""
        problems.append(str(error))
    if reading.lacks_uvm:
        problems.append(UVM_NOT_LOADED)
    if reading.lost and not reading.gpus:
        problems.append(NONE_ANSWERS)
    memory = IncidentStore(os.path.join(machine.settings.state, FILE), problems.append)
    return Look(
        reading=reading,
        root=root,
        module=await asyncio.to_thread(read_module_version, machine.tree),
        containers=containers,
        diagnosis=diagnose(reading, memory.incidents, settings=machine.settings, now=time.time()),
        incidents=memory.incidents,
        settings=machine.settings,
        problems=tuple(problems),
    )


def _describe_containers(machine: MachineAccess, reading: Reading) -> str:
    """How they are set up. Raises what preparing a GPU or a partition that is there would raise."""
    edits = DeviceEdits(machine.tree, machine.settings)
    edits.build(list(_list_targets(reading)), reading)
    return describe_hooks(find_hook(machine.tree, machine.settings))


def _list_targets(reading: Reading) -> Iterator[Target]:
    nobody = AllocatedDevice(request="", pool="", device="")
    for gpu in reading.gpus:
        yield WholeGpu(allocated=nobody, gpu=gpu)
        for one in gpu.mig.instances if gpu.mig is not None else ():
            if len(one.compute) == 1:
                yield Partition(
                    allocated=nobody, gpu=gpu, profile_id=one.profile, placement=one.placement, instance=one
                )


def _find_root(machine: MachineAccess, problems: list[str], *, needed: bool) -> DriverRoot | None:
    try:
        return find_driver_root(machine.tree, machine.settings)
    except DriverMissing as error:
        if needed and str(error) not in problems:
            problems.append(str(error))
        return None


GIB = 1 << 30
NONE_ANSWERS = "No GPU answers."
_WIDTH = 120
_HEAD = ("GPU", "PRODUCT", "UUID", "PCI", "NUMA", "MEMORY", "MIG", "NVLINK", "CONDITION")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. `module` is the version of the kernel module; `problems` keep claims from being served."""

    reading: Reading
    root: DriverRoot | None
    module: str
    containers: str
    diagnosis: Diagnosis
    incidents: tuple[Incident, ...]
    settings: Settings
    problems: tuple[str, ...]


def describe(look: Look) -> Iterator[str]:
    """The whole report."""
    yield from _driver(look)
    yield ""
    yield from _gpus(look)
    yield from _partitions(look)
    yield from _elsewhere(look)
    yield from _node(look)
    if look.incidents:
        yield ""
        yield "Errors remembered (forgotten with pydra-nvidia forget-errors):"
        yield from (f"  {one.gpu}: {one.count} x {explain(one.xid)}" for one in look.incidents)
    if look.problems:
        yield ""
        yield "Problems:"
        for problem in look.problems:
            yield from _paragraph("- ", problem)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns that are as wide as they must be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _paragraph(label: str, text: str) -> Iterator[str]:
    """Wrapped, all lines below the first one's text."""
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _driver(look: Look) -> Iterator[str]:
    driver = look.reading.driver
    if driver is not None:
        cuda = f", CUDA {driver.cuda // 1000}.{driver.cuda % 1000 // 10}" if driver.cuda else ""
        yield f"Driver:      {driver.version}{cuda}"
    else:
        yield f"Driver:      {f'{look.module}, not used' if look.module else 'not loaded'}"
    if look.root is not None:
        version = f", version {look.root.version}" if look.root.version else ""
        yield f"Installed:   in {look.root.host_path} of the host{version}; NVML is {look.root.nvml_library}"
    else:
        yield "Installed:   no"
    yield from _paragraph("Containers:  ", look.containers or "see the problems below")


def _gpus(look: Look) -> Iterator[str]:
    reading = look.reading
    rows = [_HEAD]
    for gpu in sorted(reading.gpus, key=lambda one: one.minor):
        function = reading.functions.get(gpu.pci)
        rows.append(
            (
                gpu_name(gpu.minor),
                gpu.name,
                gpu.uuid,
                gpu.pci,
                "-" if function is None or function.numa is None else str(function.numa),
                "-" if gpu.memory is None else f"{gpu.memory / GIB:.1f} GiB",
                _mig(gpu.mig),
                _links(gpu.links),
                _condition(look.diagnosis.gpus.get(gpu.uuid, WELL)),
            )
        )
    if reading.gpus:
        yield from table(rows)
    else:
        yield NONE_ANSWERS if reading.functions else "This node has no NVIDIA GPU."
    for lost in reading.lost:
        name = f"GPU {lost.index} (NVML's index)" if lost.index >= 0 else "a GPU"
        where = f" at {lost.pci}" if lost.pci else ""
        yield from _paragraph("- ", f"{name}{where} does not answer: {lost.message}")
    for gpu in reading.gpus:
        if gpu.mig is not None and gpu.mig.unseen:
            yield from _paragraph("- ", f"not all partitions of {gpu_name(gpu.minor)} can be read: {gpu.mig.unseen}")


def _partitions(look: Look) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for gpu in sorted(look.reading.gpus, key=lambda one: one.minor):
        if gpu.mig is None:
            continue
        names = {profile.id: profile.name for profile in gpu.mig.profiles}
        for one in gpu.mig.instances:
            profile = names.get(one.profile, f"profile {one.profile}")
            rows.append(
                (
                    mig_name(gpu.minor, profile, one.profile, one.placement.start),
                    profile,
                    f"slices {one.placement.start}-{one.placement.start + one.placement.size - 1}",
                    ", ".join(ci.uuid for ci in one.compute) or "no compute instance",
                    _condition(look.diagnosis.partitions.get((gpu.uuid, one.placement), WELL)),
                )
            )
    if rows:
        yield ""
        yield from table([("PARTITION", "PROFILE", "MEMORY", "MIG DEVICE", "CONDITION"), *rows])


def _elsewhere(look: Look) -> Iterator[str]:
    known = {gpu.pci for gpu in look.reading.gpus}
    others = [one for one in look.reading.functions.values() if one.address not in known and one.driver != DRIVER]
    if others:
        rows = [("FUNCTION", "DEVICE", "DRIVER", "IOMMU GROUP", "WHAT IT IS"), *map(_function, others)]
        yield ""
        yield from table(rows)


def _function(one: PciFunction) -> tuple[str, ...]:
    what = "virtual function" if one.is_virtual else "passed through" if is_vfio(one.driver) else "not used by NVIDIA"
    return one.address, one.name or one.device, one.driver or "none", one.group or "-", what


def _node(look: Look) -> Iterator[str]:
    vfio, settings = look.reading.vfio, look.settings
    yield ""
    iommu = f"IOMMU {'on' if vfio.iommu else 'off'}, iommufd {'there' if vfio.iommufd else 'not there'}"
    yield f"Passthrough: {iommu}; {'offered' if settings.vfio and vfio.iommu else 'not offered'}"
    if settings.vfio and not vfio.iommu:
        yield from _paragraph(
            " " * 13, "PYDRA_NVIDIA_VFIO needs an IOMMU: turn it on in the firmware and for the kernel"
        )
    yield f"MIG:         {'made for claims (dynamic)' if settings.dynamic_mig else 'as it is (static)'}"
    changeable = [gpu.mig for gpu in look.reading.gpus if gpu.mig is not None and can_change_mode(gpu)]
    if not settings.dynamic_mig and not all(mig.enabled for mig in changeable):
        yield "             GPUs here could be partitioned for claims: PYDRA_NVIDIA_DYNAMIC_MIG=true"


def _mig(mig: Mig | None) -> str:
    if mig is None:
        return "-"
    mode = "on" if mig.enabled else "off"
    pending = f", {'on' if mig.pending else 'off'} after a reset" if mig.pending != mig.enabled else ""
    count = f", {len(mig.instances)} there" if mig.enabled else ""
    return f"{mode}{count}{pending}"


def _links(links: NvLinks | None) -> str:
    if links is None:
        return "-"
    ends = " to switches" if links.switched else f" to GPUs: {len(links.peers)}" if links.peers else ""
    return f"{links.up}/{links.total}{ends}"


def _condition(assessment: Assessment) -> str:
    health = assessment.health
    said = [health.message] if health.status is not HealthStatus.HEALTHY else []
    said += [f"{taint.key}{f'={taint.value}' if taint.value else ''}" for taint in assessment.taints]
    return "; ".join(said) or "well"
