"""Which CDI version a spec needs. Pure.

A runtime refuses versions that it does not know, so a spec declares the lowest that has everything
it uses. Source: CDI specification 1.1.0, released versions and what each added.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydra.cdi.document import Spec
from pydra.cdi.edits import ContainerEdits

KNOWN_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
EARLIEST = "0.3.0"


def minimum_version(spec: Spec) -> str:
    """The lowest version that allows every feature of the spec."""
    needs = {EARLIEST}
    if any(device.name[:1].isdigit() for device in spec.devices):
        needs.add("0.5.0")
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        needs.add("0.6.0")
    for edits in (spec.edits, *(device.edits for device in spec.devices)):
        needs.update(_edit_needs(edits))
    return max(needs, key=KNOWN_VERSIONS.index)


def _edit_needs(edits: ContainerEdits) -> Iterable[str]:
    rdt = edits.intel_rdt
    if any(mount.type for mount in edits.mounts):
        yield "0.4.0"
    if any(node.host_path for node in edits.device_nodes):
        yield "0.5.0"
    if rdt is not None or edits.additional_gids:
        yield "0.7.0"
    if edits.net_devices or (rdt is not None and (rdt.schemata or rdt.enable_monitoring)):
        yield "1.1.0"
