"""Who killed the backend, who may call it, and which claims are not let near it again.

Pure bookkeeping, no clock and no await. When a process ends with one call in flight, that call did
it. With several, each becomes a suspect and is tried again alone, so that the guilty one shows
itself and the others succeed. `wait_changed`, always in flight, is never suspected.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import msgspec

from pydra.backends.diagnosis import Cause, Ending, Flight
from pydra.backends.wire import Method
from pydra.claim import Claim

MAX_CLAIMS = 1024
"""Claims whose offences are remembered; the oldest are forgotten first."""


class Verdict(Enum):
    """What becomes of a call that was in flight when the process ended."""

    GUILTY = "guilty"
    """It fails: it ended the process."""
    SUSPECT = "suspect"
    """It is called again, alone."""
    BYSTANDER = "bystander"
    """It is called again: another call is known to be guilty."""


class Condemned(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is kept from a claim which killed the backend `strikes` times; `line` is the last diagnosis."""

    pool: str
    device: str
    uid: str
    claim: str
    strikes: int
    line: str

    def explain(self, backend: str) -> str:
        """For the claim's author."""
        return (
            f"claim {self.claim} (uid {self.uid}) ended the process of backend {backend} {self.strikes} times and is "
            f"not tried again; the last time {self.line}. Delete the claim, or have the backend upgraded"
        )


class _Offence(msgspec.Struct, kw_only=True):
    claim: Claim
    strikes: int = 0
    line: str = ""


def judge(ending: Ending) -> dict[int, Verdict]:
    """The verdict on each call in flight, by its id; none for `wait_changed`."""
    flights = [flight for flight in ending.flights if flight.method is not Method.WAIT_CHANGED]
    if ending.cause is Cause.WEDGED and ending.culprit is not None:
        return {flight.id: Verdict.GUILTY if flight.id == ending.culprit else Verdict.BYSTANDER for flight in flights}
    if len(flights) == 1:
        return {flights[0].id: Verdict.GUILTY}
    return {flight.id: Verdict.SUSPECT for flight in sorted(flights, key=_order)}


def _order(flight: Flight) -> tuple[bool, int]:
    return (not flight.uid, flight.id)  # claims wait for nobody's telemetry


class Court:
    """Remembers offences by claim uid and coroutine, and the suspects that still have to be tried.

    What a claim did in `prepare` is not held against its `unprepare`: undoing must stay possible.
    """

    def __init__(self, strikes: int) -> None:
        self._limit = strikes
        self._offences: OrderedDict[tuple[str, Method], _Offence] = OrderedDict()
        self._suspects: OrderedDict[int, None] = OrderedDict()
        self._distrusted: OrderedDict[tuple[str, Method], None] = OrderedDict()

    def hear(self, ending: Ending) -> dict[int, Verdict]:
        """Judge the calls in flight; suspects are now queued to be tried, each alone."""
        verdicts = judge(ending)
        calls = {flight.id: flight for flight in ending.flights}
        for call_id, verdict in verdicts.items():
            if verdict is Verdict.SUSPECT:
                self._suspects[call_id] = None
                if calls[call_id].uid:
                    self._distrusted[calls[call_id].uid, calls[call_id].method] = None
        while len(self._distrusted) > MAX_CLAIMS:
            self._distrusted.popitem(last=False)
        return verdicts

    def admit(self, call_id: int, claim: Claim, method: Method) -> None:
        """A new call: tried alone when its claim is suspected or guilty, however long ago its last call ended.

        A call that hangs may take its own time and that of all others in flight; without this nobody would ever be
        left to be tried, and the same claims would meet again and again.
        """
        if (claim.uid, method) in self._distrusted or (claim.uid, method) in self._offences:
            self._suspects[call_id] = None

    def trust(self, claim: Claim, method: Method) -> None:
        """The process survived a call of this claim."""
        self._distrusted.pop((claim.uid, method), None)

    def may_call(self, call_id: int, *, busy: bool = False) -> bool:
        """Whether this call may go now: while there are suspects, only the first, and when no other call is `busy`."""
        if not self._suspects:
            return True
        return not busy and next(iter(self._suspects)) == call_id

    @property
    def in_session(self) -> bool:
        """Whether suspects are being tried."""
        return bool(self._suspects)

    def dismiss(self, call_id: int) -> None:
        """The call is over, whatever came of it: the next suspect may go."""
        self._suspects.pop(call_id, None)

    def convict(self, claim: Claim, method: Method, line: str) -> bool:
        """Note that the claim ended the process. True when it is now condemned."""
        offence = self._offences.setdefault((claim.uid, method), _Offence(claim=claim))
        offence.claim, offence.line = claim, line
        offence.strikes += 1
        self._distrusted.pop((claim.uid, method), None)
        self._offences.move_to_end((claim.uid, method))
        while len(self._offences) > MAX_CLAIMS:
            self._offences.popitem(last=False)
        return offence.strikes >= self._limit

    def acquit(self, claim: Claim, method: Method) -> None:
        """The call succeeded. A sentence for `prepare` outlives `unprepare`, by which failures are undone as well."""
        self.trust(claim, method)
        self._offences.pop((claim.uid, method), None)

    def sentence(self, claim: Claim, method: Method) -> Condemned | None:
        """Why this claim is not let near the backend for this coroutine, or None."""
        offence = self._offences.get((claim.uid, method))
        if offence is None or offence.strikes < self._limit:
            return None
        return _condemn(offence)[0]

    def condemned(self) -> tuple[Condemned, ...]:
        """The devices of condemned claims, until the claim is pardoned: nobody else should meet what it left there."""
        guilty = (one for one in self._offences.values() if one.strikes >= self._limit)
        devices = {(entry.pool, entry.device, entry.uid): entry for one in guilty for entry in _condemn(one)}
        return tuple(devices[key] for key in sorted(devices))

    def pardon(self, uid: str) -> bool:
        """Forget a claim: it no longer exists. True when its devices are free of it now."""
        freed = any(one.uid == uid for one in self.condemned())
        for method in Method:
            self._offences.pop((uid, method), None)
            self._distrusted.pop((uid, method), None)
        return freed

    def amnesty(self) -> None:
        """Forget every claim: the backend is another one."""
        self._offences.clear()
        self._distrusted.clear()


def _condemn(offence: _Offence) -> list[Condemned]:
    claim = offence.claim
    return [
        Condemned(
            pool=device.pool,
            device=device.device,
            uid=claim.uid,
            claim=f"{claim.namespace}/{claim.name}",
            strikes=offence.strikes,
            line=offence.line,
        )
        for device in claim.devices
    ]
