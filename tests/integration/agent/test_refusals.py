"""A backend's own words for its refusals, from its process to the claim's Event, the log and the metrics."""

from __future__ import annotations

import re

import anyio
import pytest

from pydra.embedded.node import EmbeddedNode, run_node
from pydra.kube.resources import DEVICE_CLASSES, EVENTS, PODS, RESOURCE_CLAIMS
from tests.integration.agent.process import run_agent

DEADLINE = 30.0
DRIVER = "worded.example.com"
BACKEND = ("--backend", "worded:")


async def ask_for(node: EmbeddedNode, device: str) -> None:
    """A claim of this name for the device of this name, and a pod that needs it."""
    expression = f"device.attributes['{DRIVER}'].name == '{device}'"
    request = {
        "name": "board",
        "exactly": {"deviceClassName": "worded", "selectors": [{"cel": {"expression": expression}}]},
    }
    claim = {"metadata": {"name": device}, "spec": {"devices": {"requests": [request]}}}
    await node.client.create(RESOURCE_CLAIMS, claim, namespace="default")
    resources = {"claims": [{"name": "board"}]}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"], "resources": resources}
    spec = {"resourceClaims": [{"name": "board", "resourceClaimName": device}], "containers": [container]}
    await node.client.create(PODS, {"metadata": {"name": device}, "spec": spec}, namespace="default")


async def wait_event(node: EmbeddedNode, claim: str) -> tuple[str, str]:
    """Reason and note of the first Event on this claim."""
    with anyio.fail_after(DEADLINE):
        while True:
            for event in (await node.client.list(EVENTS, namespace="default")).items:
                if (event["regarding"]["kind"], event["regarding"]["name"]) == ("ResourceClaim", claim):
                    return event["reason"], event["note"]
            await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("device", "reason", "note"),
    [
        pytest.param("busy", "BoardBusy", "process 7 holds it", id="of a ClaimError"),
        pytest.param("small", "BoardTooSmall", "8 of 4", id="of a TerminalError"),
        pytest.param("odd", "ClaimFailed", "no word", id="one that is no word"),
    ],
)
async def test_the_reason_of_a_refusal_is_the_backends_own_word(device: str, reason: str, note: str) -> None:
    async with run_node(lambda step: None) as node, run_agent(node, *BACKEND) as agent:
        await agent.wait_ready()
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        await node.client.create(DEVICE_CLASSES, {"metadata": {"name": "worded"}, "spec": {"selectors": [selector]}})
        await ask_for(node, device)
        assert await wait_event(node, device) == (reason, note)
        _, metrics = await agent.get("/metrics")
        assert re.search(rf'operation="prepare",result="{reason}"', metrics)
        assert {line["reason"] for line in agent.lines() if line["message"] == note} == {reason}
