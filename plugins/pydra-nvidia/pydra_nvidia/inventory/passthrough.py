"""The devices for passthrough to virtual machines. Pure.

A function is offered when it can be bound to vfio-pci, and by the nvidia driver only where the whole GPU is offered:
the two, and the GPU's partitions, draw from one counter set. A function that is bound to vfio already is known to
nobody but sysfs, and draws from nothing. One that the nvidia driver has without showing it as a GPU is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydra import Capacity, Device
from pydra_nvidia.hardware import Gpu, PciFunction, Reading
from pydra_nvidia.health.assessments import WELL, Diagnosis, join_assessments
from pydra_nvidia.inventory.attributes import describe_function
from pydra_nvidia.inventory.capacities import build_quantity
from pydra_nvidia.inventory.gpus import draw_all
from pydra_nvidia.inventory.offering import Offering
from pydra_nvidia.names import vfio_name
from pydra_nvidia.targets import passthrough_candidates


def build_functions(
    reading: Reading, offerings: Mapping[str, tuple[Gpu, Offering]], diagnosis: Diagnosis
) -> Iterator[Device]:
    """The functions that can be passed through; `offerings` are the node's GPUs by PCI address."""
    for index, function in enumerate(passthrough_candidates(reading)):
        gpu, offering = offerings.get(function.address, (None, None))
        if not _can_bind(function) or (function.driver == "nvidia" and (offering is None or not offering.whole)):
            continue
        assessment = join_assessments(
            diagnosis.functions.get(function.address, WELL), diagnosis.gpus.get(gpu.uuid, WELL) if gpu else WELL
        )
        yield Device(
            name=vfio_name(index),
            attributes=describe_function(function, iommufd=reading.vfio.iommufd),
            capacity={"addressableMemory": Capacity(build_quantity(function.addressable))},
            consumes_counters=draw_all(gpu, offering) if gpu and offering else (),
            health=assessment.health,
            taints=assessment.taints,
        )


def _can_bind(function: PciFunction) -> bool:
    """Without virtual functions in use, in an IOMMU group, and in the hands of a driver that can be left."""
    variant = function.driver.replace("_", "-").endswith("vfio-pci")
    return bool(function.group) and not function.has_virtual and (variant or function.driver in ("", "nvidia"))
