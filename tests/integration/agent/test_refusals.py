"""What is refused, in words where somebody looks: by a backend, with words of its own, and by an unfit cluster."""

from __future__ import annotations

import anyio

from pydra.kube.api_resources import EVENTS
from pydra_dev.node import EmbeddedNode, run_node
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import run_agent

DEADLINE = 90.0
DRIVER = "worded.example.com"
BACKEND = ("--backend", "worded:")


async def ask_for(user: NodeUser, device: str) -> None:
    """A claim of this name for the device of this name, and a pod that needs it."""
    expression = f"device.attributes['{DRIVER}'].name == '{device}'"
    exactly = {"deviceClassName": "worded", "selectors": [{"cel": {"expression": expression}}]}
    await user.create_both(device, {"name": "board", "exactly": exactly})


async def wait_event(node: EmbeddedNode, kind: str, name: str, reason: str = "") -> tuple[str, str]:
    """Reason and note of the first Event on this object, of those with this reason if there is one."""
    with anyio.fail_after(DEADLINE):
        while True:
            for event in (await node.client.list(EVENTS, namespace="default")).items:
                regarding = event["regarding"]["kind"], event["regarding"]["name"]
                if regarding == (kind, name) and reason in ("", event["reason"]):
                    return event["reason"], event["note"]
            await anyio.sleep(0.2)  # the API server is in this process


WORDS = {
    "busy": ("BoardBusy", "process 7 holds it"),  # of a ClaimError
    "small": ("BoardTooSmall", "8 of 4"),  # of a TerminalError
    "odd": ("ClaimFailed", "no word"),  # one that is not a valid reason
}


async def test_the_reason_of_a_refusal_is_the_backends_own_word() -> None:
    uid = ("--pod-uid", "uid-1")
    async with run_node(lambda step: None) as node, run_agent(node, *BACKEND, *uid) as agent:
        await agent.wait_ready()
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        user = NodeUser(node, [])
        await user.create_classes({"worded": {"selectors": [selector]}})
        for device in WORDS:
            await ask_for(user, device)
        for device, (reason, note) in WORDS.items():
            assert await wait_event(node, "ResourceClaim", device) == (reason, note)
            await agent.wait_metric(rf'operation="prepare",result="{reason}"')
            assert {line["reason"] for line in agent.lines() if line["message"] == note} == {reason}
        # The chart's policy allows an agent no others.
        found = (await node.client.list(EVENTS, namespace="default")).items
        own = [one for one in found if one["regarding"]["kind"] == "ResourceClaim"]
        reporters = {(one["reportingController"], one["reportingInstance"]) for one in own}
        assert reporters == {("pydra-agent", "pydra-agent-uid-1")}


async def test_a_cluster_that_is_too_old_is_reported_on_its_node_and_not_called_ready() -> None:
    version = "1.33.4"
    async with run_node(lambda step: None, version=version) as node, run_agent(node, *BACKEND) as agent:
        words = f"this cluster runs Kubernetes v{version}+pydra-embedded; pydra needs 1.34 or later"
        _, note = await wait_event(node, "Node", node.settings.node_name, "ClusterUnsupported")
        assert words in note
        assert words in await agent.wait_ready(503)
        await agent.wait_metric("^pydra_cluster_unsupported 1.0$")
        assert "Traceback" not in agent.messages()
        assert await agent.stop() == 0


async def test_partitions_of_a_cluster_without_their_gate_are_not_published_and_the_node_gets_an_event() -> None:
    gates = {"DRAPartitionableDevices": False}
    scenario = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_DYNAMIC_MIG": "true"}
    async with run_node(lambda step: None, gates=gates) as node:
        environ = {**scenario, "PYDRA_NVIDIA_STATE": f"{node.root}/nvidia"}
        async with run_agent(node, "--backend", "nvidia", environ=environ) as agent:
            reason, note = await wait_event(node, "Node", node.settings.node_name)
            assert reason == "FieldsDropped"
            assert "DRAPartitionableDevices" in note
            assert "on by default from Kubernetes 1.36" in note
            assert list(await NodeUser(node, []).devices()) == [f"gpu-{number}" for number in range(8)]
            await agent.wait_metric(r'^pydra_devices_withheld\{driver="gpu.nvidia.com"\} 200.0$')
            assert await agent.stop() == 0


async def test_a_backend_that_cannot_be_imported_or_has_no_name_is_reported_and_stops_no_other() -> None:
    async with (
        run_node(lambda step: None) as node,
        run_agent(node, "--backend", "needy:", "--backend", "hasty:", "--backend", "worded:") as agent,
    ):
        _, note = await wait_event(node, "Node", node.settings.node_name, "BackendContract")
        words = "needy cannot be loaded: ModuleNotFoundError: No module named 'vendor_sdk_of_nobody'"
        assert words in note
        assert "backends/needy.py:5" in note
        assert "it needs the module vendor_sdk_of_nobody: install what provides it" in note
        nameless = "backend hasty has no driver name of its own"
        _, told = await wait_event(node, "Node", node.settings.node_name, "BackendNotServed")
        assert told.startswith(nameless)
        assert "--driver hasty:=NAME" in told
        unready = await agent.wait_ready(503)
        assert words in unready
        assert nameless in unready
        await agent.wait_log(lambda text: words in text and "is published" in text)
        assert "Traceback" not in agent.log.read_text(), "which `pydra check`, and the log at debug, are for"
        assert await agent.stop() == 0
