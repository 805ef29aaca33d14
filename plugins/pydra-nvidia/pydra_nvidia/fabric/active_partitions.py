"""The list that a restarted Fabric Manager gets: the partitions that claims have, by the agent's records.

Started with `FABRIC_MODE_RESTART=1` it answers everything with NOT_CONFIGURED until it has the list of active
partitions, then lets only those use NVLink, and ends without the list after a minute. Started without, it has none.
Source: NVIDIA Fabric Manager User Guide, "Resiliency".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from pydra import ClaimError
from pydra_nvidia.fabric.plan_fabric import find_group
from pydra_nvidia.held_claims import Entry
from pydra_nvidia.nvfm import NOT_CONFIGURED, NOT_SUPPORTED, FabricManager, FabricManagerError, Group
from pydra_nvidia.steps import ActivateFabric

_log = logging.getLogger(__name__)


class RecordsUnread(ClaimError):
    """Fabric Manager asks which partitions are active, and the record of a claim cannot be read."""

    reason = "FabricPartitionsUnknown"


class ActivePartitions:
    """Lists the partitions; `read_held` returns what claims have, as new as the running call. Everything blocks."""

    def __init__(self, manager: FabricManager, read_held: Callable[[], Sequence[Entry]]) -> None:
        self._manager = manager
        self._read_held = read_held
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
        try:
            self._manager.list_groups()
        except FabricManagerError as error:
            return error.code == NOT_CONFIGURED
        return True

    def list_groups(self) -> tuple[Group, ...]:
        """All partitions, after Fabric Manager got the list of active ones, if it does not have it.

        Raises FabricManagerError, DriverMissing, RecordsUnread.
        """
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
        active = sorted({step.partition for step in steps})
        try:
            self._manager.set_active(active)
        except FabricManagerError as refused:
            if refused.code not in (NOT_CONFIGURED, NOT_SUPPORTED):  # else it is starting, and does not wait for it
                _log.warning("Fabric Manager does not take the active partitions %s: %s", active, refused)
            raise waits from refused
        _log.warning("Fabric Manager was restarted, and got the list of active partitions: %s", active)
        groups = self._manager.list_groups()
        wanted = {group.id for step in steps if (group := find_group(groups, step)) is not None}
        if wanted == set(active):
            return groups
        self._manager.set_active(wanted)  # IDs name other GPUs by now
        return self._manager.list_groups()

    def _add_missing(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """What prepared claims have and Fabric Manager does not is added to its list, where it takes that."""
        completed = [entry for entry in self._read_held() if entry.completed]
        missing = list_inactive(groups, self._list_steps(completed))
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

    def _list_steps(self, entries: Iterable[Entry]) -> Iterator[ActivateFabric]:
        for entry in entries:
            for step in entry.begun if not entry.left_over else ():
                if isinstance(step, ActivateFabric) and (entry.uid, step.key) not in self._ended:
                    yield step


def list_inactive(groups: Sequence[Group], steps: Iterable[ActivateFabric]) -> set[int]:
    """The IDs of the steps' partitions that are not active, but for those whose GPUs others have. Pure."""
    taken = {identity for group in groups if group.active for identity in group.identities}
    found = (find_group(groups, step) for step in steps)
    return {one.id for one in found if one is not None and not one.active and taken.isdisjoint(one.identities)}
