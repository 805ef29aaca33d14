"""Moves interfaces into pods, configures them there, and puts them back. Blocks."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence

from pydra import ClaimError, LeftBehind, UndoLater
from pydra_net.find_interface import find, locating
from pydra_net.interface_diff import plan_changes, plan_rest
from pydra_net.interface_state import InterfaceState, find_state_before
from pydra_net.kernel import Kernel, KernelRefused, Namespace
from pydra_net.network_change_types import DetachPrograms, KeepNames, Mark, Operation, RemoveLink, SetLink
from pydra_net.network_types import Link, Programs, Reading
from pydra_net.step_appliers import AttachFailed, StepApplier
from pydra_net.steps import GiveInterface, InterfaceStep

_log = logging.getLogger(__name__)


def configure(kernel: Kernel, step: InterfaceStep, pod: Namespace, link: Link, reading: Reading) -> None:
    """Make it as it should be in the pod. Raises AttachFailed."""
    marks = (Mark(index=link.index, name=step.mark),) if step.mark and step.mark not in link.alternative_names else ()
    plan = plan_rest if link.up else plan_changes
    changes = (*marks, *plan(step.target, link, reading))
    refused = list(map(str, _change(kernel, pod, link.index, changes, step.target)))
    if refused and link.up:
        _log.warning("%s (%s) in its pod: %s", step.name, step.device, "; ".join(refused))
    elif refused:
        kernel.apply(pod, (SetLink(index=link.index, up=False),))  # the next attempt configures all of it again
        raise AttachFailed(f"{step.name} ({step.device}) cannot be configured in the pod: {'; '.join(refused)}")


def _change(
    kernel: Kernel, where: Namespace, index: int, changes: Sequence[Operation], wanted: InterfaceState
) -> Sequence[KernelRefused]:
    """Make changes after which the link is as wanted, and return what was refused."""
    refused = kernel.apply(where, changes)
    if any(one.code == errno.EADDRNOTAVAIL and str(one).startswith("set mac") for one in refused):
        # igbvf: a virtual function takes the address that its card has for it only when it is switched off.
        kernel.apply(where, (SetLink(index=index, up=True),))
        reading = kernel.read(where)
        if link := reading.find(index):
            return kernel.apply(where, plan_changes(wanted, link, reading))
    return refused


class Mover(StepApplier[GiveInterface]):
    """Moves the interfaces of one node. `has_device` says whether what a link belongs to can have an interface now."""

    def __init__(self, kernel: Kernel, host: Namespace, has_device: Callable[[Link], bool]) -> None:
        super().__init__(kernel, host)
        self._has_device = has_device

    def mark(self, step: GiveInterface, pods: Sequence[Namespace]) -> None:
        """Let the interface be found again, wherever it is. Raises ClaimError, LeftBehind."""
        links = self._kernel.read_links(self._host)
        if find(step, links):
            return
        with locating(self._kernel, step, pods) as found:
            if found:
                return
        name = step.before.link.name
        link = links.find(step.before.link.index)
        if not step.mark or link is None or link.name != name:
            raise ClaimError(f"{name} ({step.device}) was removed or renamed just now; try again")
        refused = self._kernel.apply(self._host, (Mark(index=link.index, name=step.mark),))
        if refused:
            raise LeftBehind(f"{name} ({step.device}) cannot be marked: {refused[0]}")

    def give(self, step: GiveInterface, pod: Namespace, others: Sequence[Namespace] = ()) -> None:
        """Move the interface into the pod, and configure it there. It may still be in an earlier sandbox, of `others`.

        Raises:
            AttachFailed: that is not possible; the interface may be in the pod, or incomplete.
        """
        name = step.name
        if pod.is_same(self._host):
            raise AttachFailed(f"the pod uses the node's own network, so it has {name} already; remove the claim")
        if link := self._find(step, self._host):
            reading = self._move_in(step, link, pod)
        elif self.is_in(step, pod):
            reading = self._kernel.read(pod)
        elif self._bring_back(step, others) and (link := self._find(step, self._host)):
            reading = self._move_in(step, link, pod)
        else:
            raise AttachFailed(f"{name} ({step.device}) is not on the node any more; delete the pod")
        link = find(step, reading)
        if link is None:
            raise AttachFailed(f"{name} ({step.device}) vanished while it was moved; try again")
        configure(self._kernel, step, pod, link, reading)

    def take_back(self, step: GiveInterface, pods: Sequence[Namespace]) -> None:
        """Move the interface back, wherever it is, and make it as it was before.

        Raises:
            UndoLater: it cannot be found now, another one has its name, or what was refused may be accepted later.
        """
        name = step.before.link.name
        links = self._kernel.read_links(self._host)
        if find(step, links) is None and not self._bring_back(step, pods):
            known = links.find(step.before.link.index)
            if known is None or (known.name, known.kind) != (name, step.before.link.kind):
                self._explain_absence(step)
            return  # else it was not even marked
        reading = self._kernel.read(self._host)
        link = find(step, reading)
        if link is None:
            raise UndoLater(f"{name} ({step.device}) vanished while it was moved back")
        if link.elsewhere and not step.before.link.elsewhere and link.kind != "veth":
            lower = step.before.link.lower
            if lower and reading.find(lower) is None:
                raise UndoLater(f"{name} ({step.device}) is back, but what it is made on (index {lower}) is not here")
            _log.warning("%s (%s) is gone: its pod has made another %s in its place", name, step.device, link.kind)
            self._kernel.apply(self._host, (RemoveLink(index=link.index),))
            return
        wanted = find_state_before(step.before)
        holder = reading.find_name(wanted.name)
        if holder is not None and holder.index != link.index:
            raise UndoLater(
                f"{step.device} is back as {link.name}, since another interface has its name {wanted.name}; rename "
                "that one"
            )
        changes = (*_plan_names(step, link), *plan_changes(wanted, link, reading))
        refused = list(_change(self._kernel, self._host, link.index, changes, wanted))
        if refused and self._kernel.read_link(self._host, link.index) is None:
            raise UndoLater(f"{name} ({step.device}) vanished when it had been moved back")
        if wanted.master and not reading.find_name(wanted.master):
            refused.append(KernelRefused(f"its master {wanted.master} is gone"))
        _tell(f"{name} is back, but not as it was before", refused)

    def unmark(self, step: GiveInterface) -> None:
        """Leave no trace of the claim on the interface. Raises UndoLater."""
        link = find(step, self._kernel.read_links(self._host))
        if link is None:
            return
        self._tell_programs(step, link)
        if step.mark:
            _tell(link.name, self._kernel.apply(self._host, (Mark(index=link.index, name=step.mark, present=False),)))

    def _tell_programs(self, step: GiveInterface, link: Link) -> None:
        """Tell which eBPF programs are missing: those that were detached, and tc filters, which end with any move."""
        before = step.before.programs
        if before == Programs() and not step.before.link.has_xdp:
            return
        present = self._kernel.read_programs(self._host, (link.index,)).get(link.index, Programs())
        missing = [one for one in (*before.filters, *before.tcx) if one not in (*present.filters, *present.tcx)]
        if step.before.link.has_xdp and not link.has_xdp:
            missing.append("that of XDP")
        if missing:
            _log.warning(
                "%s (%s) is back without the eBPF programs %s; attach them again",
                *(link.name, step.device, ", ".join(missing)),
            )

    def _find(self, step: GiveInterface, where: Namespace) -> Link | None:
        """The interface, if it is there; most often it has the index that it had."""
        link = self._kernel.read_link(where, step.before.link.index)
        return link if link and step.is_of(link) else find(step, self._kernel.read_links(where))

    def _move_in(self, step: GiveInterface, link: Link, pod: Namespace) -> Reading:
        """Move it, and return it as it arrived, without the rest of the pod: nothing is configured on it."""
        try:
            return Reading(links=(self._kernel.move(self._host, link.index, pod, step.target.name),))
        except KernelRefused as error:
            if error.taken:
                raise AttachFailed(
                    f"the pod has an interface {step.target.name} already; set another interface.name in the claim"
                ) from error
            raise AttachFailed(f"{link.name} ({step.device}) cannot be moved into the pod: {error}") from error

    def _bring_back(self, step: GiveInterface, pods: Sequence[Namespace]) -> bool:
        """Move the interface to the node, without what the pod has added that the kernel moves with it."""
        with locating(self._kernel, step, pods) as found:
            if found is None:
                return False
            where, link = found
            self._detach_programs(step, where, link)
            self._kernel.apply(where, tuple(_plan_names(step, link)))  # the node may have such a name
            self._move_back(step, where, link)
        return True

    def _move_back(self, step: GiveInterface, where: Namespace, link: Link) -> None:
        """Under a name that is free: its own, or one by which an admin can find it. Raises UndoLater."""
        refusals: list[KernelRefused] = []
        for name in (step.name, f"pydra{link.index}"[:15]):
            try:
                self._kernel.move(where, link.index, self._host, name)
            except KernelRefused as error:
                if self._find(step, self._host) is None:  # else the kernel has moved it, and only not renamed it
                    refusals.append(error)
                    continue
            return
        raise UndoLater(f"{step.name} ({step.device}) cannot be moved back: {refusals[0]}")

    def _detach_programs(self, step: GiveInterface, pod: Namespace, link: Link) -> None:
        """Detach the eBPF programs that the pod has attached: the kernel moves them with the interface."""
        before, keeps_xdp = step.before.programs.tcx, step.before.link.has_xdp
        try:
            present = self._kernel.read_programs(pod, (link.index,)).get(link.index, Programs()).tcx
        except KernelRefused as error:
            _tell(f"the eBPF programs of {step.name} ({step.device}) are not known", (error,))
            return
        if not set(present) <= set(before) or (link.has_xdp and not keeps_xdp):
            detach = DetachPrograms(index=link.index, kept=before, keeps_xdp=keeps_xdp)
            _tell(f"{step.name} ({step.device}) has programs of its pod", self._kernel.apply(pod, (detach,)))

    def _explain_absence(self, step: GiveInterface) -> None:
        """Hardware comes back when the kernel has ended the pod's namespace; what is virtual ends with it."""
        name = step.before.link.name
        if step.before.link.kind:
            _log.warning("%s (%s) is gone: the kernel removed it with the pod's network namespace", name, step.device)
        elif not self._has_device(step.before.link):
            _log.warning("%s (%s) is gone: its device has no network driver any more", name, step.device)
        else:
            raise UndoLater(
                f"{name} ({step.device}) is in a network namespace that cannot be seen; the kernel returns it when "
                "the last process of the pod has ended"
            )


def _plan_names(step: GiveInterface, link: Link) -> Iterator[Operation]:
    """Yield what gives the link the alternative names that it had: a pod with CAP_NET_ADMIN can change them."""
    names = step.before.link.alternative_names
    kept = (*names, step.mark)
    if not set(link.alternative_names) <= set(kept):
        yield KeepNames(index=link.index, kept=kept)
    yield from (Mark(index=link.index, name=one) for one in names if one not in link.alternative_names)


def _tell(what: str, refused: Sequence[KernelRefused]) -> None:
    """Tell what was refused for ever. Raises UndoLater, with all of it, if something may be accepted later."""
    text = f"{what}: {'; '.join(map(str, refused))}"
    if any(one.passes for one in refused):
        raise UndoLater(text)
    if refused:
        _log.warning("%s", text)
