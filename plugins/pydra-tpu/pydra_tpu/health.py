"""Decides the health of a device: that of its worst chip."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra import Health, HealthStatus, TaintEffect
from pydra_tpu.hardware_types import VFIO_CONTROL, Chip, Host, Process

BROKEN_LINK = 10
"""The state, of 0 to 10, of a link that cannot be used. Source: the description of libtpu's ici_link_health."""
BAD_LINK = 6
"""A link's state from which on its trouble is persistent."""


def diagnose(chips: Sequence[Chip]) -> Health:
    """The health of a device with these chips."""
    return next((health for find in _SIGNS for chip in chips for health in find(chip, len(chips))), Health())


def find_unclaimed_users(
    chips: Sequence[Chip], users: Mapping[int, Collection[Process]], claimed: Collection[int], before: Host
) -> tuple[Chip, ...]:
    """The chips with those of their users, by index, that no claim explains.

    A chip that a claim holds is open in that claim's containers. But a process that had the chip open before it was
    claimed is still none of them.
    """
    known = {chip.index: chip.unclaimed_users for chip in before.chips}
    return tuple(
        replace(
            chip,
            unclaimed_users=tuple(
                one
                for one in users.get(chip.index, ())
                if chip.index not in claimed or one in known.get(chip.index, ())
            ),
        )
        for chip in chips
    )


def _find_gone(chip: Chip, _size: int) -> Iterator[Health]:
    for function in chip.functions:
        name = f"chip {chip.index} ({function.address})"
        if not function.present:
            text = f"chip {chip.index} is gone: there is no PCI function {function.address} any more"
            yield _unhealthy("ChipGone", text)
        elif not function.node:
            text = f"{name} is bound to {function.driver or 'no driver'}: it has no device node"
            yield _unhealthy("NoDriver", text)
        elif not function.node_exists:
            yield _unhealthy("NodeGone", f"{function.node} of {name} is not there, or is a directory")
        elif not function.control_exists:
            yield _unhealthy("NodeGone", f"{VFIO_CONTROL}, which {name} needs, is not there, or is a directory")
    if chip.missing_functions:
        count = len(chip.functions)
        text = f"chip {chip.index} ({chip.address}) has {count} PCI functions, but other chips of this machine have"
        yield _unhealthy("ChipGone", f"{text} {count + chip.missing_functions}")


def _find_unclaimed(chip: Chip, _size: int) -> Iterator[Health]:
    for process in chip.unclaimed_users[:1]:
        name = f"process {process.pid} ({process.command}) of the node"
        text = f"chip {chip.index} is open in {name}, and no claim explains it; it can be given out when that ends"
        yield replace(_unhealthy("InUse", text), effect=TaintEffect.NO_SCHEDULE)


def _find_broken_link(chip: Chip, size: int) -> Iterator[Health]:
    for text in _describe_links(chip, size, range(BROKEN_LINK, BROKEN_LINK + 1)):
        yield _unhealthy("LinkDown", f"{text}: it cannot be used")


def _find_bad_link(chip: Chip, size: int) -> Iterator[Health]:
    for text in _describe_links(chip, size, range(BAD_LINK, BROKEN_LINK)):
        yield replace(_unhealthy("LinkDegraded", f"{text}: its errors persist"), effect=TaintEffect.NO_SCHEDULE)


def _describe_links(chip: Chip, size: int, states: range) -> Iterator[str]:
    """The links in one of these states; none for a device of one chip, which uses no link."""
    for link, state in sorted(chip.links.items()) if size > 1 else ():
        if state in states:
            yield f"ICI link {link} of chip {chip.index} is in state {state} of 10"


def _find_throttled(chip: Chip, _size: int) -> Iterator[Health]:
    """A slow chip still works: what runs on it is left alone."""
    if chip.throttle:
        text = f"chip {chip.index} is slowed down by {chip.throttle * 10} %"
        yield replace(_unhealthy("Throttled", text), effect=TaintEffect.NO_SCHEDULE)


_SIGNS = (_find_gone, _find_unclaimed, _find_broken_link, _find_bad_link, _find_throttled)
"""The worst first."""


def _unhealthy(reason: str, message: str) -> Health:
    return Health(status=HealthStatus.UNHEALTHY, reason=reason, message=message)
