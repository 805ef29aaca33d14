"""A kernel with network namespaces that are only values, for tests and trials.

What tests must not do with a real machine is possible here: hardware returns to the node when a namespace ends, as
`dev<index>`, down and without addresses, and what is virtual ends with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from pydra_net.kernel import KernelRefused, Namespace, NamespaceGone
from pydra_net.link_parameters import IPV4
from pydra_net.network_change_types import (
    Add,
    JoinVrf,
    KeepNames,
    Mark,
    NewLink,
    Operation,
    Remove,
    RemoveLink,
    SetEthtool,
    SetFunction,
    SetLink,
    SetParameter,
)
from pydra_net.network_types import (
    Address,
    Ethtool,
    Feature,
    Link,
    Neighbour,
    Programs,
    RdmaDevice,
    Reading,
    Route,
    Rule,
    VirtualFunctionState,
)

ValueT = TypeVar("ValueT")

HOST = "/host"
_FIELDS = {Address: "addresses", Route: "routes", Neighbour: "neighbours"}
LOOPBACK = Link(index=1, name="lo", hardware=772, up=True, carrier=True)


class SimulatedNamespace:
    """A namespace that is open; the kernel counts these."""

    def __init__(self, kernel: SimulatedKernel, path: str) -> None:
        self.path = path
        self._kernel = kernel
        self._is_open = True

    def is_same(self, other: Namespace) -> bool:
        """Whether both are one namespace."""
        return self.path == other.path

    def close(self) -> None:
        """Let it end, if it has been ended."""
        if self._is_open:
            self._is_open = False
            self._kernel.release(self.path)


class NoEvents:
    """Never reports anything: callers that wait also have a period."""

    async def wait(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Nothing."""


