"""Moves RDMA devices into pods and back, where the kernel has each in one namespace only. Blocks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from pydra import ClaimError, UndoLater
from pydra_net.find_interface import list_places
from pydra_net.kernel import Kernel, KernelRefused, Namespace, NamespaceGone
from pydra_net.network_types import RdmaDevice
from pydra_net.step_appliers import AttachFailed, StepApplier
from pydra_net.steps import GiveRdma

_log = logging.getLogger(__name__)


class RdmaMover(StepApplier[GiveRdma]):
    """Moves the RDMA devices of one node. What all namespaces have stays where it is."""

    def __init__(
        self,
        kernel: Kernel,
        host: Namespace,
        has_function: Callable[[str], bool],
        list_nodes: Callable[[str], Sequence[str]],
    ) -> None:
        super().__init__(kernel, host)
        self._has_function = has_function
        self._list_nodes = list_nodes
        self._moving = threading.Lock()
        """Two devices that are moved at once can get each other's device nodes."""

    def mark(self, step: GiveRdma, pods: Sequence[Namespace]) -> None:
        """Check that it is there: its name, which the kernel gives once, is its mark. Raises ClaimError."""
        if self._find(step, self._host) is None and not any(self.is_in(step, pod) for pod in pods):
            raise ClaimError(f"the RDMA device {step.name} ({step.device}) was removed just now; try again")

    def give(self, step: GiveRdma, pod: Namespace, others: Sequence[Namespace] = ()) -> None:
        """Move it into the pod; it may still be in an earlier sandbox, of `others`. Raises AttachFailed."""
        if self._find(step, self._host) is None and not self.is_in(step, pod):
            self._bring_back(step, others)
        if device := self._find(step, self._host):
            try:
                with self._moving:
                    self._kernel.move_rdma(self._host, device.index, pod)
            except KernelRefused as error:
                raise AttachFailed(
                    f"the RDMA device {step.name} ({step.device}) cannot be moved into the pod: {error}; if its "
                    "driver does not support that, let all namespaces have it: rdma system set netns shared"
                ) from error
        elif not self.is_in(step, pod):
            raise AttachFailed(f"the RDMA device {step.name} ({step.device}) is not on the node any more")
        # A device that is moved gets the lowest number that is free, and containers have the nodes of before.
        if not set(step.nodes) <= set(nodes := self._list_nodes(step.name)):
            raise AttachFailed(
                f"the kernel gave the RDMA device {step.name} ({step.device}) other device nodes when it was moved: "
                f"{', '.join(nodes)} instead of {', '.join(step.nodes)}; delete the pod"
            )

    def take_back(self, step: GiveRdma, pods: Sequence[Namespace]) -> None:
        """Move it back, wherever it is. Raises UndoLater: it cannot be found now."""
        if not step.moves or self._find(step, self._host) or self._bring_back(step, pods):
            return
        if self._find(step, self._host) is None:  # else the kernel returned it just now
            if not step.pci_address or not self._has_function(step.pci_address):
                _log.warning("the RDMA device %s (%s) is gone: its driver is", step.name, step.device)
                return
            raise UndoLater(
                f"the RDMA device {step.name} ({step.device}) is in a network namespace that cannot be seen; the "
                "kernel returns it when the last process of the pod has ended"
            )

    def _find(self, step: GiveRdma, where: Namespace) -> RdmaDevice | None:
        return next((one for one in self._kernel.read_rdma(where) if one.name == step.name), None)

    def _bring_back(self, step: GiveRdma, pods: Sequence[Namespace]) -> bool:
        with closing(list_places(self._kernel, pods)) as places:
            for place in places:
                with suppress(NamespaceGone):
                    if device := self._find(step, place):
                        self._move_back(step, device, place)
                        return True
        return False

    def _move_back(self, step: GiveRdma, device: RdmaDevice, pod: Namespace) -> None:
        try:
            with self._moving:
                self._kernel.move_rdma(pod, device.index, self._host)
        except KernelRefused as error:
            raise UndoLater(f"the RDMA device {step.name} ({step.device}) cannot be moved back: {error}") from error
