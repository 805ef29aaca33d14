"""What claims and DeviceClasses may configure.

    apiVersion: cpu.pydra.dev/v1alpha1
    kind: CpuConfig
    cores: whole
    spread: cache

or, as Kubernetes' own driver has it,

    apiVersion: v1alpha1
    cpuConfig: {cpuset: 2-5}

Decoded strictly, in the backend and in the webhook alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from pydra import AllocatedDevice, InvalidConfig
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.settings import Settings

GROUP_VERSION = "cpu.pydra.dev/v1alpha1"

CpuList = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*$", max_length=1024)
]


class CpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which CPUs of its device a claim gets."""

    cores: Literal["any", "whole", "single"] = "any"
    """`whole`: all CPUs of a core or none. `single`: the same, and containers get one CPU of each core; the others stay
    idle. The claim asks for the CPUs of whole cores in both cases, so that the scheduler's account is right.
    """
    spread: Literal["none", "cache", "numaNode"] = "none"
    """`cache` or `numaNode`: as many CPUs from each level 3 cache, or NUMA node, of the device."""
    cpuset: CpuList | None = None
    """Exactly these CPUs, as many as the claim asks for."""
    memory: Literal["near", "any"] = "near"
    """`near`: memory comes from the NUMA nodes of the CPUs only. `any`: from all."""

    def __post_init__(self) -> None:
        """Refuse fields that exclude each other."""
        parse_cpu_list(self.cpuset or "")
        if self.cpuset is not None and (self.cores != "any" or self.spread != "none"):
            raise ValueError("cpuset excludes cores and spread: it says which CPUs")


class ExactCpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Kubernetes' own driver lets a scheduler say."""

    cpuset: CpuList
    """Exactly these CPUs."""

    def __post_init__(self) -> None:
        """Refuse a list that has anything but CPUs and ranges of CPUs."""
        parse_cpu_list(self.cpuset)


class DraDriverConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of Kubernetes' own driver, of claims that a scheduler has given exact CPUs."""

    cpu_config: ExactCpus = msgspec.field(name="cpuConfig")
    """Which CPUs."""


CONFIG_TYPES = {f"{GROUP_VERSION}/CpuConfig": CpuConfig, "v1alpha1/": DraDriverConfig}


def find_config(device: AllocatedDevice) -> CpuConfig:
    """The configuration of a claim's device. Raises InvalidConfig if it has one of both types."""
    own, theirs = device.config(CpuConfig), device.config(DraDriverConfig)
    if own is not None and theirs is not None:
        raise InvalidConfig([f"request {device.request}: found CpuConfig and cpuConfig; remove one of them"])
    return CpuConfig(cpuset=theirs.cpu_config.cpuset) if theirs is not None else own or CpuConfig()


def check_config(config: CpuConfig | DraDriverConfig, settings: Settings) -> Iterator[str]:
    """Yield what the settings do not allow: reserved CPUs."""
    path, cpuset = (
        ("cpuset", config.cpuset) if isinstance(config, CpuConfig) else ("cpuConfig.cpuset", config.cpu_config.cpuset)
    )
    reserved = parse_cpu_list(cpuset or "") & settings.reserved
    if reserved:
        yield f'{path}: found "{cpuset}", of which {format_cpu_list(reserved)} is reserved for the system'