class SimulatedPackets:
    """Messages that a server answers at once, or never."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._answer = answer
        self._received: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: bytes, _server: str) -> None:
        """Let the server answer."""
        if answer := self._answer(message):
            self._received.put_nowait(answer)

    async def receive(self) -> bytes:
        """What the server has answered."""
        return await self._received.get()

    def close(self) -> None:
        """Nothing."""


class SimulatedKernel:
    """Implements `kernel.Kernel`. With a file, the links outlive the process.

    `step` is called with the name of each thing that is done, before and after it.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Reading],
        *,
        file: Path | None = None,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.step = step
        self.namespaces: dict[str, Reading] = dict(namespaces)
        self.functions: dict[tuple[int, int], str] = {}
        """The parents of virtual functions, by the index of the card and their number."""
        self._file = file
        self._lock = threading.RLock()
        self._open: dict[str, int] = {}
        self._ended: set[str] = set()
        self.ethtool: dict[str, Ethtool] = {}
        self.dhcp: Callable[[bytes], bytes | None] = lambda _: None
        self.users: dict[str, str] = {}
        """The MAC addresses of hosts on the networks of all links, by their addresses."""
        if file is not None and file.exists():
            self.namespaces = msgspec.json.decode(file.read_bytes(), type=dict[str, Reading])

    # What tests do

    def begin_namespace(self, path: str) -> None:
        """A pod begins."""
        self.namespaces[path] = Reading(links=(LOOPBACK,))

    def end_namespace(self, path: str) -> None:
        """The last process of a pod ends, and its file is removed; the namespace ends when nobody has it open."""
        with self._lock:
            self._ended.add(path)
            if not self._open.get(path):
                self._end(path)

    def kill(self) -> None:
        """Every process that has namespaces open is killed."""
        with self._lock:
            self._open.clear()
            for path in sorted(self._ended):
                self._end(path)

    def end_links(self, parent: str) -> None:
        """A device ends, with its links, wherever they are."""
        with self._lock:
            for path, reading in list(self.namespaces.items()):
                for link in reading.links:
                    if link.parent == parent:
                        self.namespaces[path] = _remove(self.namespaces[path], link.index)
            self._save()

    def add_link(self, link: Link) -> None:
        """The node gets a link."""
        with self._lock:
            self._put(HOST, link)

    def exchange(self, link: Link) -> None:
        """A link of the node changes."""
        with self._lock:
            self.namespaces[HOST] = _exchange(self.namespaces[HOST], link)
            self._save()

    def list_open(self) -> list[str]:
        """The namespaces that a process has open."""
        return sorted(path for path, count in self._open.items() if count)

    def release(self, path: str) -> None:
        """A process closes a namespace."""
        with self._lock:
            if path in self._open:  # else of a process that was killed
                self._open[path] -= 1
                if not self._open[path] and path in self._ended:
                    self._end(path)

    def _end(self, path: str) -> None:
        self._ended.discard(path)
        ended = self.namespaces.pop(path, Reading())
        self._put_rdma(HOST, *ended.rdma)
        for link in ended.links:
            if not link.kind and not link.is_loopback:
                self._put(HOST, replace(link, name=f"dev{link.index}", up=False))

    # What the backend does

    def open(self, path: str) -> SimulatedNamespace:
        """The namespace at this path. Raises NamespaceGone."""
        with self._lock:
            if path not in self.namespaces or path in self._ended:
                raise NamespaceGone(f"there is no network namespace at {path}")
            self._open[path] = self._open.get(path, 0) + 1
            return SimulatedNamespace(self, path)

    def watch(self, _where: Namespace) -> NoEvents:
        """No events."""
        return NoEvents()

    def list_paths(self) -> Sequence[str]:
        """Those of pods."""
        return sorted(self.namespaces.keys() - self._ended - {HOST})

    def read(self, where: Namespace) -> Reading:
        """Everything in the namespace. Raises NamespaceGone."""
        with self._lock:
            found = self.namespaces.get(where.path)
            if found is None:
                raise NamespaceGone(f"the network namespace at {where.path} has ended")
            return found

    def read_links(self, where: Namespace) -> Reading:
        """The same."""
        return self.read(where)

    def read_link(self, where: Namespace, index: int) -> Link | None:
        """One link of it."""
        return self.read(where).find(index)

    def read_ethtool(self, where: Namespace, index: int) -> Ethtool:
        """What `ethtool` has for hardware with this permanent address."""
        with self._lock:
            link = self.read(where).find(index)
            return self.ethtool.get(link.permanent_mac, Ethtool()) if link else Ethtool()

    def read_changed_sysctls(self, _where: Namespace, _link: Link) -> Mapping[str, int | str]:
        """All are as the default."""
        return {}

    def read_token(self, _where: Namespace, _index: int) -> str:
        """No link has one."""
        return ""

    def read_programs(self, _where: Namespace, _indexes: Sequence[int]) -> Mapping[int, Programs]:
        """No link has any."""
        return {}

    def open_packets(self, _where: Namespace, _index: int, _address: str) -> SimulatedPackets:
        """Messages to the DHCP server of a test, or to nobody."""
        return SimulatedPackets(self.dhcp)

    def find_user(self, _where: Namespace, _link: Link, address: str) -> str:
        """The host of a test that has the address."""
        return self.users.get(address, "")

    def read_function(self, where: Namespace, index: int, number: int) -> VirtualFunctionState | None:
        """What a card does with a virtual function."""
        card = self.read(where).find(index)
        return card.functions[number] if card and number < len(card.functions) else None

    def read_rdma(self, where: Namespace) -> Sequence[RdmaDevice]:
        """The RDMA devices only."""
        return self.read(where).rdma

    def move_rdma(self, where: Namespace, index: int, to: Namespace) -> None:
        """Move an RDMA device. Raises KernelRefused."""
        self.step("move RDMA")
        with self._lock:
            source, target = self.read(where), self.read(to)
            found = next((one for one in source.rdma if one.index == index), None)
            if found is None:
                raise KernelRefused(os.strerror(errno.ENODEV))
            if not self.namespaces[HOST].exclusive_rdma or target is source:
                raise KernelRefused(os.strerror(errno.EOPNOTSUPP))
            self.namespaces[where.path] = replace(source, rdma=tuple(one for one in source.rdma if one != found))
            self._put_rdma(to.path, found)
        self.step("moved RDMA")

    def move(self, where: Namespace, index: int, to: Namespace, name: str) -> Link:
        """Move a link. Raises KernelRefused."""
        self.step("move")
        with self._lock:
            source = self.read(where)
            link = source.find(index)
            if link is None:
                raise KernelRefused(os.strerror(errno.ENODEV))
            if self.read(to).find_name(name):
                raise KernelRefused(os.strerror(errno.EEXIST), errno.EEXIST)
            self.namespaces[where.path] = _remove(source, index)
            arrived = self._put(to.path, replace(link, name=name, up=False, master=0))
        self.step("moved")
        return arrived

    def make(self, where: Namespace, index: int, link: NewLink, to: Namespace) -> None:
        """Make a virtual link in the other namespace. Raises KernelRefused."""
        self.step("make")
        with self._lock:
            parent = self.read(where).find(index)
            if parent is None:
                raise KernelRefused(os.strerror(errno.ENODEV))
            if self.read(to).find_name(link.name):
                raise KernelRefused(os.strerror(errno.EEXIST), errno.EEXIST)
            made = replace(
                LOOPBACK,
                index=2,
                name=link.name,
                kind=link.kind,
                mac=link.mac or parent.mac,
                mtu=link.mtu or parent.mtu,
                up=False,
                hardware=1,
                parameters=parent.parameters,
                most_gso=parent.most_gso,
            )
            self._put(to.path, made)
        self.step("made")

    def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[KernelRefused]:
        """Do all of it, in order."""
        refused = []
        for operation in operations:
            with self._lock:
                try:
                    self.step(str(operation))
                    if isinstance(operation, SetEthtool):
                        self._set_ethtool(self.read(where), operation)
                    self.namespaces[where.path] = _apply(self.read(where), operation)
                    if isinstance(operation, SetFunction) and operation.state.mac:
                        self._give_address(operation, operation.state.mac)
                except KernelRefused as error:
                    refused.append(KernelRefused(f"{operation}: {error}", error.code))
                self._save()
        self.step("applied")
        return refused

    def _set_ethtool(self, reading: Reading, operation: SetEthtool) -> None:
        link = reading.find(operation.index)
        if link is not None:
            found = self.ethtool[link.permanent_mac]
            features = {name: Feature(enabled=value) for name, value in operation.features.items()}
            self.ethtool[link.permanent_mac] = Ethtool(
                features={**found.features, **features},
                private_flags={**found.private_flags, **operation.private_flags},
            )

    def _put(self, path: str, link: Link) -> Link:
        reading = self.namespaces[path]
        index = link.index
        while reading.find(index):
            index += 1
        parameters = {name: 0 if name in IPV4 else value for name, value in link.parameters.items()}
        arrived = replace(link, index=index, parameters=parameters)
        self.namespaces[path] = replace(reading, links=(*reading.links, arrived))
        self._save()
        return arrived

    def _give_address(self, operation: SetFunction, mac: str) -> None:
        """Let the driver of a virtual function have another permanent address, wherever its link is."""
        parent = self.functions.get((operation.index, operation.number))
        for path, reading in list(self.namespaces.items()):
            for link in reading.links:
                if parent and link.parent == parent:
                    self.namespaces[path] = _exchange(reading, replace(link, permanent_mac=mac))

    def _put_rdma(self, path: str, *devices: RdmaDevice) -> None:
        reading = self.namespaces[path]
        both = sorted((*reading.rdma, *devices), key=lambda one: one.name)
        self.namespaces[path] = replace(reading, rdma=tuple(both))
        self._save()

    def _save(self) -> None:
        if self._file is not None:
            draft = self._file.with_suffix(".draft")
            draft.write_bytes(msgspec.json.encode(self.namespaces))
            draft.rename(self._file)


