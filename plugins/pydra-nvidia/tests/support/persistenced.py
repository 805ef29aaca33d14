"""A daemon as nvidia-persistenced: on its socket below a root, with its protocol, and with the GPUs' nodes open."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUCCESS, UNKNOWN_GPU = 0, 2


class Daemon:
    """`kept` says of each GPU that it knows whether it keeps it. `changed` gets each change, before the answer.

    `status` is what it says to each change, `raw` the bytes that it sends instead of any answer; `silent` sends none.
    """

    def __init__(self, kept: dict[str, bool], changed: Callable[[str, bool], None]) -> None:
        self.kept = kept
        self.changed = changed
        self.status = SUCCESS
        self.raw: bytes | None = None
        self.pieces = 1 << 20
        self.silent = False
        self.calls: list[tuple[int, str]] = []

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                (head,) = struct.unpack("!I", peer.recv(4, socket.MSG_WAITALL))
                call = peer.recv(head & 0x7FFFFFFF, socket.MSG_WAITALL)
                if self.silent:
                    peer.recv(1)  # until the other side goes
                elif self.raw is not None:
                    peer.sendall(self.raw)
                else:
                    self._send(peer, self._answer(call))

    def _answer(self, call: bytes) -> bytes:
        number, kind, version, program, program_version, procedure = struct.unpack_from("!6I", call)
        assert (kind, version, program, program_version) == (0, 2, 35006, 1)
        domain, bus, slot, function = struct.unpack_from("!4i", call, 40)
        address = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
        self.calls.append((procedure, address))
        accepted = struct.pack("!6I", number, 1, 0, 0, 0, 0)
        if address not in self.kept:
            return accepted + struct.pack("!i", UNKNOWN_GPU)
        if procedure == 2:
            return accepted + struct.pack("!2i", SUCCESS, self.kept[address])
        (on,) = struct.unpack_from("!i", call, 56)
        if self.status == SUCCESS and self.kept[address] != bool(on):
            self.kept[address] = bool(on)
            self.changed(address, bool(on))
        return accepted + struct.pack("!i", self.status)

    def _send(self, peer: socket.socket, answer: bytes) -> None:
        parts = [answer[start : start + self.pieces] for start in range(0, len(answer), self.pieces)]
        for number, part in enumerate(parts, 1):
            last = 1 << 31 if number == len(parts) else 0
            peer.sendall(struct.pack("!I", last | len(part)) + part)


@contextmanager
def run_persistenced(
    root: Path, *gpus: str, changed: Callable[[str, bool], None] = lambda _address, _on: None
) -> Iterator[Daemon]:
    """One that keeps these GPUs, reached below `root`."""
    folder = root / "run/nvidia-persistenced"
    folder.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(dict.fromkeys(gpus, True), changed)
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(folder, os.O_PATH)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / "socket")
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        listener.listen()
        thread = threading.Thread(target=daemon.serve, args=(listener,), daemon=True)
        thread.start()
        yield daemon
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
