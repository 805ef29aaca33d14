"""The end of a run of `pydra dev`: its pods are deleted, their claims unprepared, and what stays prepared is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import anyio

from pydra_dev.api.kinds import PODS, RESOURCE_CLAIMS
from pydra_dev.command.wait_for_step import LOOK_INTERVAL
from pydra_dev.kubelet.claim_info_cache import ClaimInfo
from pydra_dev.kubelet.observations import Called, Step
from pydra_dev.node import AgentProcess, EmbeddedNode
from pydra_dev.output.descriptions import Paragraph, full_name
from pydra_dev.output.terminal import Progress

_BY_HAND = "what the backend did for it is still configured; undo it by hand"
REFUSALS = 3
"""After so many errors of `unprepare` a claim counts as left prepared."""


class PodDeletion:
    """The end of one node's pods and claims; `follow` must get every step of the kubelet."""

    def __init__(self, node: EmbeddedNode, agent: AgentProcess, say: Callable[[Paragraph], None]) -> None:
        self._node = node
        self._api = node.server.api
        self._agent = agent
        self._say = say
        self._refusals: Counter[str] = Counter()
        self._errors: dict[str, str] = {}

    def follow(self, step: Step) -> None:
        """Remember what `unprepare` failed with."""
        if not isinstance(step, Called) or step.method != "NodeUnprepareResources":
            return
        for claim in step.claims:
            if step.error:
                self._errors[claim] = step.error
                self._refusals[claim] += step.answered

    def delete_pods(self) -> None:
        """Delete all pods of the node, as `kubectl delete` does."""
        for pod in self._api.list(PODS).items:
            if "deletionTimestamp" not in pod["metadata"]:
                self._api.delete_object(PODS, pod)
                self._say(Paragraph(headline=f"deleted: pod {full_name(pod)}"))

    async def run(self, deadline: float) -> bool:
        """Delete the pods and wait until no claim is prepared, at most `deadline` seconds; whether none is."""
        self._refusals.clear()
        left: tuple[ClaimInfo, ...] = ()
        try:
            self.delete_pods()
            with anyio.move_on_after(deadline):
                await self._wait_unprepared()
        finally:
            left, left_over = self._node.find_held(), self._node.find_left_over()
            for info in left:
                self._say(self._describe(info))
            for one in left_over:
                self._say(Paragraph(headline=f"left over: {one}", details=(_BY_HAND,)))
        return not (left or left_over)

    async def _wait_unprepared(self) -> None:
        may_start = True
        progress = Progress(self._say, "the claims are unprepared")
        while self._is_busy():
            progress.look()
            if may_start and self._agent.returncode is not None:
                may_start = False
                await self._agent.start()  # only an agent can undo what one has prepared
            await anyio.sleep(LOOK_INTERVAL)

    def _is_busy(self) -> bool:
        held = self._node.find_held()
        refused = [info for info in held if self._refusals[_name(info)] >= REFUSALS]
        stuck = {uid for info in refused for uid in info.pods}
        pods = [pod for pod in self._api.list(PODS).items if pod["spec"].get("nodeName")]
        return len(refused) < len(held) or any(pod["metadata"]["uid"] not in stuck for pod in pods)

    def _describe(self, info: ClaimInfo) -> Paragraph:
        devices = {device.device for _, device in info.select_devices("")}
        if not devices:  # `prepare` has not answered, or with an error
            claim = self._api.find(RESOURCE_CLAIMS, info.key.name, namespace=info.key.namespace) or {}
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results") or ()
            devices = {result["device"] for result in results}
        place = f" on {', '.join(sorted(devices))}" if devices else ""
        why = self._errors.get(_name(info), "")
        return Paragraph(headline=f"left prepared: claim {_name(info)}{place}", details=(*why.splitlines(), _BY_HAND))


def _name(info: ClaimInfo) -> str:
    return f"{info.key.namespace}/{info.key.name}"
