"""nvidia-persistenced, which keeps GPUs ready by having their device nodes open: asked about them, and to release one.

NVML speaks to it too, but only at its path below this process's own root, where a container does not have it; then NVML
says that the mode is off, and cannot switch it off. The daemon's directory should not be mounted: it goes and comes
with the daemon. So it is reached by its socket below the driver's root, or the host's.
Source: RFC 5531 and 4506; NVIDIA/nvidia-persistenced, nvpd_rpc.h and command_server.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import socket
import struct
from collections.abc import Callable, Iterator
from typing import IO

from pydra import ClaimError
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot
from pydra_nvidia.host.file_search import is_socket
from pydra_nvidia.host.rooted_paths import below, resolve
from pydra_pci import Tree

SOCKET = "nvidia-persistenced/socket"
FOLDERS = ("/run", "/var/run")
_PROGRAM, _VERSION, _SET, _GET = 35006, 1, 1, 2
_UNKNOWN_GPU = 2
_WORDS = {
    3: "the driver refused",
    7: "it obeys root only",
    10: "the GPU's memory, which the system uses, can be taken neither from it nor back",
}
_ADDRESS = re.compile(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])")
_MOST = 4096
"""Bytes of an answer: none has more than 32."""


class PersistenceFailed(ClaimError):
    """nvidia-persistenced runs, and does not do what it was asked."""

    reason = "PersistenceDaemonFailed"


class Persistenced:
    """`find_root` finds the driver's installation again; `seconds` is what an answer may take. Its functions block."""

    def __init__(self, tree: Tree, find_root: Callable[[], DriverRoot], *, seconds: float = 10.0) -> None:
        self._tree = tree
        self._find_root = find_root
        self._seconds = seconds

    def keeps(self, address: str) -> bool:
        """Whether it keeps the GPU; not where no daemon runs. Raises PersistenceFailed."""
        answer = self._call(_GET, _pack_address(address))
        return answer is not None and answer[1:] == (1,)

    def keep(self, address: str, *, on: bool) -> bool:
        """Let it keep or release the GPU; whether it runs and knows the GPU. Raises PersistenceFailed."""
        return self._call(_SET, _pack_address(address) + struct.pack("!i", int(on))) is not None

    def _call(self, procedure: int, arguments: bytes) -> tuple[int, ...] | None:
        """The words of its answer, the first of which is 0; None where nobody answers, or for a GPU it never saw."""
        for path in self._sockets():
            try:
                words = _exchange(path, procedure, arguments, self._seconds)
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # left over
            except (OSError, ValueError, struct.error) as error:
                why = "does not answer" if isinstance(error, TimeoutError) else f"answers wrongly: {error}"
                raise PersistenceFailed(
                    f"nvidia-persistenced at {path} {why}; the admin can restart it, or stop it on this node"
                ) from error
            if words[0] == _UNKNOWN_GPU:
                return None
            if words[0] != 0:
                word = _WORDS.get(words[0], f"it says {words[0]}")
                raise PersistenceFailed(
                    f"nvidia-persistenced at {path} did not change the persistence mode of the GPU: {word} (see its"
                    " messages in the system's log)"
                )
            return words
        return None

    def _sockets(self) -> Iterator[str]:
        """Of those that may run: in a driver container, on the host."""
        roots = [self._tree.roots.host]
        with contextlib.suppress(DriverMissing):
            roots.insert(0, self._find_root().here)
        for root in dict.fromkeys(roots):
            for folder in FOLDERS:
                found = resolve(root, posixpath.join(folder, SOCKET))
                if found is not None and is_socket(below(root, found)):
                    yield below(root, found)
                    break


def _exchange(path: str, procedure: int, arguments: bytes, seconds: float) -> tuple[int, ...]:
    """One call; the words of its result. Raises OSError, ValueError, struct.error."""
    number = int.from_bytes(os.urandom(4))
    call = struct.pack("!10I", number, 0, 2, _PROGRAM, _VERSION, procedure, 0, 0, 0, 0) + arguments
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(seconds)
        _connect(peer, path)
        peer.sendall(struct.pack("!I", 1 << 31 | len(call)) + call)
        with peer.makefile("rb") as stream:
            reply = _receive_record(stream)
    found, kind, status, _, size = struct.unpack_from("!5I", reply)
    after = 20 + (size + 3) // 4 * 4
    (accepted,) = struct.unpack_from("!I", reply, after) if (kind, status) == (1, 0) else (status,)
    if (found, kind, status, accepted) != (number, 1, 0, 0):
        raise ValueError(f"the call was not accepted ({kind}, {status}, {accepted})")
    words = struct.unpack(f"!{(len(reply) - after - 4) // 4}i", reply[after + 4 :])
    if len(words) < (2 if procedure == _GET and words[:1] == (0,) else 1):
        raise ValueError("the answer is too short")
    return words


def _connect(peer: socket.socket, path: str) -> None:
    """By its directory's descriptor: the path of a socket has 107 bytes at most."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        peer.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def _receive_record(stream: IO[bytes]) -> bytes:
    """All fragments of a record. Source: RFC 5531, section 11."""
    record, is_last = b"", False
    while not is_last:
        (head,) = struct.unpack("!I", _receive(stream, 4))
        is_last, size = bool(head >> 31), head & 0x7FFFFFFF
        if len(record) + size > _MOST:
            raise ValueError(f"an answer of {len(record) + size} bytes")
        record += _receive(stream, size)
    return record


def _receive(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return data


def _pack_address(address: str) -> bytes:
    match = _ADDRESS.fullmatch(address.lower())
    if match is None:
        raise PersistenceFailed(f"{address!r} is not a PCI address such as 0000:53:00.0")
    return struct.pack("!4i", *(int(part, 16) for part in match.groups()))
