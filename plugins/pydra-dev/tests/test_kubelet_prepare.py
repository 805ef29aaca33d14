"""The kubelet starts and ends pods with claims: what it asks plugins, and what it makes of their answers."""

from __future__ import annotations

import math

import anyio
import pytest
from grpclib import GRPCError, Status

from kubelet_world import open_world, running_plugin
from pydra.kube.api_resources import EVENTS, RESOURCE_CLAIMS
from pydra_dev.kubelet.observations import Called, ContainerCreated, PodEnded, PodFailed, PodRunning

OTHER = "nic.example.com"


async def test_a_pod_runs_with_its_device_and_ends_with_it_undone() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")
        created = await world.wait_step(ContainerCreated)
        assert created.cdi_ids == (f"gpu.example.com/claim={uid}",)
        assert "DEVICE_OF=gpu.example.com" in created.after.env
        await world.delete_pod("p")
        await world.wait_gone("p")
        assert plugin.asked == [("prepare", (uid,)), ("unprepare", (uid,))]


async def test_init_containers_get_their_devices_before_the_others() -> None:
    async with open_world() as world, running_plugin(world), world.kubelet():
        uid = await world.make_claim("c")
        first = {"name": "first", "image": "i", "resources": {"claims": [{"name": "c"}]}}
        await world.make_pod("p", "c", initContainers=[first], containers=[{"name": "main", "image": "i"}])
        await world.wait_phase("p", "Running")
        created = [step for step in world.steps if isinstance(step, ContainerCreated)]
        assert [(one.container, one.is_init, one.cdi_ids) for one in created] == [
            ("first", True, (f"gpu.example.com/claim={uid}",)),
            ("main", False, ()),
        ]


async def test_a_pod_that_ends_by_itself_is_unprepared_before_it_has_succeeded() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("c")
        container = {"name": "main", "image": "i", "command": ["sleep", "0.05"]}
        await world.make_pod("p", "c", containers=[container], restartPolicy="Never")
        await world.wait_phase("p", "Succeeded")
        assert [method for method, _ in plugin.asked] == ["prepare", "unprepare"]
        assert [type(step) for step in world.steps if isinstance(step, PodRunning | PodEnded)] == [PodRunning, PodEnded]


async def test_all_claims_of_a_pod_go_to_a_driver_in_one_call() -> None:
    async with (
        open_world() as world,
        running_plugin(world) as gpu,
        running_plugin(world, OTHER) as nic,
        world.kubelet(),
    ):
        first = await world.make_claim("a")
        second = await world.make_claim("b", "gpu.example.com", OTHER)
        await world.make_pod("p", "a", "b")
        await world.wait_phase("p", "Running")
        assert gpu.asked == [("prepare", (first, second))]
        assert nic.asked == [("prepare", (second,))]


async def test_a_claim_that_no_container_uses_is_prepared_all_the_same() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("c")
        await world.make_pod("p", "c", containers=[{"name": "main", "image": "i"}])
        await world.wait_phase("p", "Running")
        assert len(plugin.called("prepare")) == 1
        assert (await world.wait_step(ContainerCreated)).cdi_ids == ()


async def test_a_shared_claim_is_prepared_for_the_first_pod_and_unprepared_after_the_last() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("c")
        for name in ("p1", "p2"):
            await world.make_pod(name, "c")
            await world.wait_phase(name, "Running")
        await world.delete_pod("p1")
        await world.wait_gone("p1")
        assert [method for method, _ in plugin.asked] == ["prepare"]
        await world.delete_pod("p2")
        await world.wait_gone("p2")
        assert [method for method, _ in plugin.asked] == ["prepare", "unprepare"]


async def test_a_new_claim_beside_a_prepared_one_is_the_only_one_asked_for() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("old")
        await world.make_pod("p1", "old")
        await world.wait_phase("p1", "Running")
        new = await world.make_claim("new")
        await world.make_pod("p2", "old", "new")
        await world.wait_phase("p2", "Running")
        assert plugin.called("prepare")[-1] == (new,)


async def test_calls_for_different_pods_run_at_the_same_time() -> None:
    async with open_world() as world, running_plugin(world, gate=anyio.Event()) as plugin, world.kubelet():
        for number in range(3):
            await world.make_claim(f"c{number}")
            await world.make_pod(f"p{number}", f"c{number}")
        await world.wait_until(lambda: len(plugin.called("prepare")) == 3)
        assert plugin.gate is not None
        plugin.gate.set()
        for number in range(3):
            await world.wait_phase(f"p{number}", "Running")


