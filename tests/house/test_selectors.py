"""No selector that pydra brings or shows fails for a device that a cluster can have.

A selector that cannot be evaluated for one device of any node, such as for a key that this device lacks, keeps the
pod from being scheduled at all, even where other devices match.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pydra.devices import Inventory, Pool
from pydra.slices.build import build_wanted
from pydra_amd.settings import Partitioning
from pydra_amd.simulation.machine_types import MACHINE_TYPES as AMD_MACHINES
from pydra_cpu.settings import GroupBy
from pydra_cpu.simulation.machine import MACHINE_TYPES as CPU_MACHINES
from pydra_dev.api import schema
from pydra_dev.cel.environment import CelFeatures, EvaluationError, build_variables, compile_selector
from pydra_net.simulation.machine import MACHINE_TYPES as NET_MACHINES
from pydra_nvidia.simulation.scenario_file import bundled_scenarios
from pydra_tpu.settings import Offer
from pydra_tpu.simulation.machine_types import MACHINE_TYPES as TPU_MACHINES
from tests.house.pages import PAGES, ROOT, find_code, find_yaml, read
from tests.house.vendor_devices import DEVICES

BACKENDS = {one.name: one.load() for one in entry_points(group="pydra.backends")}
CLASSES = {name: spec for backend in BACKENDS.values() for name, spec in backend.DEVICE_CLASSES.items()}

FILES = ("charts/pydra/files/backends/*.json", "charts/pydra/*.yaml", "charts/pydra/examples/*.yaml")
MANIFESTS = (
    "examples/**/*.yaml",
    "plugins/*/examples/*.yaml",
    "plugins/*/*/samples/*.yaml",
    "plugins/*/*/template/**/*.yaml",
)

_IN_TEXT = re.compile(r"device\.(attributes|capacity)\[.*[ (]")
"""A selector between words; without a comparison or a call it is only the name of an attribute."""

AMD_OFFERS: list[dict[str, Any]] = [{"sharing": True}, {"vfio": True}, *({"partitioning": one} for one in Partitioning)]
SCENARIOS: Mapping[str, list[dict[str, Any]]] = {
    "amd": [{"scenario": name, "amdsmi": False, **more} for name in AMD_MACHINES for more in AMD_OFFERS],
    "cpu": [{"scenario": name, "group_by": group} for name, group in product(CPU_MACHINES, GroupBy)],
    "net": [{"scenario": name} for name in NET_MACHINES],
    "tpu": [{"scenario": name, "offer": offer} for name, offer in product(TPU_MACHINES, Offer)],
    "nvidia": [
        *({"scenario": name} for name in bundled_scenarios()),
        {"scenario": "mixed", "dynamic_mig": True, "vfio": True},
        {"scenario": "mixed", "consumable_shares": 2},
    ],
    "nvidia-compute-domain": [{"scenario": name} for name in bundled_scenarios()],
    "sim": [{"scenario": name} for name in ("", "partitions", "shared", "trouble")],
}


def find_selectors() -> Mapping[str, set[str]]:
    """Every CEL expression for devices, with the places that have it."""
    found: dict[str, set[str]] = {}
    for place, expression in _find_expressions():
        found.setdefault(" ".join(expression.split()), set()).add(place)
    return found


def _find_expressions() -> Iterator[tuple[str, str]]:
    for name, spec in CLASSES.items():
        yield from ((f"DeviceClass {name}", one) for one in _find_cel(msgspec.to_builtins(spec)))
    for path in (path for pattern in (*FILES, *MANIFESTS) for path in sorted(ROOT.glob(pattern))):
        text = path.read_text()
        documents = [json.loads(text)] if path.suffix == ".json" else yaml.load_all(text, yaml.CSafeLoader)
        yield from ((str(path.relative_to(ROOT)), one) for one in _find_cel([*documents]))
    for page in PAGES:
        yield from ((page, one) for one in _find_cel([*find_yaml(page)]))
        spans = (one for line in read(page).splitlines() for one in find_code(line))
        yield from ((page, one) for one in spans if _IN_TEXT.match(one))


def _find_cel(value: object) -> Iterator[str]:
    match value:
        case {"cel": {"expression": str(expression)}}:
            yield expression
        case dict():
            for one in value.values():
                yield from _find_cel(one)
        case list():
            for one in value:
                yield from _find_cel(one)


async def discover(state: Path) -> AsyncIterator[tuple[str, Inventory]]:
    """The inventories of all scenarios, each with its driver."""
    for name, variants in SCENARIOS.items():
        backend = BACKENDS[name]
        for settings in variants:
            place = str(state / (settings["scenario"] or "default"))  # both of NVIDIA's see the same machine
            async with backend.connect(backend.SETTINGS_TYPE(**settings, state=place)) as connected:
                if hasattr(connected, "restore"):  # the agent's first call, for which some wait
                    await connected.restore(())
                yield backend.DRIVER, await connected.discover()


def publish(driver: str, inventory: Inventory) -> Iterator[schema.Device]:
    pool = Pool(name="node", devices=inventory.devices, counter_sets=inventory.counter_sets)
    for content in build_wanted(pool, driver=driver, node="node").slices:
        for device in content.get("devices", ()):
            yield schema.parse_fields("Device", schema.Device, device)


def describe_shape(device: schema.Device) -> object:
    """Two devices of one driver for which this is equal lack the same keys and have values of the same types."""
    attributes = msgspec.to_builtins(device.attributes)
    kinds = {(name, kind) for name, one in attributes.items() for kind, value in one.items() if value is not None}
    return frozenset(kinds), frozenset(device.capacity), device.allow_multiple_allocations


def read_vendors_devices() -> Iterator[tuple[str, schema.Device]]:
    for driver, devices in DEVICES.items():
        for one in devices:
            yield driver, schema.parse_fields("Device", schema.Device, dict(one))


async def test_every_selector_can_be_evaluated_for_every_device(tmp_path: Path) -> None:
    found = [*read_vendors_devices(), ("other.example.com", schema.Device(name="bare"))]
    drivers = set()
    async for driver, inventory in discover(tmp_path):
        found.extend((driver, device) for device in publish(driver, inventory))
        drivers |= {driver} if inventory.devices else set()
    assert drivers == {backend.DRIVER for backend in BACKENDS.values()}
    distinct = {(driver, describe_shape(device)): device for driver, device in found}
    failures = set()
    for lists in (False, True):
        devices = [(driver, one.name, build_variables(driver, one)) for (driver, _), one in distinct.items()]
        for expression, places in find_selectors().items():
            selector = compile_selector(expression, CelFeatures(lists=lists))
            for driver, name, variables in devices:
                try:
                    selector.matches(variables)
                except EvaluationError as error:
                    failures.add(f"{', '.join(sorted(places))}: {expression}: {error} in {name} of {driver}")
    assert sorted(failures) == []


def test_selectors_are_found_in_classes_manifests_chart_and_pages() -> None:
    places = {place for found in find_selectors().values() for place in found}
    assert places >= {
        *(f"DeviceClass {name}" for name in CLASSES),
        *(f"charts/pydra/files/backends/{name}.json" for name in BACKENDS),
        "plugins/pydra-amd/examples/slice-and-gpu.yaml",
        "plugins/pydra-dev/pydra_dev/samples/sim.yaml",
        "plugins/pydra-amd/README.md",
        "plugins/pydra-amd/docs/memory-modes.md",
        "plugins/pydra-tpu/docs/jax.md",
        "docs/migrate.md",
    }


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("gpu.nvidia.com", ["gpu-0", "gpu-1", "gpu-2"]),
        ("mig.nvidia.com", ["gpu-3-mig-1g10gb-19-0"]),
        ("vfio.gpu.nvidia.com", ["gpu-vfio-4"]),
        ("compute-domain-daemon.nvidia.com", ["daemon-0"]),
        ("compute-domain-default-channel.nvidia.com", ["channel-0"]),
        ("gpu.amd.com", ["gpu-0-128", "gpu-1-129", "gpu-2-130", "gpu-3-131", "gpu-4-132", "gpu-5-cpx-nps1"]),
        ("gpu.amd.com-spx", ["gpu-0-128", "gpu-1-129", "gpu-3-131", "gpu-4-132"]),
        ("vfio.gpu.amd.com", ["gpu-vfio-6", "gpu-vfio-7"]),
        ("tpu.google.com", ["accel0", "17"]),
        ("host.tpu.google.com", []),
        ("2x2.tpu.google.com", []),
    ],
)
def test_a_class_selects_what_it_means_among_the_devices_of_the_vendors_driver(name: str, devices: list[str]) -> None:
    (selector,) = CLASSES[name]["selectors"]
    compiled = compile_selector(selector["cel"]["expression"])
    found = read_vendors_devices()
    assert [one.name for driver, one in found if compiled.matches(build_variables(driver, one))] == devices
