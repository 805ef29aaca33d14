"""Keeps a backend's process up to date about the claims that the node holds."""

from __future__ import annotations

from collections.abc import Sequence

from pydra.backends.process import BackendProcess
from pydra.backends.wire import build_held
from pydra.claim import HeldClaim


class HeldClaimsSync:
    """The held claims, and which of them the process does not have as they are.

    They are sent before each call, so that the call can rely on them, and when the event loop is next idle, since a
    backend's own tasks may read them.
    """

    def __init__(self) -> None:
        self._claims: dict[str, HeldClaim] = {}
        self.unsent: set[str] = set()
        self.wanted = False
        """Whether the backend reads held claims."""

    def note(self, uid: str, held: HeldClaim | None) -> None:
        """Note that the node holds the claim like this from now on, or does not hold it any more."""
        if held is not None:
            self._claims[uid] = held
        else:
            self._claims.pop(uid, None)
        self.unsent.add(uid)

    def begin(self, *, wanted: bool) -> None:
        """Note that the process is a new one."""
        self.wanted = wanted
        self.unsent = set(self._claims)

    def send_all(self, process: BackendProcess, held: Sequence[HeldClaim]) -> None:
        """Send these claims, and that there are no others."""
        self._claims = {one.claim.uid: one for one in held}
        self.unsent = set(self._claims)
        self.send(process, complete=True)

    def send(self, process: BackendProcess, *, complete: bool = False) -> None:
        """Send what has changed since the last time."""
        unsent, self.unsent = self.unsent, set()
        if self.wanted:
            claims = {uid: self._claims[uid] for uid in sorted(unsent) if uid in self._claims}
            for message in build_held(claims, sorted(unsent - claims.keys()), complete=complete):
                process.send_held(message)