async def test_a_failure_that_repeats_is_one_event_that_counts() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        plugin.claim_errors = {await world.make_claim("c"): "no such device"}
        await world.make_pod("p", "c")

        async def counted() -> bool:
            events = (await world.client.list(EVENTS, namespace="default")).items
            failed = [one for one in events if one["reason"] == "FailedPrepareDynamicResources"]
            assert len(failed) <= 1
            said = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed"
            assert all(one["note"].startswith(said) for one in failed)
            return bool(failed) and failed[0].get("series", {}).get("count", 1) >= 3

        await world.wait_until(counted)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"failures": [GRPCError(Status.INTERNAL, "ouch")]},
            "Resources: rpc error: code = Internal desc = ouch",
        ),
        ({"skipped": {"UID"}}, "NodePrepareResources skipped 1 ResourceClaims"),
        ({"extra": {"strange"}}, "NodePrepareResources returned result for unknown claim UID strange"),
        ({"claim_errors": {"UID": "no such device"}}, "failed for ResourceClaim c: no such device"),
    ],
    ids=["rpc error", "no entry", "unknown uid", "claim error"],
)
async def test_a_bad_answer_to_prepare_fails_the_pod_until_it_is_good(
    attributes: dict[str, object], message: str
) -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        uid = await world.make_claim("c")
        for name, value in attributes.items():
            setattr(plugin, name, _with_uid(value, uid))
        await world.make_pod("p", "c")
        failed = await world.wait_step(PodFailed)
        assert failed.reason == "FailedPrepareDynamicResources"
        assert message in failed.message
        plugin.skipped, plugin.extra, plugin.claim_errors = set(), set(), {}
        await world.wait_phase("p", "Running")
        assert any(message in event for event in await world.events())


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"failures": [GRPCError(Status.INTERNAL, "ouch")]},
            "Resources: rpc error: code = Internal desc = ouch",
        ),
        ({"skipped": {"UID"}}, "NodeUnprepareResources skipped 1 ResourceClaims"),
        ({"extra": {"strange"}}, "NodeUnprepareResources returned result for unknown claim UID strange"),
        ({"claim_errors": {"UID": "busy"}}, "NodeUnprepareResources failed for ResourceClaim c: busy"),
    ],
    ids=["rpc error", "no entry", "unknown uid", "claim error"],
)
async def test_a_bad_answer_to_unprepare_keeps_the_pod_until_it_is_good(
    attributes: dict[str, object], message: str
) -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")
        for name, value in attributes.items():
            setattr(plugin, name, _with_uid(value, uid))
        await world.delete_pod("p")
        failed = await world.wait_step(PodFailed)
        assert message in failed.message
        plugin.skipped, plugin.extra, plugin.claim_errors = set(), set(), {}
        await world.wait_gone("p")
        assert (await world.client.list(EVENTS)).items == ()  # a kubelet only logs it


def _with_uid(value: object, uid: str) -> object:
    if isinstance(value, set):
        return {uid if one == "UID" else one for one in value}
    if isinstance(value, dict):
        return dict.fromkeys([uid], *value.values())
    return list(value) if isinstance(value, list) else value


async def test_a_call_past_its_deadline_fails_and_is_repeated() -> None:
    async with open_world(call=0.1) as world, running_plugin(world, gate=anyio.Event()) as plugin, world.kubelet():
        await world.make_claim("c")
        await world.make_pod("p", "c")
        failed = await world.wait_step(PodFailed)
        assert "code = DeadlineExceeded" in failed.message
        assert plugin.gate is not None
        plugin.gate.set()
        await world.wait_phase("p", "Running")


async def test_a_pod_waits_for_a_driver_that_is_not_registered() -> None:
    async with open_world() as world, world.kubelet():
        await world.make_claim("c")
        await world.make_pod("p", "c")
        failed = await world.wait_step(PodFailed)
        assert "DRA driver gpu.example.com is not registered" in failed.message
        async with running_plugin(world):
            await world.wait_phase("p", "Running")


async def test_a_pod_that_waits_for_a_driver_can_be_deleted() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("c", "gpu.example.com", "never.example.com")
        await world.make_pod("p", "c")
        await world.wait_step(PodFailed)
        await world.delete_pod("p")
        await world.wait_gone("p")
        assert plugin.asked == []


