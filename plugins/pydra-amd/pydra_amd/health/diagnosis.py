"""How each GPU is, from what is read of it. Pure.

Of several signals the worst is a GPU's health, and each other is a taint beside it. All devices of a GPU share both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydra_amd.devices import DRIVER
from pydra_amd.hardware_types import Condition, Gpu, Reading
from pydra_amd.host.amdgpu import list_nodes
from pydra_amd.host.ras import XGMI
from pydra_amd.settings import Settings, Signal
from pydra_pci import Assessment, Finding, Reaction, assess

DEFAULT_REACTIONS: Mapping[Signal, Reaction] = {
    Signal.GPU_LOST: Reaction.UNHEALTHY,
    Signal.NODE_GONE: Reaction.UNHEALTHY,
    Signal.RESET: Reaction.UNHEALTHY,
    Signal.ECC: Reaction.UNHEALTHY,
    Signal.XGMI_ERROR: Reaction.UNHEALTHY,
    Signal.XGMI_LINK: Reaction.UNHEALTHY,
    Signal.BAD_PAGES: Reaction.UNHEALTHY,
    Signal.THROTTLING: Reaction.NONE,
}
"""Worst first: the first that makes a device unhealthy is its health."""


def diagnose(reading: Reading, conditions: Mapping[str, Condition], settings: Settings) -> Mapping[str, Assessment]:
    """The assessments of GPUs, by address; `conditions` may lack GPUs of which nothing is known."""
    found: dict[str, Assessment] = {}
    for gpu in reading.gpus:
        condition = conditions.get(gpu.address, Condition())
        findings = [*_find_missing(gpu, reading), *_find_faults(gpu, condition, settings)]
        found[gpu.address] = assess(findings, settings.signals, DEFAULT_REACTIONS, DRIVER)
    for lost in reading.lost:
        message = f"GPU {lost.gpu.address} is lost: {lost.why}; the kernel's log says more"
        findings = [Finding(Signal.GPU_LOST, message)]
        found[lost.gpu.address] = assess(findings, settings.signals, DEFAULT_REACTIONS, DRIVER)
    return found


def _find_missing(gpu: Gpu, reading: Reading) -> Iterator[Finding]:
    missing = [node for one in gpu.partitions for node in list_nodes(one) if node in reading.missing]
    if missing:
        yield Finding(Signal.NODE_GONE, f"{missing[0]} of GPU {gpu.address} is not there")


def _find_faults(gpu: Gpu, condition: Condition, settings: Settings) -> Iterator[Finding]:
    if condition.is_resetting:
        yield Finding(Signal.RESET, f"GPU {gpu.address} is being reset")
    blocks = {block: count for block, count in condition.uncorrectable.items() if count}
    links = blocks.pop(XGMI, 0)
    if blocks:
        counts = ", ".join(f"{block} {count}" for block, count in sorted(blocks.items()))
        message = f"GPU {gpu.address} counts errors that could not be corrected: {counts}; reset it, or reboot the node"
        yield Finding(Signal.ECC, message, ".".join(sorted(blocks))[:63].rstrip("._-"))
    if links:
        message = f"GPU {gpu.address} counts errors of its xGMI links that could not be corrected: {links}"
        yield Finding(Signal.XGMI_ERROR, message)
    if condition.links_down:
        message = f"{condition.links_down} of the {condition.links} xGMI links of GPU {gpu.address} are down"
        yield Finding(Signal.XGMI_LINK, f"{message}; the kernel's log says more")
    if condition.is_throttled:
        yield Finding(Signal.THROTTLING, f"the clocks of GPU {gpu.address} are held down for heat")
    allowed = settings.bad_page_threshold or condition.bad_page_limit
    if gpu.memory and allowed and condition.bad_pages > allowed:
        message = f"{condition.bad_pages} pages of the memory of GPU {gpu.address} are out of use, {allowed} may be"
        yield Finding(Signal.BAD_PAGES, f"{message}; replace it")
