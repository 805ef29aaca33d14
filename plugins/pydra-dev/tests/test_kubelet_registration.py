"""Plugins register, come back, overlap and go; the kubelet follows, and deletes slices of those that stay away."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from grpclib import GRPCError, Status

from fake_plugin import FakePlugin
from kubelet_world import World, open_world, running_plugin
from pydra_dev.apiserver.faults import Fault
from pydra_dev.kubelet.observations import Called, Deregistered, Registered, RegistrationFailed, SlicesWiped

DRIVER = "gpu.example.com"


def registrations(world: World) -> int:
    return sum(isinstance(step, Registered) for step in world.steps)


def refusals(world: World) -> list[str]:
    return [step.message for step in world.steps if isinstance(step, RegistrationFailed)]


@pytest.mark.parametrize("first", ["plugin", "kubelet"])
async def test_a_plugin_is_registered_whoever_starts_first(first: str) -> None:
    async with open_world() as world:
        plugin = FakePlugin(world.root)
        if first == "plugin":
            await plugin.start()
        async with world.kubelet():
            if first == "kubelet":
                await plugin.start()
            registered = await world.wait_step(Registered)
            assert registered.plugin.driver == DRIVER
            await world.wait_until(lambda: plugin.statuses == [(True, "")])
        await plugin.stop()


async def test_a_restarted_kubelet_registers_the_plugins_that_it_finds() -> None:
    async with open_world() as world, running_plugin(world) as plugin:
        for count in (1, 2):
            async with world.kubelet():
                await world.wait_until(lambda count=count: plugin.statuses == [(True, "")] * count)


async def test_a_restarted_plugin_is_deregistered_and_registered_again() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.wait_step(Registered)
        await plugin.stop()
        await world.wait_step(Deregistered)
        await plugin.start()
        await world.wait_until(lambda: registrations(world) == 2)


async def test_a_socket_that_was_replaced_is_another_plugin() -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.wait_step(Registered)
        await plugin.replace_registration()
        await world.wait_until(lambda: registrations(world) == 2)
        kinds = [type(step) for step in world.steps if isinstance(step, Registered | Deregistered)]
        assert kinds == [Registered, Deregistered, Registered]


async def test_sockets_in_subdirectories_count_and_dotted_names_and_files_do_not() -> None:
    async with open_world() as world, world.kubelet():
        below = FakePlugin(world.root, "below.example.com")
        below.registration_socket = f"{world.root}/plugins_registry/sub/reg.sock"
        dotted = FakePlugin(world.root, "dotted.example.com")
        dotted.registration_socket = f"{world.root}/plugins_registry/.hidden.sock"
        world.write_file("plugins_registry/file.sock")
        await dotted.start()
        await below.start()
        await world.wait_until(lambda: below.statuses == [(True, "")])
        assert dotted.statuses == []
        await below.stop()
        await dotted.stop()


@pytest.mark.parametrize("fault", ["info_failures", "notify_failures"])
async def test_registration_is_repeated_until_the_plugin_answers_well(fault: str) -> None:
    failures = [GRPCError(Status.INTERNAL, "not yet") for _ in range(2)]
    attributes: dict[str, Any] = {fault: failures}
    async with open_world() as world, running_plugin(world, **attributes) as plugin, world.kubelet():
        await world.wait_until(lambda: len(refusals(world)) == 2)
        assert "not yet" in refusals(world)[0]
        notified = 1 if fault == "info_failures" else 3
        await world.wait_until(lambda: plugin.statuses == [(True, "")] * notified)
        await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_phase("p", "Running")


async def test_a_plugin_that_cannot_be_told_is_deregistered_again() -> None:
    failures = [GRPCError(Status.INTERNAL, "no")]
    async with open_world() as world, running_plugin(world, notify_failures=failures), world.kubelet():
        await world.wait_until(lambda: registrations(world) == 2)
        kinds = [type(step) for step in world.steps if not isinstance(step, SlicesWiped)]
        assert kinds == [Registered, Deregistered, RegistrationFailed, Registered]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"versions": []}, "empty list of supported gRPC services"),
        ({"versions": ["v9.DRAPlugin"]}, "none of the supported gRPC services v9.DRAPlugin is known"),
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"driver": ""}, "the plugin has no name"),
    ],
)
async def test_a_plugin_that_cannot_be_used_is_told_why(attributes: dict[str, object], message: str) -> None:
    async with open_world() as world:
        plugin = FakePlugin(world.root)
        for name, value in attributes.items():
            setattr(plugin, name, value)
        await plugin.start()
        async with world.kubelet():
            await world.wait_step(RegistrationFailed)
            registered, told = plugin.statuses[0]
            assert not registered
            assert message in told
        await plugin.stop()


async def test_a_service_on_the_registration_socket_needs_no_endpoint() -> None:
    async with open_world() as world:
        plugin = FakePlugin(world.root)
        plugin.advertised_endpoint = ""
        await plugin.start_common()
        async with world.kubelet():
            await world.make_claim("c")
            await world.make_pod("p", "c")
            await world.wait_phase("p", "Running")
        await plugin.stop()


async def test_two_instances_may_not_share_an_endpoint() -> None:
    async with open_world() as world, running_plugin(world) as old, world.kubelet():
        await world.wait_step(Registered)
        new = FakePlugin(world.root, instance="-2")
        new.advertised_endpoint = old.endpoint
        await new.start(service=False)
        await world.wait_step(RegistrationFailed)
        assert "already registered for DRA driver plugin gpu.example.com" in new.statuses[0][1]
        await new.stop()


async def test_the_latest_instance_is_called_and_then_the_one_that_is_left() -> None:
    async with open_world() as world, running_plugin(world) as old, world.kubelet():
        await world.wait_step(Registered)
        async with running_plugin(world, instance="-2") as new:
            await world.wait_until(lambda: registrations(world) == 2)
            first = await world.make_claim("c1")
            await world.make_pod("p1", "c1")
            await world.wait_phase("p1", "Running")
            assert (old.asked, new.asked) == ([], [("prepare", (first,))])
        second = await world.make_claim("c2")
        await world.make_pod("p2", "c2")
        await world.wait_phase("p2", "Running")
        assert old.asked == [("prepare", (second,))]


async def test_an_instance_that_is_not_connected_is_passed_over() -> None:
    async with open_world() as world, running_plugin(world) as old, world.kubelet():
        await world.wait_step(Registered)
        async with running_plugin(world, instance="-2") as new:
            await world.wait_until(lambda: registrations(world) == 2)
            await new.stop(registration=False)
            await world.make_claim("c")
            await world.make_pod("p", "c")
            await world.wait_phase("p", "Running")
            assert len(old.asked) == 1


async def test_all_calls_and_the_health_stream_share_one_connection() -> None:
    async with open_world() as world, running_plugin(world, health_versions=("v1alpha1",)) as plugin, world.kubelet():
        for number in range(3):
            await world.make_claim(f"c{number}")
            await world.make_pod(f"p{number}", f"c{number}")
            await world.wait_phase(f"p{number}", "Running")
        assert plugin.streams == ["v1alpha1"]
        assert plugin.accepted == 1


async def test_a_call_in_flight_ends_with_the_registration_and_is_made_again_elsewhere() -> None:
    async with open_world() as world, running_plugin(world, gate=anyio.Event()) as old, world.kubelet():
        first = await world.make_claim("c1")
        await world.make_pod("p1", "c1")
        await world.wait_until(lambda: len(old.called("prepare")) == 1)
        async with running_plugin(world, instance="-2") as new:
            await world.wait_until(lambda: registrations(world) == 2)
            await old.stop(service=False)
            failed = await world.wait_step(Called, lambda step: bool(step.error))
            assert "NodePrepareResources: rpc error: code = Unavailable" in failed.error
            await world.wait_phase("p1", "Running")
            assert new.asked == [("prepare", (first,))]
            assert old.gate is not None
            old.gate.set()


async def test_a_node_s_slices_go_when_its_kubelet_starts_and_those_of_others_stay() -> None:
    async with open_world() as world:
        await world.make_slice("mine", DRIVER)
        await world.make_slice("theirs", DRIVER, node="node-2")
        async with world.kubelet():
            wiped = await world.wait_step(SlicesWiped)
            assert (wiped.driver, wiped.names) == ("", ("mine",))
            assert await world.slices() == ["theirs"]


@pytest.mark.parametrize("stop", ["all", "service"])
async def test_the_slices_of_a_driver_that_went_away_are_deleted_in_time(stop: str) -> None:
    async with open_world() as world, running_plugin(world) as plugin, world.kubelet():
        await world.wait_step(SlicesWiped)
        await world.wait_step(Registered)
        await world.make_slice("mine", DRIVER)
        await world.make_slice("other", "nic.example.com")
        await plugin.stop(registration=stop == "all")
        wiped = await world.wait_step(SlicesWiped, lambda step: step.driver == DRIVER)
        assert wiped.names == ("mine",)
        assert await world.slices() == ["other"]


async def test_the_slices_of_a_driver_whose_service_never_started_are_deleted() -> None:
    async with open_world() as world, world.kubelet():
        plugin = FakePlugin(world.root)
        await plugin.start(service=False)
        await world.wait_step(SlicesWiped, lambda step: step.driver == DRIVER)
        await plugin.stop()


async def test_the_slices_of_a_driver_that_comes_back_in_time_stay() -> None:
    async with (
        open_world(wipe_after=0.4) as world,
        running_plugin(world) as plugin,
        running_plugin(world, driver="nic.example.com") as other,
        world.kubelet(),
    ):
        await world.wait_step(SlicesWiped)
        await world.wait_until(lambda: registrations(world) == 2)
        await world.make_slice("mine", DRIVER)
        await world.make_slice("other", "nic.example.com")
        await plugin.stop(registration=False)
        await plugin.start(registration=False)
        claim = await world.make_claim("c")
        await world.make_pod("p", "c")
        await world.wait_until(lambda: plugin.called("prepare") == [(claim,)])
        await other.stop(registration=False)  # later, so its slices are deleted after those of the first would be
        await world.wait_step(SlicesWiped, lambda step: step.driver == "nic.example.com")
        assert await world.slices() == ["mine"]


async def test_a_wipe_that_the_api_server_refuses_is_repeated() -> None:
    async with open_world() as world:
        await world.make_slice("mine", DRIVER)
        world.server.faults.add(Fault(verb="delete", resource="resourceslices", status=500, times=2))
        async with world.kubelet():
            wiped = await world.wait_step(SlicesWiped)
            assert wiped.names == ("mine",)
        assert world.server.requests.count("delete", "resourceslices") == 3
