"""The container runtime: a container's OCI configuration, and its CDI devices from the node's directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydra_dev.cdi_specs import read_registry
from pydra_dev.oci import OciSpec, inject_devices, stat_host_node

JsonObject: TypeAlias = Mapping[str, Any]
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_oci(pod: JsonObject, container: JsonObject) -> OciSpec:
    """The configuration of a container without its devices."""
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    given = (f"{one['name']}={one.get('value', '')}" for one in container.get("env") or ())
    return OciSpec(
        args=(*(container.get("command") or ()), *(container.get("args") or ())),
        env=(PATH, f"HOSTNAME={pod['metadata']['name']}", *given),
        uid=security.get("runAsUser", 0),
        gid=security.get("runAsGroup", 0),
        additional_gids=tuple(security.get("supplementalGroups") or ()),
    )


def create_container(
    pod: JsonObject, container: JsonObject, cdi_ids: Sequence[str], directories: Sequence[str]
) -> tuple[OciSpec, OciSpec]:
    """The configuration before and after its CDI devices; raises InjectionError when the runtime would refuse."""
    before = build_oci(pod, container)
    return before, inject_devices(before, cdi_ids, read_registry(directories), stat_host_node)
