"""A ComputeDomain from its creation to its end on several nodes, as `pydra dev` shows it, with all parts as processes.

Each node has its own agent and kubelet; the controller and the daemons run for real, with a simulated nvidia-imex.
`pydra dev` itself fails when a step does not happen, or when anything is left at the end.
"""

from __future__ import annotations

import re

import pytest

from pydra_dev.command.dev_command import DevCommand, run_until_signal
from pydra_dev.command.options import Options

LOST = r"lost: node-2 has no power"
DELETED = r"Deleting=False, WaitingForPods: deleted when the pods that use it have ended: default/sample-1, "
CLEAN = r"clean: no pod, claim, object or label, and no CDI spec on a node is left"
DOMAIN = (
    r"ComputeDomain default/sample: Ready=False, NoNodes: no pod with a channel of this domain",
    r"node-\d, compute-domain-daemon: nvidia-imex: knows the addresses of 2 nodes",
    r"ComputeDomain default/sample: Ready=True, NodesReady: all 2 nodes are ready",
    LOST,
    r"Ready=True, NodesReady: all 1 nodes are ready",
    r"node-3, compute-domain-daemon: nvidia-imex: knows the addresses of 2 nodes",
    r"Ready=True, NodesReady: all 2 nodes are ready",
    DELETED,
    CLEAN,
)
PODS = (
    r"\+ device +/dev/nvidia-caps-imex-channels/channel0 ",
    r"node-\d: running: pod default/sample-\d",
    LOST,
    r"node-3: running: pod default/sample-3",
    DELETED,
    CLEAN,
)


@pytest.mark.timeout(600)
async def test_a_domain_from_its_creation_to_its_end_on_two_nodes() -> None:
    said: list[str] = []
    options = Options(backend="nvidia-compute-domain", scenario="gb200", nodes=2, once=True, deadline=200.0)
    code = await run_until_signal(DevCommand(options, write=said.append))
    printed = "\n".join(said)
    assert code == 0, printed
    # A pod may run before the domain's status says that its node is ready, or after it.
    for story in (DOMAIN, PODS):
        rest = printed
        for line in story:  # in this order
            found = re.search(line, rest)
            assert found is not None, f"{line!r} is missing in\n{rest}"
            rest = rest[found.end() :]
