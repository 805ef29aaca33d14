"""Makes virtual functions of cards (SR-IOV), as many as the setting says.

Source: Linux, Documentation/PCI/pci-iov-howto.rst, Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterator, Sequence

from pydra_net.network_types import Link
from pydra_pci import Tree, function_path, read_attribute

_log = logging.getLogger(__name__)


class FunctionMaker:
    """Makes virtual functions on cards that have none. `counts` is the setting, by patterns of interfaces' names.

    What the kernel refused is not tried again until the setting, or this process, is another one.
    """

    def __init__(self, tree: Tree, counts: Sequence[tuple[str, int]]) -> None:
        self._tree = tree
        self._counts = counts
        self._refused: dict[tuple[str, int], str] = {}

    def make(self, links: Sequence[Link], needed: frozenset[int]) -> bool:
        """Make those that are missing, on cards with these links. Whether some were made. Blocks for seconds."""
        made = False
        for link, count in self._list_wanted(links, needed):
            key = link.pci_address, count
            if self._read(link, "sriov_numvfs") != 0 or count > self._read(link, "sriov_totalvfs"):
                continue
            if key in self._refused:
                continue
            try:
                self._tree.write(function_path(self._tree, link.pci_address, "sriov_numvfs"), str(count))
            except OSError as error:
                self._refused[key] = str(error.strerror)
                continue
            _log.info("made %d virtual functions of %s", count, link.name)
            made = True
        return made

    def list_problems(self, links: Sequence[Link], needed: frozenset[int]) -> list[str]:
        """Why cards do not have what the setting says."""
        problems = []
        for link, count in self._list_wanted(links, needed):
            present, most = self._read(link, "sriov_numvfs"), self._read(link, "sriov_totalvfs")
            if present == count:
                continue
            start = f"{link.name}: the setting virtualFunctions asks for {count}"
            if count > most:
                problems.append(f"{start}, but the card can have {most} at most")
            elif present:
                problems.append(
                    f"{start}, and there are {present}, which are left as they are; drain the node, and write 0 to "
                    f"/sys/bus/pci/devices/{link.pci_address}/sriov_numvfs"
                )
            elif reason := self._refused.get((link.pci_address, count)):
                problems.append(f"{start}, and the kernel made none: {reason}; it is tried again when the agent starts")
        return problems

    def _list_wanted(self, links: Sequence[Link], needed: frozenset[int]) -> Iterator[tuple[Link, int]]:
        """Cards with a number; one that the node needs only if it is named without `*`."""
        for link in links:
            if not link.pci_address or link.kind or link.is_representor:
                continue
            if not self._tree.exists(function_path(self._tree, link.pci_address, "sriov_totalvfs")):
                continue
            for pattern, count in self._counts:
                if link.name == pattern or (fnmatch.fnmatchcase(link.name, pattern) and link.index not in needed):
                    yield link, count
                    break

    def _read(self, link: Link, name: str) -> int:
        text = read_attribute(self._tree, link.pci_address, name)
        return int(text) if text.isdecimal() else 0
