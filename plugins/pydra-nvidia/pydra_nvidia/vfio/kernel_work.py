"""What the kernel is told to do with a function, for a limited time: it may wait for a user of the device without end.

Such a wait cannot be interrupted. It goes on in a thread of its own, and nothing else is begun with the function then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pydra_nvidia.deadlines import left
from pydra_nvidia.steps import LeftBehind

LIMIT = 15.0
"""Seconds that taking a function from a driver and giving it to another may take."""

_LEAST = 1.0


class KernelWaits(LeftBehind):
    """The kernel has not answered: the function is as it was, or half-way, or will be what was asked for."""

    reason = "KernelWaits"


class KernelWork:
    """One work at a time with each function, by its address."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._running: dict[str, threading.Thread] = {}

    def require_none(self, address: str) -> None:
        """Raises KernelWaits while earlier work with the function goes on."""
        with self._lock:
            running = self._running.get(address)
        if running is not None and running.is_alive():
            raise KernelWaits(
                f"the kernel is still at work with {address}, which it was told before; a process may have the device"
                " open whom nobody sees, or the driver hangs, for which the node has to be rebooted"
            )

    def run(self, address: str, work: Callable[[], None]) -> None:
        """Do the work and raise what it raises. Blocks. Raises KernelWaits when it takes too long, and goes on."""
        self.require_none(address)
        problems: list[BaseException] = []

        def do() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by who waits
                problems.append(error)

        thread = threading.Thread(target=do, name=f"kernel {address}", daemon=True)
        with self._lock:
            self._running[address] = thread
        thread.start()
        limit = min(self._limit, max(_LEAST, left(self._limit)))
        thread.join(limit)
        if thread.is_alive():
            raise KernelWaits(
                f"the kernel has not moved {address} from one driver to another after {limit:.3g} s; it waits on,"
                " probably for a process that has the device open"
            )
        if problems:
            raise problems[0]
