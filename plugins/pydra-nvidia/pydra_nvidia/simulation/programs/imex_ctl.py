"""nvidia-imex-ctl, as far as backends run it: whether an IMEX daemon is ready.

Where the simulated nvidia-imex has a list of nodes beside its configuration, that is asked. Otherwise no daemon runs:
one is there where its configuration is, or its socket, and its state is the text in `/run/nvidia-imex/status` of the
simulated host, READY by default. Source: IMEX guide, "IMEX Service Command Service".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

STATUS = "run/nvidia-imex/status"


def main(facts: Mapping[str, str], arguments: Sequence[str] | None = None) -> int:
    """`-q -c FILE`, or `-q --u=SOCKET`; returns the program's status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    place = given[given.index("-c") + 1] if "-c" in given[:-1] else ""
    for one in given:
        if one.startswith("--u="):
            place = one.removeprefix("--u=")
    if "-q" not in given or not place:
        sys.stderr.write("usage: nvidia-imex-ctl -q (-c FILE | --u=SOCKET)\n")
        return 2
    if not os.path.exists(place):
        sys.stderr.write(f"Failed to connect to IMEX daemon: {place}: no such file\n")
        return 1
    if "-c" in given and os.path.exists(os.path.join(os.path.dirname(place), "nodes.cfg")):
        from pydra_nvidia.simulation.programs.imex import run_control  # noqa: PLC0415 - slow, and rarely needed

        return run_control(given)
    try:
        with open(os.path.join(facts["tree"], STATUS), encoding="utf-8") as file:
            sys.stdout.write(file.read())
    except FileNotFoundError:
        sys.stdout.write("READY\n")
    return 0
