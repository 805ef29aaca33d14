"""What nvidia-imex-ctl says: whether the daemon is ready, and what is wrong with the domain. Pure.

Source: NVIDIA's IMEX guide, and answers of `nvidia-imex-ctl -N -j` that third parties show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

READY = "READY"
_WAITS: Mapping[str, str] = {
    "INITIALIZING": "it starts",
    "STARTING_AUTH_SERVER": "it starts its authentication; check the Secret with the certificates",
    "WAITING_FOR_PEERS": "it waits for its peers",
    "WAITING_FOR_RECOVERY": "it waits for the nodes that imported memory before it was restarted",
    "INIT_GPU": "it initializes the GPUs",
    "SHUTTING_DOWN": "it ends",
    "UNAVAILABLE": "it does not answer at its command port",
}
_SHOWN = 5


def judge(said: str) -> str:
    """What the daemon waits for by the answer to `-q`; empty if it is ready. Nothing but the word READY is."""
    word = said.strip()
    if word == READY:
        return ""
    if word in _WAITS:
        return f"nvidia-imex says {word}: {_WAITS[word]}"
    return f'nvidia-imex-ctl says "{" ".join(word.split())[:200]}", and not READY'


def find_problems(said: str, known: Mapping[int, str], own: int) -> str:
    """What is wrong between the nodes `known` by index, by the answer to `-N -j`; empty if nothing, or unclear.

    Every configured name is in the answer, also those that no node has; they are not a problem.
    """
    try:
        nodes = json.loads(said)["nodes"]
        versions = {index: str(nodes[str(index)].get("version", "")) for index in known if str(index) in nodes}
        links = nodes[str(own)].get("connections") or {}
        states = {index: str(links[str(index)].get("status", "")) for index in known if str(index) in links}
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    mine = versions.get(own, "")
    problems = [
        f"{known[index]} has driver {version}, and this node {mine}"
        for index, version in versions.items()
        if index != own and version and mine and version != mine and states.get(index) != "INVALID"
    ]
    problems += [
        f"{known[index]} is {status}" for index, status in states.items() if index != own and status != "CONNECTED"
    ]
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
