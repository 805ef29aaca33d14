"""The embedded controllers: from a pod that asks to a claim that is allocated, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from pydra_dev.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from pydra_dev.apiserver.server import ApiServer
from pydra_dev.apiserver.verbs import Api
from pydra_dev.control_plane import serve_control_plane

JsonObject = dict[str, Any]
DRIVER = "gpu.example.com"


class World:
    """A control plane with one node, two devices, one class and one template."""

    def __init__(self, server: ApiServer) -> None:
        self.api: Api = server.api
        self.api.create(NODES, {"metadata": {"name": "n1"}})
        self.api.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
        request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
        template = {"metadata": {"labels": {"from": "template"}}, "spec": {"devices": {"requests": [request]}}}
        self.api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t"}, "spec": template}, namespace="default")

    def publish(self, *devices: JsonObject, driver: str = DRIVER, node: str = "n1", name: str = "slice") -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": self.api.get(NODES, node)["metadata"]["uid"]}
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
        self.api.create(RESOURCE_SLICES, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec})

    def add_claim(self, name: str = "claim", request: JsonObject | None = None) -> None:
        spec = {"devices": {"requests": [{"name": "r", **(request or {"exactly": {"deviceClassName": "gpu"}})}]}}
        self.api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    def add_pod(self, name: str, *, claim: str = "", **spec: Any) -> None:
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "t"}
        body = {"containers": [{"name": "c", "image": "i:1"}], "resourceClaims": [{"name": "gpu", **source}], **spec}
        self.api.create(PODS, {"metadata": {"name": name}, "spec": body}, namespace="default")

    def pod(self, name: str) -> JsonObject | None:
        return self.api.find(PODS, name, namespace="default")

    def claims(self) -> list[JsonObject]:
        return list(self.api.list(RESOURCE_CLAIMS).items)

    def finish(self, name: str) -> None:
        """What a kubelet does for a pod that is done."""
        pod = self.api.get(PODS, name, namespace="default")
        body = {**pod, "status": {**pod["status"], "phase": "Succeeded"}}
        self.api.update(PODS, name, body, namespace="default", subresource="status")

    def node_of(self, name: str) -> str:
        pod = self.pod(name)
        return str(pod["spec"].get("nodeName", "")) if pod is not None else ""

    def refusal(self, name: str) -> str:
        """Why the pod is not scheduled, as its condition says."""
        pod = self.pod(name) or {"status": {}}
        conditions = {one["type"]: one for one in pod["status"].get("conditions") or ()}
        return str(conditions.get("PodScheduled", {}).get("message", ""))

    def events(self, name: str) -> list[str]:
        """What Events say of the pod."""
        found = self.api.list(EVENTS).items
        return [str(one["message"]) for one in found if one["involvedObject"]["name"] == name]

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(30):
            await self.api.store.wait(condition)


@asynccontextmanager
async def a_world(**options: Any) -> AsyncIterator[World]:
    async with serve_control_plane(**options) as server:
        yield World(server)


async def test_a_pod_with_a_template_gets_a_claim_a_device_and_a_node() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("pod")
        await world.until(lambda: world.node_of("pod") == "n1")
        (claim,) = world.claims()
        metadata, status = claim["metadata"], claim["status"]
        assert metadata["name"].startswith("pod-gpu-")
        assert metadata["labels"] == {"from": "template"}
        assert metadata["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
        assert metadata["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert status["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
        pod = world.api.get(PODS, "pod", namespace="default")
        assert status["reservedFor"] == [{"resource": "pods", "name": "pod", "uid": pod["metadata"]["uid"]}]
        assert pod["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": metadata["name"]}]
        assert metadata["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]


async def test_a_generated_claim_that_was_deleted_is_made_again() -> None:
    async with a_world() as world:
        world.add_pod("pod")
        await world.until(lambda: world.claims() and world.refusal("pod"))
        (first,) = world.claims()
        world.api.delete_object(RESOURCE_CLAIMS, first)
        world.publish({"name": "gpu-0"})
        await world.until(lambda: world.node_of("pod"))
        (second,) = world.claims()
        assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_pod_that_names_its_node_gets_its_reservation_once_the_claim_is_allocated() -> None:
    async with a_world() as world:
        world.add_claim()
        world.add_pod("bound", claim="claim", nodeName="n1")
        world.publish({"name": "gpu-0"})
        world.add_pod("first", claim="claim")
        await world.until(lambda: len(world.claims()[0]["status"].get("reservedFor") or ()) == 2)
        assert {one["name"] for one in world.claims()[0]["status"]["reservedFor"]} == {"bound", "first"}


async def test_an_event_says_why_a_claim_cannot_be_made_from_its_template() -> None:
    def said() -> list[str]:
        events = world.api.list(EVENTS).items
        return [one["message"] for one in events if one["reason"] == "FailedResourceClaimCreation"]

    async with a_world() as world:
        world.api.delete(RESOURCE_CLAIM_TEMPLATES, "t", namespace="default")
        world.add_pod("pod")
        await world.until(lambda: world.refusal("pod"))
        world.add_claim()  # another write, after which the controllers look again
        world.add_pod("other", claim="claim")
        await world.until(lambda: world.refusal("other"))
        assert said() == ['PodResourceClaim gpu: resourceclaimtemplates.resource.k8s.io "t" not found']


async def test_the_controllers_rest_when_nothing_is_left_to_do() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("first")
        world.add_pod("second")
        await world.until(lambda: world.node_of("first") and world.refusal("second"))
        with anyio.move_on_after(0.1):
            await anyio.sleep_forever()
        version = world.api.store.version
        with anyio.move_on_after(0.1):
            await anyio.sleep_forever()
        assert world.api.store.version == version


async def test_a_pod_that_finds_no_device_says_why_and_waits_for_one() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("first")
        await world.until(lambda: world.node_of("first"))
        world.add_pod("second")
        await world.until(
            lambda: "wants 1 device of class gpu, of 1 that match 0 are available (1 in use)" in world.refusal("second")
        )
        await world.until(lambda: any(event["reason"] == "FailedScheduling" for event in world.api.list(EVENTS).items))
        world.finish("first")
        await world.until(lambda: world.node_of("second") == "n1")


async def test_a_selector_that_fails_for_a_device_of_one_node_keeps_the_pod_from_all() -> None:
    async with a_world() as world:
        world.api.create(NODES, {"metadata": {"name": "n2"}})
        world.publish({"name": "old"})
        world.publish({"name": "new", "attributes": {"big": {"bool": True}}}, node="n2", name="other")
        selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].big"}}
        world.add_claim(request={"exactly": {"deviceClassName": "gpu", "selectors": [selector]}})
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.refusal("pod") or world.node_of("pod"))
        assert world.refusal("pod").startswith('running "DynamicResources" filter plugin: claim default/claim')
        assert "no such key" in world.refusal("pod")


@pytest.mark.parametrize(("version", "node"), [("1.34", "n1"), ("1.36", "n2")])
async def test_a_pod_goes_to_the_node_that_has_the_earlier_alternative(version: str, node: str) -> None:
    async with a_world(version=version) as world:
        world.api.create(NODES, {"metadata": {"name": "n2"}})
        world.publish({"name": "small", "attributes": {"big": {"bool": False}}})
        world.publish({"name": "large", "attributes": {"big": {"bool": True}}}, node="n2", name="other")
        selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].big"}}
        wishes: list[JsonObject] = [{"name": "big", "selectors": [selector]}, {"name": "any"}]
        world.add_claim(request={"firstAvailable": [{"deviceClassName": "gpu", **wish} for wish in wishes]})
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.refusal("pod") or world.node_of("pod"))
        assert world.node_of("pod") == node


async def test_pods_of_the_same_second_are_scheduled_in_the_order_in_which_they_were_created() -> None:
    async with a_world() as world:
        for name in ("z", "a", "m"):
            world.add_pod(name)
        world.publish({"name": "d1"}, {"name": "d2"})
        await world.until(lambda: bool(world.node_of("z") and world.node_of("a") and world.refusal("m")))
        assert not world.node_of("m")


async def test_a_generated_claim_goes_with_its_pod() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("pod")
        await world.until(lambda: world.node_of("pod"))
        world.api.delete(PODS, "pod", {"gracePeriodSeconds": 0}, namespace="default")
        await world.until(lambda: world.claims() == [])


async def test_a_claim_of_one_s_own_is_given_back_and_stays() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_claim()
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.node_of("pod"))
        world.finish("pod")
        await world.until(lambda: not world.claims()[0]["status"])
        await world.until(lambda: "finalizers" not in world.claims()[0]["metadata"])


async def test_pods_may_share_a_claim_and_the_last_one_gives_it_back() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_claim()
        for name in ("first", "second"):
            world.add_pod(name, claim="claim")
        await world.until(lambda: world.node_of("first") and world.node_of("second"))
        assert len(world.claims()[0]["status"]["reservedFor"]) == 2
        world.finish("first")
        await world.until(lambda: len(world.claims()[0]["status"]["reservedFor"]) == 1)
        assert world.claims()[0]["status"]["allocation"]


async def test_a_claim_that_is_in_use_is_deleted_only_when_it_is_given_back() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_claim()
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.node_of("pod"))
        world.api.delete(RESOURCE_CLAIMS, "claim", namespace="default")
        assert "deletionTimestamp" in world.claims()[0]["metadata"]
        world.finish("pod")
        await world.until(lambda: world.claims() == [])


async def test_a_selector_that_cannot_be_evaluated_is_told_to_the_pod() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].none'}}
        world.api.patch(
            DEVICE_CLASSES, "gpu", {"spec": {"selectors": [selector]}}, content_type="application/merge-patch+json"
        )
        world.add_pod("pod")
        why = "class gpu: selector #0: CEL runtime error: no such key: none of domain gpu.example.com (device gpu"
        await world.until(lambda: why in world.refusal("pod"))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"claim": "none"}, 'resourceclaim "none" not found', id="no claim"),
        pytest.param({"nodeSelector": {"zone": "b"}}, "didn't match Pod's node affinity/selector", id="node selector"),
        pytest.param(
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "none"}]},
            "waiting for the ResourceClaim of pod claim 'gpu' to be created: resourceclaimtemplate",
            id="no template",
        ),
    ],
)
async def test_a_pod_that_cannot_be_scheduled_says_why(spec: JsonObject, why: str) -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("pod", **spec)
        await world.until(lambda: why in world.refusal("pod"))


async def test_a_claim_that_is_named_as_a_template_is_told_and_the_reverse() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.add_claim("mine")
        world.add_pod("one", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "mine"}])
        world.add_pod("two", resourceClaims=[{"name": "gpu", "resourceClaimName": "t"}])
        why = 'resourceclaimtemplate "mine" not found; there is a ResourceClaim of that name'
        await world.until(lambda: why in world.refusal("one"))
        why = 'resourceclaim "t" not found; there is a ResourceClaimTemplate of that name'
        await world.until(lambda: why in world.refusal("two"))


async def test_what_a_node_owns_goes_with_the_node() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"})
        world.api.delete(NODES, "n1")
        await world.until(lambda: world.api.list(RESOURCE_SLICES).items == ())


async def test_a_namespace_is_emptied_before_it_goes() -> None:
    async with a_world() as world:
        world.add_claim()
        world.api.delete(NAMESPACES, "default")
        await world.until(lambda: world.api.find(NAMESPACES, "default") is None)
        assert world.claims() == []


async def test_a_pod_waits_for_its_device_s_binding_conditions() -> None:
    async with a_world() as world:
        world.add_claim()
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.refusal("pod"))
        world.publish({"name": "gpu-0", "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]})
        await world.until(lambda: "waiting for binding conditions for device on node n1" in world.events("pod"))
        assert not world.refusal("pod")  # the kube-scheduler has chosen a node, and says nothing more
        (claim,) = world.claims()
        condition = {"type": "ready", "status": "True", "reason": "Done", "lastTransitionTime": world.api.now}
        device = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "conditions": [condition]}
        body = {**claim, "status": {**claim["status"], "devices": [device]}}
        world.api.update(RESOURCE_CLAIMS, "claim", body, namespace="default", subresource="status")
        await world.until(lambda: world.node_of("pod") == "n1")


async def test_a_device_that_is_not_bound_in_time_is_given_back() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC)]
    async with a_world(clock=lambda: moments[-1]) as world:
        world.publish({"name": "gpu-0", "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]})
        world.add_claim()
        world.add_pod("pod", claim="claim")
        await world.until(lambda: "waiting for binding conditions for device on node n1" in world.events("pod"))
        moments.append(moments[-1] + timedelta(seconds=600))
        world.add_claim("other")  # any write makes the controllers look again
        await world.until(
            lambda: any(
                "gpu-0 was not bound within 600 s: ready" in one["message"] for one in world.api.list(EVENTS).items
            )
        )


async def test_a_device_taint_rule_keeps_pods_away_and_evicts_them() -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0"}, {"name": "gpu-1"})

        def rule(name: str, device: str, effect: str) -> JsonObject:
            chosen = {"driver": DRIVER, "pool": "n1", "device": device}
            spec = {"deviceSelector": chosen, "taint": {"key": "example.com/sick", "effect": effect}}
            return {"metadata": {"name": name}, "spec": spec}

        world.api.create(DEVICE_TAINT_RULES, rule("keep-away", "gpu-0", "NoSchedule"))
        world.add_pod("pod")
        await world.until(lambda: world.node_of("pod"))
        (claim,) = world.claims()
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-1"
        world.api.create(DEVICE_TAINT_RULES, rule("evict", "gpu-1", "NoExecute"))
        await world.until(lambda: "deletionTimestamp" in (world.pod("pod") or {"metadata": {}})["metadata"])


@pytest.mark.parametrize(("version", "refused"), [("1.36", True), ("1.37", True), ("1.38", False)])
async def test_a_taint_rule_without_a_selector_keeps_pods_from_all_devices_up_to_1_37_and_evicts_none(
    version: str, refused: bool
) -> None:
    async with a_world(version=version) as world:
        world.publish({"name": "gpu-0"}, {"name": "gpu-1"})
        world.add_pod("first")
        await world.until(lambda: world.node_of("first"))
        taint = {"key": "example.com/sick", "effect": "NoExecute"}
        world.api.create(DEVICE_TAINT_RULES, {"metadata": {"name": "all"}, "spec": {"taint": taint}})
        world.add_pod("second")
        await world.until(lambda: world.refusal("second") or world.node_of("second"))
        assert ("1 tainted example.com/sick:NoExecute" in world.refusal("second")) is refused
        assert "deletionTimestamp" not in world.api.get(PODS, "first", namespace="default")["metadata"]


@pytest.mark.parametrize(
    ("tolerations", "stays"),
    [
        pytest.param([{"operator": "Exists"}], False, id="of any effect"),
        pytest.param([{"operator": "Exists", "effect": "NoExecute"}], True, id="for ever"),
        pytest.param(
            [
                {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
                {"key": "example.com/sick", "operator": "Exists", "effect": "NoExecute"},
            ],
            True,
            id="the longer of two",
        ),
        pytest.param(
            [
                {"key": "example.com/other", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
                {"key": "example.com/sick", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600},
            ],
            True,
            id="the seconds of another taint",
        ),
    ],
)
async def test_only_a_toleration_of_no_execute_keeps_a_pod_on_a_tainted_device(
    tolerations: list[JsonObject], stays: bool
) -> None:
    async with a_world() as world:
        world.publish({"name": "gpu-0", "taints": [{"key": "example.com/sick", "effect": "NoExecute"}]})
        request = {"name": "r", "exactly": {"deviceClassName": "gpu", "tolerations": tolerations}}
        claim = {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [request]}}}
        world.api.create(RESOURCE_CLAIMS, claim, namespace="default")
        world.add_pod("pod", claim="claim")
        await world.until(lambda: world.node_of("pod"))
        world.add_pod("last", claim="none")  # when it is refused, the controllers have seen the first pod on its node
        await world.until(lambda: world.refusal("last"))
        pod = world.api.get(PODS, "pod", namespace="default")
        assert ("deletionTimestamp" not in pod["metadata"]) is stays
        reasons = [one.get("reason") for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
        assert reasons == ([] if stays else ["DeletionByDeviceTaintManager"])


async def test_a_pod_is_evicted_from_a_device_that_it_does_not_tolerate_any_longer() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC)]
    async with a_world(clock=lambda: moments[-1]) as world:
        world.publish({"name": "gpu-0"})
        world.add_pod("pod")
        await world.until(lambda: world.node_of("pod"))
        moments.append(moments[-1] + timedelta(seconds=1))
        stored = world.api.get(RESOURCE_SLICES, "slice")
        taint = {"key": "example.com/sick", "effect": "NoExecute"}
        spec = {**stored["spec"], "devices": [{"name": "gpu-0", "taints": [taint]}]}
        world.api.update(RESOURCE_SLICES, "slice", {**stored, "spec": spec})
        await world.until(lambda: "deletionTimestamp" in (world.pod("pod") or {"metadata": {}})["metadata"])
        await world.until(
            lambda: any(event["reason"] == "DeviceTaintManagerEviction" for event in world.api.list(EVENTS).items)
        )
