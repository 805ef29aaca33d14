"""Activates Fabric Manager's partitions for claims, and gives a restarted Fabric Manager the list of them.

Started with `FABRIC_MODE_RESTART=1` it answers everything with NOT_CONFIGURED until it has the list of active
partitions, then lets only those use NVLink, and ends without the list after a minute. Started without, it has none.
Source: NVIDIA Fabric Manager User Guide, "Resiliency".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, islice

from pydra import ClaimError
from pydra_nvidia.claim_records import Entry
from pydra_nvidia.fabric.plan_fabric import find_group
from pydra_nvidia.nvfm import (
    AWAY,
    BAD_PARAMETER,
    NOT_CONFIGURED,
    NOT_SUPPORTED,
    FabricManager,
    FabricManagerError,
    Group,
)
from pydra_nvidia.steps import ActivateFabric
from pydra_nvidia.waiting import turn

_log = logging.getLogger(__name__)
_MOST_LISTS = 256
"""Lists that are tried: all that eight partitions allow."""


class RecordsUnread(ClaimError):
    """Fabric Manager asks which partitions are active, and the record of a claim cannot be read."""

    reason = "FabricPartitionsUnknown"


class ActivePartitions:
    """Lists and changes the partitions, one caller at a time: to set the list replaces what is active.

    `read_held` returns what claims have, as new as the running call. Everything blocks.
    """

    def __init__(self, manager: FabricManager, read_held: Callable[[], Sequence[Entry]]) -> None:
        self._manager = manager
        self._read_held = read_held
        self._lock = threading.Lock()
        self._ended: set[tuple[str, str]] = set()
        self._lost: frozenset[int] = frozenset()
        self.knows_claims = False
        """Whether claims of another driver have been taken over, so that the records name all."""

    def begin(self, uid: str, step: ActivateFabric) -> None:
        """The claim gets its partition: from now on it counts as the records say."""
        self._ended.discard((uid, step.key))

    def end(self, uid: str, step: ActivateFabric) -> None:
        """The claim's partition is given back, though its record may still have it."""
        held = {entry.uid for entry in self._read_held()}
        self._ended = {(uid, step.key), *(one for one in self._ended if one[0] in held)}

    def is_waiting(self) -> bool:
        """Whether Fabric Manager can be asked, or waits for the list; changes nothing."""
        with turn(self._lock, "Fabric Manager"):
            try:
                self._manager.list_groups()
            except FabricManagerError as error:
                return error.code == NOT_CONFIGURED
            return True

    def activate(self, group: int) -> None:
        """Connect the GPUs of the partition. Raises FabricManagerError, IN_USE while another one overlaps it."""
        with turn(self._lock, "Fabric Manager"):
            self._manager.activate(group)

    def deactivate(self, group: int) -> None:
        """Disconnect them; one that is not active is fine. Raises FabricManagerError."""
        with turn(self._lock, "Fabric Manager"):
            self._manager.deactivate(group)

    def list_groups(self) -> tuple[Group, ...]:
        """All partitions, after Fabric Manager got the list of active ones, if it does not have it.

        Raises FabricManagerError, DriverMissing, RecordsUnread.
        """
        with turn(self._lock, "Fabric Manager"):
            try:
                groups = self._manager.list_groups()
            except FabricManagerError as error:
                if error.code != NOT_CONFIGURED:
                    raise
                groups = self._resume(error)
            return self._add_missing(groups)

    def _resume(self, waits: FabricManagerError) -> tuple[Group, ...]:
        """It has said no more than that it waits: the IDs are those of the records."""
        if not self.knows_claims:
            raise waits
        entries = self._read_held()
        if unread := sorted(entry.name for entry in entries if entry.unread):
            raise RecordsUnread(
                f"Fabric Manager was restarted and asks which partitions are active, but what {', '.join(unread)} has"
                " cannot be read; running pods keep NVLink; delete the pods of the claim, and restart Fabric Manager"
            ) from waits
        steps = tuple(self._list_steps(entries))
        sent = self._send_list(sorted({step.partition for _, step in steps}), waits)
        groups = self._manager.list_groups()
        found = [(name, step, find_group(groups, step)) for name, step in steps]
        wanted = {group.id for *_, group in found if group is not None}
        _log.warning("Fabric Manager was restarted, and gets the list of active partitions: %s", sorted(wanted))
        for name, step in [(name, step) for name, step, group in found if group is None]:
            _log.warning(
                "claim %s has lost its partition %d: Fabric Manager has none of exactly %s any more",
                *(name, step.partition, ", ".join(step.gpus)),
            )
        if wanted == set(sent):
            return groups
        self._manager.set_active(wanted)  # IDs name other GPUs by now
        return self._manager.list_groups()

    def _send_list(self, ids: Sequence[int], waits: FabricManagerError) -> Sequence[int]:
        """Send as many of the IDs as it takes, and return these.

        It refuses a list with an ID that its table lacks, and lists its table only when it has taken a list. For other
        refusals no shorter list is sent: it would cut off the pods of the claims that are left out.
        """
        lists = chain.from_iterable(combinations(ids, size) for size in range(len(ids), 0, -1))
        for some in chain(islice(lists, _MOST_LISTS), ((),)):
            try:
                self._manager.set_active(some)
            except FabricManagerError as refused:
                if refused.code in AWAY or refused.code == NOT_SUPPORTED:  # it is starting, and does not wait for it
                    raise waits from refused
                last = refused
                if refused.code != BAD_PARAMETER:
                    break
            else:
                return some
        _log.warning("Fabric Manager does not take the active partitions %s: %s", ids, last)
        raise waits from last

    def _add_missing(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """What prepared claims have and Fabric Manager does not is added to its list, where it takes that."""
        completed = [entry for entry in self._read_held() if entry.completed]
        missing = list_inactive(groups, (step for _, step in self._list_steps(completed)))
        if not missing:
            self._lost = frozenset()
            return groups
        active = {group.id for group in groups if group.active}
        try:
            self._manager.set_active(active | missing)
        except FabricManagerError as error:
            if not missing <= self._lost:  # else it was logged by an earlier call
                _log.warning("Fabric Manager has lost partitions that claims have, %s: %s", sorted(missing), error)
            self._lost = frozenset(missing)
            return groups
        _log.warning("Fabric Manager got these partitions again as active: %s", sorted(missing))
        return self._manager.list_groups()

    def _list_steps(self, entries: Iterable[Entry]) -> Iterator[tuple[str, ActivateFabric]]:
        for entry in entries:
            for step in entry.begun if not entry.left_over else ():
                if isinstance(step, ActivateFabric) and (entry.uid, step.key) not in self._ended:
                    yield entry.name, step


def list_inactive(groups: Sequence[Group], steps: Iterable[ActivateFabric]) -> set[int]:
    """The IDs of the steps' partitions that are not active, but for those whose GPUs others have. Pure."""
    taken = {identity for group in groups if group.active for identity in group.identities}
    found = (find_group(groups, step) for step in steps)
    return {one.id for one in found if one is not None and not one.active and taken.isdisjoint(one.identities)}
