"""What an admin can get wrong with the chart on a real cluster, and the words that say what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import helm_python
import pytest

from pydra.kube.api_resources import EVENTS, JsonObject
from tests.e2e.cluster import STAY, Cluster, cdi_files, records
from tests.e2e.release import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, IMAGE, Release, open_place

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")


async def test_a_second_release_of_a_driver_is_refused_in_words_wherever_it_is_installed() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        async with open_place(cluster.driver) as (_, elsewhere):
            for second, name in ((release, "second"), (elsewhere, "pydra")):
                with pytest.raises(helm_python.HelmError) as caught:
                    await second.install(name=name)
                said = str(caught.value)
                assert f"driver {cluster.driver} is served by release {cluster.namespace}/pydra already" in said
                assert "backends.sim.driver" in said
        await release.upgrade()


async def test_a_backend_that_the_image_lacks_is_named_with_those_that_it_has() -> None:
    wrong = {"backends": {"sim": {"enabled": False}, "fpga": {"enabled": True, "image": {"repository": "pydra-sim"}}}}
    async with open_place() as (cluster, release):
        own = {"driver": cluster.driver, "deviceClasses": {"classes": {}}}
        await release.install(wrong, {"backends": {"fpga": own}}, wait=False)
        message = str(await cluster.wait("a word of the agent", lambda: _last_word(release)))
        assert "pydra-agent: backend fpga is not installed" in message
        assert "sim" in message.partition("installed: ")[2]
        assert "install the distribution that provides it" in message
        await release.upgrade()
        await cluster.wait("devices are published", cluster.slices)


async def _last_word(release: Release) -> str:
    """What the agent's container said before it ended, as `kubectl describe pod` shows it."""
    for pod in await release.agents():
        for status in pod["status"].get("containerStatuses") or ():
            for state in (status["state"], status["lastState"]):
                if ended := state.get("terminated"):
                    assert ended["exitCode"] == 2
                    return str(ended["message"])
    return ""


async def test_rights_that_an_agent_lacks_are_named_where_they_are_missed_and_count_once_they_are_given() -> None:
    async with open_place() as (cluster, release), rights(release, EVENT_RIGHTS) as grant:
        await release.install({"rbac": {"create": False}})
        said = await cluster.wait("an Event of slices", lambda: _note_of_node(cluster, "PublishFailed"))
        assert 'resource "resourceslices"' in said
        await grant(EVENT_RIGHTS, NODE_RIGHTS, SLICE_RIGHTS)
        await cluster.wait_published()
        await cluster.create_claim("one")
        await cluster.create_pod("app", STAY, resourceClaimName="one")
        for reason, about in (("KubernetesAPI", "one"), ("FailedPrepareDynamicResources", "app")):
            note = await cluster.wait_note(reason, about=about)
            assert 'cannot get resource "resourceclaims" in API group "resource.k8s.io" in the namespace' in note
        await grant(EVENT_RIGHTS, NODE_RIGHTS, SLICE_RIGHTS, CLAIM_RIGHTS)
        await cluster.wait_phase("app", "Running")


EVENT_RIGHTS = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
NODE_RIGHTS = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
SLICE_RIGHTS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceslices"],
    "verbs": ["list", "watch", "create", "update", "delete"],
}
CLAIM_RIGHTS = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}


@asynccontextmanager
async def rights(release: Release, *rules: JsonObject) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """A role with these rules for the release's account; what comes sets others."""
    cluster = release.cluster
    name = f"few.{cluster.driver}"
    metadata = {"metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": "pydra", "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}

    async def grant(*rules: JsonObject) -> None:
        body = await cluster.client.get(CLUSTER_ROLES, name)
        await cluster.client.replace(CLUSTER_ROLES, name, {**body, "rules": rules})

    await cluster.create(CLUSTER_ROLES, {**metadata, "rules": rules})
    try:
        await cluster.create(CLUSTER_ROLE_BINDINGS, {**metadata, "roleRef": role, "subjects": [subject]})
        try:
            yield grant
        finally:
            await cluster.client.delete(CLUSTER_ROLE_BINDINGS, name)
    finally:
        await cluster.client.delete(CLUSTER_ROLES, name)


async def _note_of_node(cluster: Cluster, reason: str) -> str:
    """The Event of the driver on the node; Events of nodes are in this namespace."""
    found = (await cluster.client.list(EVENTS, namespace="default")).items
    notes = [str(one.get("note")) for one in found if one.get("reason") == reason]
    return next((note for note in notes if cluster.driver in note), "")


async def test_a_wrong_config_is_reported_by_the_agent_where_no_webhook_is() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        kind = {"apiVersion": "sim.pydra.dev/v1alpha1", "kind": "SimConfig"}
        opaque = {"driver": cluster.driver, "parameters": {**kind, "clockMhz": 1200, "sharing": {"interval": 0}}}
        await cluster.create_claim("picky", config=[{"opaque": opaque}])
        await cluster.create_pod("app", STAY, resourceClaimName="picky")
        for reason, about in (("InvalidConfig", "picky"), ("FailedPrepareDynamicResources", "app")):
            note = await cluster.wait_note(reason, about=about)
            assert '$.clockMhz: unknown field (did you mean "clockMHz"?)' in note
            assert "$.sharing.interval: found 0" in note
        await cluster.create_claim("plain")
        await cluster.start_pod("plain", STAY, resourceClaimName="plain")


async def test_an_uninstall_leaves_nothing_in_the_cluster_and_no_way_to_the_agent_on_the_node() -> None:
    everything = {"webhook": {"enabled": True}, "configPolicy": {"create": True}, "networkPolicy": {"create": True}}
    async with open_place() as (cluster, release):
        await release.install(everything)
        kinds = {one.partition("/")[0] for one in await release.objects()}
        assert {
            *("clusterroles", "clusterrolebindings", "deviceclasses", "validatingadmissionpolicies"),
            *("validatingadmissionpolicybindings", "validatingwebhookconfigurations", "secrets", "networkpolicies"),
        } <= kinds
        await cluster.create_claim("one")
        await cluster.run_pod("app", resourceClaimName="one")
        assert release.sockets()
        await cluster.clear()
        await cluster.wait_unprepared()
        await release.uninstall()
        assert await release.objects() == set()
        await cluster.wait("the slices are gone", lambda: _none(cluster.slices))
        assert release.sockets() == []
        assert [*cdi_files(cluster.driver), *records(cluster.driver)] == []


async def _none(look: Callable[[], Awaitable[Collection[Any]]]) -> bool:
    return not await look()


async def test_what_outlives_an_uninstall_is_taken_back_by_the_next_install() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        await cluster.create_claim("one")
        await cluster.start_pod("app", STAY, resourceClaimName="one")
        await release.uninstall()
        assert (await cluster.pod("app"))["status"]["phase"] == "Running"
        assert len(cdi_files(cluster.driver)) == len(records(cluster.driver)) == 1
        await release.install()
        await cluster.delete_pod("app")
        await cluster.wait_unprepared()