def _without(values: Mapping[int, tuple[ValueT, ...]], index: int) -> dict[int, tuple[ValueT, ...]]:
    return {key: value for key, value in values.items() if key != index}


def _apply(reading: Reading, operation: Operation) -> Reading:
    if isinstance(operation, Add) and isinstance(rule := operation.item, Rule):
        return replace(reading, rules=(*(one for one in reading.rules if one != rule), rule))
    index = operation.index
    link = reading.find(index)
    if link is None:
        raise KernelRefused(os.strerror(errno.ENODEV))
    match operation:
        case Add() | Remove():
            return _configure(reading, link, operation)
        case SetLink() | SetFunction():
            return _set(reading, link, operation)
        case RemoveLink():
            return _remove(reading, index)
        case SetParameter(name=name, value=value):
            return _exchange(reading, replace(link, parameters={**link.parameters, name: value}))
        case Mark() | KeepNames():
            return _exchange(reading, replace(link, alternative_names=_name(link, operation)))
        case JoinVrf(name=name):
            return _join(reading, link, name)
    return reading  # ethtool, sysctls and eBPF programs


def _name(link: Link, operation: Mark | KeepNames) -> tuple[str, ...]:
    if isinstance(operation, KeepNames):
        return tuple(one for one in link.alternative_names if one in operation.kept)
    others = tuple(one for one in link.alternative_names if one != operation.name)
    return (*others, operation.name) if operation.present else others