async def test_one_of_two_drivers_that_fails_keeps_the_pod_and_recovers() -> None:
    async with (
        open_world() as world,
        running_plugin(world) as gpu,
        running_plugin(world, OTHER) as nic,
        world.kubelet(),
    ):
        nic.failures.append(GRPCError(Status.UNAVAILABLE, "not yet"))
        await world.make_claim("c", "gpu.example.com", OTHER)
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")
        assert len(gpu.called("prepare")) == 2  # the claim was not prepared as a whole, so all are asked again
        assert len(nic.called("prepare")) == 2


async def test_a_pod_that_the_claim_is_not_reserved_for_is_refused() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_claim("c")
        claims = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
        await world.make_pod("p", **claims)
        failed = await world.wait_step(PodFailed)
        assert "is not allowed to use ResourceClaim c (" in failed.message
        assert plugin.asked == []


async def test_a_replaced_claim_waits_until_its_predecessor_is_unprepared() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        old = await world.make_claim("c")
        await world.make_pod("p1", "c")
        await world.wait_phase("p1", "Running")
        await world.client.delete(RESOURCE_CLAIMS, "c", namespace="default")
        new = await world.make_claim("c")
        await world.make_pod("p2", "c")
        failed = await world.wait_step(PodFailed)
        assert f"old ResourceClaim with same name c and different UID {old} still exists" in failed.message
        await world.delete_pod("p1")
        await world.wait_phase("p2", "Running")
        assert plugin.asked == [("prepare", (old,)), ("unprepare", (old,)), ("prepare", (new,))]


async def test_an_unresolvable_cdi_device_fails_the_container() -> None:
    async with open_world() as world, running_plugin(world), world.kubelet():
        uid = await world.make_claim("c")
        world.spoil_cdi("gpu.example.com", uid)
        await world.make_pod("p", "c")
        failed = await world.wait_step(PodFailed)
        assert failed.reason == "Failed"
        assert f"unresolvable CDI devices gpu.example.com/claim={uid}" in failed.message
        assert "invalid CDI spec" in failed.message
        world.write_cdi("gpu.example.com", uid)
        await world.wait_phase("p", "Running")


async def test_a_force_deleted_pod_is_unprepared_by_its_worker_again_and_again() -> None:
    """The reconciliation is for pods that were deleted while the kubelet was down."""
    async with open_world(reconcile=math.inf) as world, running_plugin(world) as plugin, world.kubelet():
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")
        plugin.failures.append(GRPCError(Status.UNAVAILABLE, "not yet"))
        await world.delete_pod("p", force=True)
        await world.wait_step(PodEnded)
        assert plugin.called("unprepare") == [(uid,), (uid,)]


async def test_a_pod_that_names_a_claim_twice_cannot_start_and_can_be_deleted() -> None:
    """The answer has one entry for both, and a kubelet counts entries."""
    async with open_world() as world, running_plugin(world), world.kubelet():
        await world.make_claim("c")
        entries = [{"name": name, "resourceClaimName": "c"} for name in ("one", "two")]
        container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "one"}]}}
        await world.make_pod("p", "c", resourceClaims=entries, containers=[container])
        failed = await world.wait_step(PodFailed)
        assert "NodePrepareResources skipped 1 ResourceClaims (the pod names c more than once" in failed.message
        await world.delete_pod("p")
        await world.wait_gone("p")


async def test_a_pod_deleted_while_its_prepare_fails_is_unprepared() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        uid = await world.make_claim("c")
        plugin.claim_errors = {uid: "broken"}
        await world.make_pod("p", "c")
        await world.wait_step(PodFailed)
        plugin.claim_errors = {}
        plugin.gate = anyio.Event()
        await world.delete_pod("p")
        plugin.gate.set()
        await world.wait_gone("p")
        assert plugin.called("unprepare")[-1] == (uid,)


async def test_a_share_id_is_kept() -> None:
    async with open_world() as world, running_plugin(world, share_id="s-1"), world.kubelet():
        await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")
        assert '"share_id":"s-1"' in world.read_claims()


async def test_a_claim_that_is_gone_fails_the_pod_and_no_call_is_made() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.make_pod("p", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
        failed = await world.wait_step(PodFailed)
        assert "not found" in failed.message
        assert plugin.asked == []


async def test_calls_are_told_with_what_they_prepared() -> None:
    async with open_world() as world, running_plugin(world), world.kubelet():
        uid = await world.make_claim("c")
        await world.make_pod("p", "c")
        called = await world.wait_step(Called)
        assert (called.method, called.claims, called.error) == ("NodePrepareResources", ("default/c",), "")
        assert called.cdi_ids == (f"gpu.example.com/claim={uid}",)
