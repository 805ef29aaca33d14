"""Run as a process, under strace: claims come and go on one node, and the answers to the kubelet go to a file.

The claims a and b need the same devices, so b is prepared on what a gave back. The record of c is damaged.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydra.errors import PydraError
from tests.integration.claims.node import Node

DEVICES = ("gpu-0", "gpu-1")
DAMAGED = {"records": None, "records/c.json": b'{"checksum":"sha256:'}
CALLS = (("unprepare", "c"), ("prepare", "a"), ("unprepare", "a"), ("prepare", "b"), ("unprepare", "b"))
TRIES = 50


def make_node(root: Path) -> Node:
    """The node, with hardware that remembers, and all claims in the API server."""
    node = Node(root, durable=True, plans=True)
    node.published = {*DEVICES, "gpu-2"}
    node.api.allocate("c", "gpu-2")
    for uid in ("a", "b"):
        node.api.allocate(uid, *DEVICES)
    return node


async def work(root: Path, rounds: int) -> None:
    """Do the calls, each until it succeeds, as the kubelet does."""
    node = make_node(root)
    with (root / "answers").open("a", buffering=1) as answers:
        async with node.running() as agent:
            for what, uid in CALLS * rounds:
                answers.write(f"{what} {uid}\n")
                for _ in range(TRIES):
                    (outcome,) = await (agent.prepare(uid) if what == "prepare" else agent.unprepare(uid))
                    if not isinstance(outcome, PydraError):
                        break
                    answers.write(f"failed {what} {uid}: {outcome}\n")
                else:
                    return
                for file in (node.record_file(uid), node.cdi_file(uid)):
                    assert file.exists() == (what == "prepare"), (what, file)
                answers.write(f"{what}d {uid}\n")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
