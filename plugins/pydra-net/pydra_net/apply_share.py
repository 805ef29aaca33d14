"""Makes virtual interfaces in pods, as shares of an interface that stays on the node, and removes them. Blocks."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import ClaimError, UndoLater
from pydra_net.apply_interface import configure
from pydra_net.find_interface import find, locating
from pydra_net.kernel import KernelRefused, Namespace
from pydra_net.network_change_types import NewLink, RemoveLink
from pydra_net.network_types import Link, Reading
from pydra_net.step_appliers import AttachFailed, StepApplier
from pydra_net.steps import ShareInterface


class Sharer(StepApplier[ShareInterface]):
    """Shares the interfaces of one node."""

    def mark(self, step: ShareInterface, _pods: Sequence[Namespace]) -> None:
        """Check that the node has the interface; nothing is made before the pod exists. Raises ClaimError."""
        if self._find_parent(step) is None:
            raise ClaimError(f"{step.name} ({step.device}) was removed just now; try again")

    def give(self, step: ShareInterface, pod: Namespace, others: Sequence[Namespace] = ()) -> None:
        """Make the interface in the pod, and configure it there. An earlier sandbox, of `others`, may still have one.

        Raises:
            AttachFailed: that is not possible; the interface may be in the pod, or incomplete.
        """
        if pod.is_same(self._host):
            raise AttachFailed(f"the pod uses the node's own network, so it has {step.name} already; remove the claim")
        links = self._kernel.read_links(pod)
        if link := find(step, links):
            configure(self._kernel, step, pod, link, self._kernel.read(pod))
            return
        if links.find_name(step.target.name):
            raise AttachFailed(
                f"the pod has an interface {step.target.name} already; set another interface.name in the claim"
            )
        for other in others:
            self._remove(step, other)
        self._make(step, pod)
        link = self._find(step, pod)
        if link is None:
            raise AttachFailed(f"the share of {step.name} ({step.device}) vanished while it was made; try again")
        configure(self._kernel, step, pod, link, Reading(links=(link,)))

    def take_back(self, step: ShareInterface, pods: Sequence[Namespace]) -> None:
        """Remove the interface, wherever it is. If its pod's namespace has ended, the kernel did. Raises UndoLater."""
        with locating(self._kernel, step, pods) as found:
            if found is not None:
                self._remove(step, found[0])

    def _make(self, step: ShareInterface, pod: Namespace) -> None:
        parent = self._find_parent(step)
        if parent is None:
            raise AttachFailed(f"{step.name} ({step.device}) is not on the node any more; delete the pod")
        link = NewLink(
            kind=step.kind,
            name=step.first_name,
            mode=step.mode,
            vlan=step.vlan,
            mac=step.target.mac,
            mtu=step.target.mtu,
        )
        try:
            self._kernel.make(self._host, parent.index, link, pod)
        except KernelRefused as error:
            raise AttachFailed(_explain(step, error)) from error

    def _remove(self, step: ShareInterface, where: Namespace) -> None:
        link = self._find(step, where)
        if link is not None:
            for refused in self._kernel.apply(where, (RemoveLink(index=link.index),)):
                raise UndoLater(f"the share {link.name} of {step.name} ({step.device}) stays: {refused}")

    def _find(self, step: ShareInterface, where: Namespace) -> Link | None:
        return find(step, self._kernel.read_links(where))

    def _find_parent(self, step: ShareInterface) -> Link | None:
        """The node's interface; most often it has the index that it had."""
        link = self._kernel.read_link(self._host, step.parent.index)
        if link is not None and step.is_parent(link):
            return link
        links = self._kernel.read_links(self._host).links
        return next((one for one in links if step.is_parent(one)), None)


def _explain(step: ShareInterface, error: KernelRefused) -> str:
    if error.taken and step.kind == "vlan":
        return f"{step.name} ({step.device}) has VLAN {step.vlan} already, on the node or for another pod"
    return f"the node's kernel cannot make a {step.kind} interface on {step.name} ({step.device}): {error}"
