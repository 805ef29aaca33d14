"""Conformance checks of container edits: devices that one claim may have, and mounts and paths that are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations

from pydra.cdi.host_path_checks import resolve
from pydra.claim import PreparedDevice
from pydra.devices import Device, Inventory
from pydra.errors import ClaimError, HostPathMissing
from pydra.quantity import parse_quantity


def find_pair(inventory: Inventory, usable: Sequence[Device]) -> tuple[Device, Device] | None:
    """Return two usable devices that a scheduler could give to one claim; None if there are none."""
    available = {
        (one.name, name): parse_quantity(amount)
        for one in inventory.counter_sets
        for name, amount in one.counters.items()
    }
    pairs = combinations(usable, 2)
    return next((pair for pair in pairs if all(need <= available[key] for key, need in _add_up(pair).items())), None)


def _add_up(devices: Sequence[Device]) -> Mapping[tuple[str, str], Fraction]:
    """What the devices take of each counter, by its set and name."""
    needs: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for device in devices:
        for one in device.consumes_counters:
            for name, amount in one.counters.items():
                needs[one.counter_set, name] += parse_quantity(amount)
    return needs


async def advise(prepared: Sequence[PreparedDevice], host_root: str) -> list[str]:
    """Return what runtimes or the agent refuse about mounts and paths; not wrong, since this may not be the node.

    CDI allows a mount of a host's path without the option that makes it one, and no runtime mounts then.
    """
    notes = [
        f"mount {mount.container_path}: its options {', '.join(mount.options)} have neither bind nor rbind; "
        "container runtimes refuse such a mount"
        for one in prepared
        for mount in one.edits.mounts
        if mount.type in ("", "none") and not {"bind", "rbind"}.intersection(mount.options)
    ]
    try:
        await resolve(prepared, root=host_root)
    except HostPathMissing as error:
        notes += [f"{missing}; the agent refuses the claim while it is missing" for missing in error.missing]
    except ClaimError as error:
        notes.append(str(error))
    return notes
