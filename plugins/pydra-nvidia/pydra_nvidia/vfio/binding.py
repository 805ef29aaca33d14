"""Moves a function from one kernel driver to another, or leaves it where it was. Blocks: the kernel may take seconds.

The override is written before the function is free, so that nothing else can take it in between: while it says the
driver for passthrough, a function that is found half-way is known to be ours.
Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci, drivers/base/bus.c.
"""

from __future__ import annotations

from pydra import ClaimError
from pydra_nvidia.host.filesystem import Tree
from pydra_nvidia.steps import LeftBehind
from pydra_nvidia.vfio.drivers import is_same
from pydra_nvidia.vfio.functions import Function, list_nodes, read_function


class KernelRefused(ClaimError):
    """The kernel did not do with the function what it was told."""

    reason = "KernelRefused"


def bind_function(tree: Tree, address: str, driver: str, before: str) -> None:
    """Bind the function to `driver`, which is loaded and for passthrough, and see that it can be opened.

    Raises:
        KernelRefused: it is given back to `before`.
        LeftBehind: giving it back failed too.
    """
    found = read_function(tree, address)
    try:
        _write(tree, f"devices/{address}/driver_override", driver)
        _unbind(tree, found)
        _attach(tree, address, driver)
        require_nodes(tree, address)
    except KernelRefused as error:
        override = "" if is_same(found.override, driver) else found.override
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
    if not any(tree.exists(tree.here(node)) for node in nodes):
        raise KernelRefused(
            f"{address} is bound to {function.driver}, but there is no {' or '.join(nodes)} to open it by;"
            " PYDRA_HOST_ROOT says where the node's files are"
        )


def _unbind(tree: Tree, function: Function) -> None:
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
    found = read_function(tree, address).driver
    if found != driver:
        where = f"bound to {found}" if found else "bound to no driver"
        raise refused or KernelRefused(f"{address} is {where} although it was given to {driver}")


def _write(tree: Tree, name: str, text: str) -> None:
    path = tree.sys(f"bus/pci/{name}")
    try:
        tree.write(path, text)
    except OSError as error:
        raise KernelRefused(f"writing {text.strip()!r} to {path} failed: {error.strerror or error}") from error
