"""Decides which variables make libtpu see the chips of a claim, and no others.

Source: the variables that Google's DRA driver sets, with the old names beside the new ones, since versions of libtpu
read either; for a part of a host, the recipes of JAX and Ray.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydra_tpu.geometry import Bounds, SubSlice, divide_bounds
from pydra_tpu.hardware import Host


def build_environment(host: Host, mesh: SubSlice) -> Mapping[str, str]:
    """For all containers that have this mesh: a sub-slice of the host, or the whole of it.

    A whole host of a larger slice is told of the slice. Everything else is a slice by itself.
    """
    generation, facts = host.chips[0].generation, host.facts
    is_whole = len(mesh.chips) == len(host.chips)
    topology = facts.topology if is_whole and facts.topology else mesh.bounds
    hosts = divide_bounds(topology, mesh.bounds) or Bounds(1, 1)
    wrap = ",".join(str(closed).lower() for closed in generation.wrap(topology))
    environment = {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": generation.accelerator_type(topology.size),
        "TPU_TOPOLOGY": generation.topology(topology),
        **_with_twins("TPU_TOPOLOGY_ALT", "ALT", value="false"),
        **_with_twins("TPU_TOPOLOGY_WRAP", "WRAP", value=wrap),
        **_with_twins(
            "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS", value=str(mesh.bounds)
        ),
        **_with_twins("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "HOST_BOUNDS", value=str(hosts)),
    }
    if hosts.size == 1:
        environment |= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    elif facts.worker_id is not None:
        environment["TPU_WORKER_ID"] = str(facts.worker_id)
        if len(facts.worker_hostnames) == hosts.size:
            environment["TPU_WORKER_HOSTNAMES"] = ",".join(facts.worker_hostnames)
    if not is_whole:
        # Containers have the nodes of their chips only, which libtpu counts from 0.
        environment["TPU_VISIBLE_CHIPS"] = ",".join(map(str, range(len(mesh.chips))))
    return environment


def _with_twins(*names: str, value: str) -> Mapping[str, str]:
    return dict.fromkeys(names, value)
