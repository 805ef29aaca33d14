"""The GPUs of a scenario, one by one: what the scenario leaves open is made up, always in the same way. Pure."""

from __future__ import annotations

import uuid
from typing import TypeVar

import msgspec

from pydra_nvidia.simulation.gpu_model import FabricModel, Model
from pydra_nvidia.simulation.scenario import GroupPart, Scenario

T = TypeVar("T")

_NAMESPACE = uuid.UUID("6f1c2a5e-7b0d-4c8e-9a3f-2d4b6e8f0a1c")


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU. `state` 0 inactive, 1 active; `remote` 0 GPU, 2 switch, 255 unknown."""

    state: int = 1
    remote: int = 255
    address: str = ""


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it was built and plugged. `address` as sysfs spells it; `bridges` are above it, from the root down.

    `group` is its part of the scenario.
    """

    group: GroupPart
    model: Model
    uuid: str
    serial: str
    minor: int
    address: str
    root: str
    bridges: tuple[str, ...]
    numa: int
    module: int
    iommu_group: int
    links: tuple[NvLink, ...] = ()
    fabric: FabricModel | None


def find_boards(scenario: Scenario) -> tuple[Board, ...]:
    """All GPUs, in the order of their PCI addresses; raises ValueError for what cannot be."""
    boards: list[Board] = []
    for position, group in enumerate(scenario.gpus):
        for member in range(group.count):
            boards.append(_board(scenario, group, member, len(boards)))
        _check_presets(f"gpus[{position}]", group, scenario.models[group.model])
    for name in ("uuid", "minor", "address"):
        values = [getattr(board, name) for board in boards]
        if twice := sorted({str(value) for value in values if values.count(value) > 1}):
            raise ValueError(f"two GPUs have the same {name}: {', '.join(twice)}")
    return _linked(tuple(sorted(boards, key=lambda board: board.address)))


def spell_bus_id(address: str) -> str:
    """A PCI address as NVML spells it: `00000000:0F:00.0`."""
    domain, _, rest = address.partition(":")
    return f"{domain:0>8}:{rest}".upper()


def derive_uuid(*parts: object) -> str:
    """A UUID that is always the same for the same parts."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(str(part) for part in parts)))


def derive_mig_uuid(gpu: str, instance: int, compute: int) -> str:
    """The UUID of a MIG device: who takes another's place on the GPU, with the same ids, has the same one.

    Source: UUIDs of MIG devices are of version 5, which is made of names; of which names, nobody has published.
    """
    return f"MIG-{derive_uuid(gpu, instance, compute)}"


def _board(scenario: Scenario, group: GroupPart, member: int, position: int) -> Board:
    model = scenario.models[group.model]
    domain, bus = position // 16, 0x0F * (position % 16 + 1)
    bridge = (f"{domain:04x}:{bus - 1:02x}:01.0",)
    return Board(
        group=group,
        model=model,
        uuid=f"GPU-{derive_uuid(scenario.seed, position)}",
        serial=f"16{int(derive_uuid(scenario.seed, 's', position)[:8], 16):011d}",
        minor=_given(group.minors, member, position),
        address=_given(group.addresses, member, f"{domain:04x}:{bus:02x}:00.0"),
        root=_given(group.roots, member, _root(group, member, domain, bus - 1)),
        bridges=_given(group.bridges, member, () if group.addresses else bridge),
        numa=_given(group.numa, member, member * group.numa_nodes // group.count),
        module=_given(group.modules, member, position + 1),
        iommu_group=position + 16,
        fabric=group.fabric or model.fabric,
    )


def _given(values: tuple[T, ...], member: int, otherwise: T) -> T:
    return values[member] if values else otherwise


def _root(group: GroupPart, member: int, domain: int, bus: int) -> str:
    if not group.addresses:
        return f"pci{domain:04x}:{bus:02x}"
    found, number, _ = group.addresses[member].split(":")
    return f"pci{found}:{int(number, 16) & 0xF0:02x}"


def _check_presets(where: str, group: GroupPart, model: Model) -> None:
    if not group.mig:
        return
    if model.mig is None:
        raise ValueError(f"{where}.mig: {model.name} cannot be partitioned")
    taken: set[int] = set()
    for position, preset in enumerate(group.instances):
        at = f"{where}.instances[{position}]"
        profile = model.mig.named(preset.profile)
        if profile is None:
            known = ", ".join(one.name for one in model.mig.profiles)
            raise ValueError(f"{at}.profile: {model.name} has no profile {preset.profile}; it has {known}")
        if preset.start not in profile.starts:
            raise ValueError(f"{at}.start: {preset.profile} can start at {profile.starts}, not at {preset.start}")
        place = set(range(preset.start, preset.start + profile.size))
        if place & taken:
            raise ValueError(f"{at}: memory slices {sorted(place & taken)} are taken by another instance")
        taken |= place
        if (wanted := sum(preset.compute or ())) > profile.slices:
            raise ValueError(f"{at}.compute: {wanted} slices are more than the {profile.slices} there are")
        offered = sorted({one.slices for one in profile.compute_profiles()})
        if wrong := sorted({*(preset.compute or ())} - {*offered}):
            raise ValueError(
                f"{at}.compute: {profile.name} has no compute instance of {wrong[0]} slices, but of {offered}"
            )


def _linked(boards: tuple[Board, ...]) -> tuple[Board, ...]:
    """Links made up: all to switches, or evenly to the other GPUs of the same model."""
    linked: list[Board] = []
    for board in boards:
        nvlink = board.model.nvlink
        if nvlink is None:
            linked.append(board)
            continue
        peers = [one.address for one in boards if one.model == board.model and one is not board]
        links = tuple(
            NvLink(remote=2, address=f"0000:{0xF0 + link % 6:02x}:00.0")
            if nvlink.switched
            else NvLink(remote=0, address=peers[link % len(peers)])
            if peers
            else NvLink(state=0)
            for link in range(nvlink.links)
        )
        linked.append(msgspec.structs.replace(board, links=links))
    return tuple(linked)
