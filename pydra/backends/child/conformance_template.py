"""A process that has imported pydra, but no backend, and becomes one of a backend's processes under checks by forking.

    python -m pydra.backends.child.conformance_template FD PARENT

FD is a connected socket for `pydra.testing.forked_processes`. Each request has the target, and the descriptors of the
process's connection, output and errors; it is answered with the process's pid, and once more with how it has ended.
One process runs at a time. Python's imports are most of what a process costs, and each simulated crash takes one.
"""

from __future__ import annotations

import os
import socket
import sys

from pydra.backends.child.conformance_main import serve_observed
from pydra.backends.child.main import set_parent_death_signal

REQUEST_BYTES = 4096


def serve(arguments: list[str]) -> None:
    """Fork for each request until the checks close the connection."""
    fd, parent = arguments
    set_parent_death_signal(int(parent))
    requests = socket.socket(fileno=int(fd))
    template = os.getpid()
    while True:
        target, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 3)
        if not target:
            return
        pid = os.fork()
        if not pid:
            os.setsid()
            requests.send(str(os.getpid()).encode())  # once a signal to its group reaches it
            requests.close()
            _become(target.decode(), descriptors, template)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(target: str, descriptors: list[int], template: int) -> None:
    connection, *output = descriptors
    for stream, descriptor in zip((1, 2), output, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    serve_observed([str(connection), str(template), target])


if __name__ == "__main__":
    serve(sys.argv[1:])
