"""Moves a function from one kernel driver to another, or leaves it where it was. Blocks: the kernel may take seconds.

The override is written before the function is free, so that nothing else can take it in between: while it says the
driver for passthrough, a function that is found half-way is known to be ours. The kernel may wait for a user of the
device without end, and such a wait cannot be interrupted: it goes on in a thread of its own, and nothing else is begun
with the function then.
Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci, Documentation/driver-api/vfio.rst, drivers/base/bus.c.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

import msgspec

from pydra import ClaimError, LeftBehind
from pydra_pci.filesystem import Tree
from pydra_pci.functions import (
    count_virtual_functions,
    function_path,
    is_vfio,
    list_vfio_nodes,
    read_attribute,
    read_driver,
    read_iommu_group,
    read_override,
)
from pydra_pci.vfio_drivers import is_same


class KernelRefused(ClaimError):
    """The kernel did not do with the function what it was told."""

    reason = "KernelRefused"


def bind_function(tree: Tree, address: str, driver: str, before: str, override: str = "") -> None:
    """Bind the function to `driver`, which is loaded and for passthrough, and see that it can be opened.

    Raises:
        KernelRefused: it is given back to `before`, with this override.
        LeftBehind: giving it back failed too.
    """
    try:
        _write(tree, f"devices/{address}/driver_override", driver)
        _unbind(tree, read_function(tree, address))
        _attach(tree, address, driver)
        require_nodes(tree, address)
    except KernelRefused as error:
        try:
            give_back(tree, address, driver, before, override)
        except KernelRefused as left:
            raise LeftBehind(f"{error}; and giving it back failed: {left}") from error
        raise


def give_back(tree: Tree, address: str, driver: str, before: str, override: str = "") -> None:
    """Take the function from `driver`, bind it to `before`, and write its override as it was; part may be done already.

    What another driver has is left to it. A driver that is no longer loaded takes the function when it is loaded. In
    between the override says `before`, so that a function that is found half-way back is known to be ours.

    Raises:
        KernelRefused: what is not yet given back; it may be repeated.
    """
    found = read_function(tree, address)
    if not found.present:
        return
    if is_same(found.driver, driver):
        _unbind(tree, found)
    passing = found.override
    if before and is_same(passing, driver):
        passing = before
        _write(tree, f"devices/{address}/driver_override", before)
    loaded = bool(before) and tree.exists(tree.sys(f"bus/pci/drivers/{before}"))
    if loaded and not read_function(tree, address).driver:
        _attach(tree, address, before)
    if passing != override and (is_same(passing, driver) or passing == before):
        _write(tree, f"devices/{address}/driver_override", override or "\n")


def require_nodes(tree: Tree, address: str) -> None:
    """See that the function, which is bound for passthrough, can be opened; raises KernelRefused."""
    function = read_function(tree, address)
    nodes = list_nodes(tree, function)
    if not any(tree.has_node(node) for node in nodes):
        raise KernelRefused(
            f"{address} is bound to {function.driver}, but there is no {' or '.join(nodes)} to open it by;"
            " PYDRA_HOST_ROOT says where the node's files are"
        )


def _unbind(tree: Tree, function: FunctionState) -> None:
    if function.driver:
        try:
            _write(tree, f"devices/{function.address}/driver/unbind", function.address)
        except KernelRefused:
            if read_function(tree, function.address).driver:
                raise
        if driver := read_function(tree, function.address).driver:
            raise KernelRefused(f"{function.address} is bound to {driver} although it was taken from {function.driver}")


def _attach(tree: Tree, address: str, driver: str) -> None:
    refused: KernelRefused | None = None
    try:
        _write(tree, f"drivers/{driver}/bind", address)
    except KernelRefused as error:
        refused = error
    if read_function(tree, address).driver == driver:  # although refused: udev may have been faster
        return
    try:
        _write(tree, "drivers_probe", address)
    except KernelRefused as error:
        refused = refused or error
    if (found := read_function(tree, address).driver) != driver:
        raise refused or KernelRefused(f"{address} was given to {driver} and is bound to {found or 'no driver'}")


def _write(tree: Tree, name: str, text: str) -> None:
    path = tree.sys(f"bus/pci/{name}")
    try:
        tree.write(path, text)
    except OSError as error:
        raise KernelRefused(f"writing {text.strip()!r} to {path} failed: {error.strerror or error}") from error


LIMIT = 15.0
"""Seconds that taking a function from a driver and giving it to another may take."""

_LEAST = 1.0


class KernelWaits(LeftBehind):
    """The kernel has not answered: the function is as it was, or half-way, or will be what was asked for."""

    reason = "KernelWaits"


class KernelWork:
    """One work at a time with each function, by its address; `limit` is the most seconds that one is waited for."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self._running: dict[str, threading.Thread] = {}

    def require_none(self, address: str) -> None:
        """Raises KernelWaits while earlier work with the function goes on."""
        running = self._running.get(address)
        if running is not None and running.is_alive():
            raise KernelWaits(
                f"the kernel is still at work with {address}, which it was told before; a process may have the device"
                " open whom nobody sees, or the driver hangs, for which the node has to be rebooted"
            )

    def run(self, address: str, work: Callable[[], None], limit: float) -> None:
        """Do the work and raise what it raises. Blocks. Raises KernelWaits after `limit` seconds, and goes on."""
        self.require_none(address)
        problems: list[BaseException] = []

        def do() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by who waits
                problems.append(error)

        thread = threading.Thread(target=do, name=f"kernel {address}", daemon=True)
        self._running[address] = thread
        thread.start()
        limit = min(self.limit, max(_LEAST, limit))
        thread.join(limit)
        if thread.is_alive():
            raise KernelWaits(
                f"the kernel has not moved {address} from one driver to another after {limit:.3g} s; it waits on,"
                " probably for a process that has the device open"
            )
        if problems:
            raise problems[0]


BRIDGE_CLASS = "0x06"
HARMLESS = ("", "pci-stub", "pcieport")
"""Drivers that do not mind what else happens in their group; so does a function with none."""


class FunctionState(msgspec.Struct, frozen=True, kw_only=True):
    """A function at one moment. `driver`, `override` and `group` are empty for none; `virtual` counts its functions."""

    address: str
    present: bool
    driver: str
    override: str
    group: str
    virtual: int


def read_function(tree: Tree, address: str) -> FunctionState:
    """The function as sysfs has it now."""
    return FunctionState(
        address=address,
        present=tree.exists(function_path(tree, address)),
        driver=read_driver(tree, address),
        override=read_override(tree, address),
        group=read_iommu_group(tree, address),
        virtual=count_virtual_functions(tree, address),
    )


def find_strangers(tree: Tree, function: FunctionState, ours: Collection[str]) -> tuple[str, ...]:
    """`0000:53:00.1 (snd_hda_intel)`: what the host's drivers have in the group, which so cannot be opened.

    `ours` are addresses that the same claim passes through.
    """
    members = tree.names(tree.sys(f"kernel/iommu_groups/{function.group}/devices"))
    found = []
    for address in members:
        driver = read_driver(tree, address)
        bridge = read_attribute(tree, address, "class").startswith(BRIDGE_CLASS)
        harmless = driver in HARMLESS or is_vfio(driver)
        if address not in (function.address, *ours) and not bridge and not harmless:
            found.append(f"{address} ({driver})")
    return tuple(found)


def list_nodes(tree: Tree, function: FunctionState) -> tuple[str, ...]:
    """The paths on the host by which a bound function can be opened: its group's, its own. They need not exist."""
    return (f"/dev/vfio/{function.group}", *list_vfio_nodes(tree, function.address))
