"""Speaks to the agent in place of the process that imports it; IMPOSTOR says what."""

from __future__ import annotations

import os
import socket
import sys
import time

import msgspec

MESSAGES = {
    "a refusal without end": {
        "type": "refusal",
        "final": True,
        "fault": {"kind": "contract", "problems": ["x" * 10000] * 1000},
    },
    "a driver that is a path": {
        "type": "hello",
        "driver": "../../../tmp/x",
        "methods": ["discover", "prepare", "unprepare"],
    },
}
frame = msgspec.msgpack.encode(MESSAGES[os.environ["IMPOSTOR"]])
connection = socket.socket(fileno=int(sys.orig_argv[sys.orig_argv.index("pydra.backends.child.main") + 1]))
connection.setblocking(True)
connection.sendall(len(frame).to_bytes(4, "big") + frame)
time.sleep(3600)
