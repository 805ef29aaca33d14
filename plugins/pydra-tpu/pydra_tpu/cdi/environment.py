"""Decides which variables make libtpu see the chips of a claim, and no others.

Source: the variables that Google's DRA driver sets, with the old names beside the new ones, since versions of libtpu
read either; for a part of a host, the recipes of JAX and Ray.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydra import Quantity, TerminalError, parse_quantity
from pydra_tpu.cdi.mesh_processes import MeshProcess, NotProcesses
from pydra_tpu.claim_config import LoggingConfig, PremappedBuffer, TpuConfig, VisibleChips
from pydra_tpu.generations import TpuSlice
from pydra_tpu.geometry import SubSlice
from pydra_tpu.hardware_types import Host

_CHIP_BOUNDS = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS")
_PROCESS_BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "HOST_BOUNDS")


class NoIciResiliency(TerminalError):
    """A claim asks for resilience of the links between chips, which its slice does not have."""

    reason = "NoIciResiliency"


def build_environment(
    host: Host, mesh: SubSlice, config: TpuConfig, process: MeshProcess | None = None
) -> Mapping[str, str]:
    """For all containers that have this mesh, a sub-slice of the host or the whole of it; or for one process on it.

    A whole host of a larger slice gets the variables of the slice, and a part of a host is a slice by itself. A whole
    host whose topology is not known may be either: what follows from the topology is left out then, for the pod to set.

    Raises:
        NoIciResiliency: the config asks for resilience, and this slice has none, or may have none.
        NotProcesses: the mesh is, or may be, one host of a larger slice, whose other processes are not known.
    """
    is_whole = len(mesh.chips) == len(host.chips)
    whole = host.slice if is_whole else host.chips[0].generation.form_slice(mesh.bounds, mesh.bounds)
    environment = {
        "TPU_SKIP_MDS_QUERY": "true",
        **dict.fromkeys(_CHIP_BOUNDS, str(mesh.bounds)),
        **_build_slice_environment(host, whole, is_whole=is_whole),
    }
    resiliency = _decide_resiliency(host, whole, config, is_whole=is_whole)
    if resiliency is not None:
        environment["ENABLE_ICI_RESILIENCY"] = str(resiliency).lower()
    if process is not None:
        if not whole or whole.hosts.size > 1:
            raise NotProcesses("processes: these chips are, or may be, one host of a larger slice; leave processes out")
        environment |= _build_process_environment(process)
    seen = mesh if process is None else process.part
    if len(seen.chips) < len(host.chips) and config.visible_chips is not VisibleChips.UNSET:
        # Containers have the nodes of their chips only, which libtpu 0.0.52 counts from 0.
        environment["TPU_VISIBLE_CHIPS"] = ",".join(map(str, range(len(seen.chips))))
    return {**environment, **_build_config_environment(config)}


def _build_slice_environment(host: Host, whole: TpuSlice | None, *, is_whole: bool) -> Mapping[str, str]:
    """What the slice is, as far as that is known, and which of its hosts this is."""
    generation, facts = host.chips[0].generation, host.facts
    environment: dict[str, str] = {}
    if whole:
        environment = {
            "TPU_TOPOLOGY": generation.topology(whole.topology),
            **dict.fromkeys(("TPU_TOPOLOGY_ALT", "ALT"), "false"),
            **dict.fromkeys(("TPU_TOPOLOGY_WRAP", "WRAP"), whole.wrap_text),
            **dict.fromkeys(_PROCESS_BOUNDS, str(whole.hosts)),
        }
        if is_whole or generation.names_parts:
            environment["TPU_ACCELERATOR_TYPE"] = whole.accelerator_type
        if whole.hosts.size == 1:
            return {**environment, "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    if facts.worker_id is not None:
        environment["TPU_WORKER_ID"] = str(facts.worker_id)
        if whole and len(facts.worker_hostnames) == whole.hosts.size:
            environment["TPU_WORKER_HOSTNAMES"] = ",".join(facts.worker_hostnames)
    return environment


def _decide_resiliency(host: Host, whole: TpuSlice | None, config: TpuConfig, *, is_whole: bool) -> bool | None:
    """Whether links between chips are resilient; None leaves it to libtpu."""
    generation = host.chips[0].generation
    has_resiliency = whole is not None and generation.has_ici_resiliency(whole.topology)
    if config.ici_resiliency and not has_resiliency:
        shape = generation.topology(whole.topology) if whole else "unknown topology"
        raise NoIciResiliency(
            f"iciResiliency: a {generation.product} slice of {shape} has none; leave it "
            "out, or ask for whole hosts of a v4 or v5p slice with at least 4 chips in each dimension"
        )
    if config.ici_resiliency is not None:
        return config.ici_resiliency
    return host.facts.ici_resiliency if is_whole and has_resiliency else None


def _build_process_environment(process: MeshProcess) -> Mapping[str, str]:
    return {
        **dict.fromkeys(_CHIP_BOUNDS, str(process.part.bounds)),
        **dict.fromkeys(_PROCESS_BOUNDS, str(process.grid)),
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in process.ports),
        "TPU_PROCESS_PORT": str(process.ports[process.rank]),
        "CLOUD_TPU_TASK_ID": str(process.rank),
    }


def _build_config_environment(config: TpuConfig) -> Mapping[str, str]:
    """The variables that the config sets, whatever the claim has."""
    logging, buffer = config.logging or LoggingConfig(), config.premapped_buffer or PremappedBuffer()
    slices = config.megascale
    variables: Mapping[str, object] = {
        "TPU_MIN_LOG_LEVEL": logging.level,
        "TPU_STDERR_LOG_LEVEL": logging.level if logging.stderr_level is None else logging.stderr_level,
        "TPU_LOG_DIR": logging.directory,
        "TPU_RUNTIME_METRICS_PORTS": ",".join(map(str, config.metrics_ports or ())) or None,
        "TPU_PREMAPPED_BUFFER_SIZE": _bytes(buffer.size),
        "TPU_PREMAPPED_BUFFER_TRANSFER_THRESHOLD_BYTES": _bytes(buffer.transfer_threshold),
        "LIBTPU_INIT_ARGS": " ".join(config.arguments or ()) or None,
        "MEGASCALE_NUM_SLICES": slices and slices.slices,
        "MEGASCALE_SLICE_ID": None if slices is None else slices.slice,
        "MEGASCALE_COORDINATOR_ADDRESS": slices and slices.coordinator,
    }
    return {name: str(value) for name, value in variables.items() if value is not None}


def _bytes(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(parse_quantity(quantity))
