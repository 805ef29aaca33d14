"""Carries out steps of any kind, or undoes them. Blocks: everything here is called in a thread.

Every function can be interrupted anywhere and called again: it looks where the interface is, and does what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydra_net.apply_interface import Mover
from pydra_net.apply_rdma import RdmaMover
from pydra_net.apply_share import Sharer
from pydra_net.apply_virtual_function import FunctionConfigurer
from pydra_net.find_interface import find
from pydra_net.hardware_reader import HardwareReader
from pydra_net.kernel import Kernel, Namespace, NamespaceGone
from pydra_net.network_types import Link
from pydra_net.steps import ConfigureFunction, GiveInterface, GiveRdma, ShareInterface, Step
from pydra_pci import Tree


class StepAppliers:
    """Those of one node, whose hardware `reader` reads."""

    def __init__(self, kernel: Kernel, host: Namespace, reader: HardwareReader, tree: Tree) -> None:
        self._kernel = kernel
        self._appliers: dict[type, Any] = {
            GiveInterface: Mover(kernel, host, reader.has_device),
            ShareInterface: Sharer(kernel, host),
            GiveRdma: RdmaMover(kernel, host, reader.has_function),
            ConfigureFunction: FunctionConfigurer(kernel, host, tree),
        }

    def mark(self, step: Step, pods: Sequence[Namespace]) -> None:
        """Prepare what can be done before the pod exists. Raises ClaimError, LeftBehind."""
        self._appliers[type(step)].mark(step, pods)

    def give(self, step: Step, pod: Namespace, others: Sequence[Namespace]) -> None:
        """Let the pod have the interface, and `others`, its earlier sandboxes, not. Raises AttachFailed."""
        self._appliers[type(step)].give(step, pod, others)

    def take_back(self, step: Step, pods: Sequence[Namespace]) -> None:
        """Let no pod have the interface; the node is as it was. Raises UndoLater."""
        self._appliers[type(step)].take_back(step, pods)

    def unmark(self, step: Step) -> None:
        """Leave no trace of the claim on the node."""
        self._appliers[type(step)].unmark(step)

    def locate(self, gives: Sequence[GiveInterface], pods: Sequence[Namespace]) -> Mapping[str, Link]:
        """The interfaces that are in one of these namespaces, by the keys of their steps."""
        found: dict[str, Link] = {}
        for pod in pods:
            with suppress(NamespaceGone):
                reading = self._kernel.read_links(pod)
                found |= {give.key: link for give in gives if (link := find(give, reading))}
        return found

    def is_in(self, step: Step, pod: Namespace) -> bool:
        """Whether the interface is there."""
        found: bool = self._appliers[type(step)].is_in(step, pod)
        return found