def _set_function(reading: Reading, card: Link, wanted: SetFunction) -> Reading:
    if wanted.number >= len(card.functions):
        raise KernelRefused(os.strerror(errno.EINVAL))
    functions = list(card.functions)
    functions[wanted.number] = replace(functions[wanted.number], **wanted.state.list_known())
    return _exchange(reading, replace(card, functions=tuple(functions)))


def _configure(reading: Reading, link: Link, operation: Add | Remove) -> Reading:
    item = operation.item
    if isinstance(operation, Add) and isinstance(item, Route) and not link.up:
        raise KernelRefused(os.strerror(errno.ENETDOWN), errno.ENETDOWN)
    field = _FIELDS[type(item)]
    values = getattr(reading, field)
    present = values.get(link.index, ())
    if isinstance(operation, Add):
        found = present if item in present else (*present, item)
    elif isinstance(item, Address):
        found = tuple(one for one in present if one.address != item.address)
    else:
        found = tuple(one for one in present if one != item)
    return replace(reading, **{field: {**values, link.index: found}})


def _remove(reading: Reading, index: int) -> Reading:
    return replace(
        reading,
        links=tuple(one for one in reading.links if one.index != index),
        addresses=_without(reading.addresses, index),
        routes=_without(reading.routes, index),
        neighbours=_without(reading.neighbours, index),
    )


def _set(reading: Reading, link: Link, wanted: SetLink | SetFunction) -> Reading:
    if isinstance(wanted, SetFunction):
        return _set_function(reading, link, wanted)
    if wanted.name is not None:
        holder = reading.find_name(wanted.name)
        if holder is not None and holder.index != link.index:
            raise KernelRefused(os.strerror(errno.EEXIST), errno.EEXIST)
        if link.up:  # as before Linux 6.2
            raise KernelRefused(os.strerror(errno.EBUSY), errno.EBUSY)
    names = ("name", "up", "mtu", "mac", "alias", "master")
    changes = {name: value for name in names if (value := getattr(wanted, name)) is not None}
    changed = _exchange(reading, replace(link, **changes))
    if wanted.up is False:
        changed = replace(changed, routes=_without(changed.routes, link.index))
    return changed


def _join(reading: Reading, link: Link, name: str) -> Reading:
    vrf = reading.find_name(name)
    if vrf is None:
        vrf = replace(LOOPBACK, index=max(one.index for one in reading.links) + 1, name=name, kind="vrf", hardware=1)
        reading = replace(reading, links=(*reading.links, vrf))
    return _exchange(reading, replace(link, master=vrf.index))


def _exchange(reading: Reading, link: Link) -> Reading:
    return replace(reading, links=tuple(link if one.index == link.index else one for one in reading.links))
