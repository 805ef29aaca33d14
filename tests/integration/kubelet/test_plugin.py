"""The kubelet plugin from start to stop: registration, directories that come and go, instances that overlap."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra.kubelet import pb as registration
from pydra.kubelet.plugin import Serving, Stopped, Waiting
from pydra.kubelet.registration import Registered, RegistrationRefused
from tests.integration.kubelet.fakes import (
    DRIVER,
    Failed,
    Kubelet,
    Running,
    grpcio_kubelet,
    prepare,
    serve,
    wait_until,
)

UID = "0f5e8c1e-3b43-4d0b-9f0a-6f3d2c1b0a99"
OTHER_UID = "7a4d3b1c-0000-4d0b-9f0a-6f3d2c1b0a99"
SERVICE = "/pluginregistration.Registration"


async def get_info(kubelet: Kubelet) -> registration.PluginInfo:
    """As the kubelet asks: with one second to answer."""
    return await kubelet.unary(f"{SERVICE}/GetInfo", registration.InfoRequest(), registration.PluginInfo, 1.0)


async def notify(kubelet: Kubelet, *, registered: bool, error: str = "") -> None:
    status = registration.RegistrationStatus(plugin_registered=registered, error=error)
    path = f"{SERVICE}/NotifyRegistrationStatus"
    await kubelet.unary(path, status, registration.RegistrationStatusResponse)


async def works(running: Running) -> bool:
    """Whether a kubelet can register the plugin and prepare a claim with it."""
    async with grpcio_kubelet(running.paths.registration) as kubelet:
        endpoint = (await get_info(kubelet)).endpoint
    async with grpcio_kubelet(endpoint) as kubelet:
        return (await prepare(kubelet, "uid-1")).claims["uid-1"].error == ""


def exists(path: str) -> bool:
    return os.path.lexists(path)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_the_kubelet_learns_who_the_plugin_is(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.registration) as kubelet:
        info = await get_info(kubelet)
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(root / "plugins" / DRIVER / "dra.sock"))
    assert info.supported_versions == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


async def test_the_registrar_answers_under_the_authority_that_the_kubelet_gives_it(root: Path) -> None:
    async with serve(root) as running:
        path = running.paths.registration
        async with grpcio_kubelet(path, authority=path.replace("/", "%2F")) as kubelet:
            assert (await get_info(kubelet)).name == DRIVER


async def test_the_registrar_answers_while_claims_are_in_work(root: Path) -> None:
    async with (
        serve(root) as running,
        grpcio_kubelet(running.paths.service) as busy,
        grpcio_kubelet(running.paths.registration) as kubelet,
        anyio.create_task_group() as group,
    ):
        running.claims.gate = anyio.Event()
        group.start_soon(prepare, busy, "uid-1")
        await wait_until(lambda: running.claims.asked)
        assert (await get_info(kubelet)).name == DRIVER
        running.claims.gate.set()


async def test_what_the_kubelet_decides_is_reported_each_time(root: Path) -> None:
    async with serve(root) as running:
        for _ in range(2):  # a kubelet that restarts registers it again
            async with grpcio_kubelet(running.paths.registration) as kubelet:
                await notify(kubelet, registered=True)
        async with grpcio_kubelet(running.paths.registration) as kubelet:
            await notify(kubelet, registered=False, error="endpoint already\nregistered")
            await notify(kubelet, registered=False)
        assert running.heard(Registered) == [Registered(driver=DRIVER)] * 2
        assert [event.message for event in running.heard(RegistrationRefused)] == [
            "endpoint already registered",
            "the kubelet gives no reason",
        ]


async def test_the_service_is_there_before_the_registrar(root: Path) -> None:
    async with serve(root) as running:
        paths = running.paths
        assert os.stat(paths.service).st_ctime_ns <= os.stat(paths.registration).st_ctime_ns
        [serving] = running.heard(Serving)
        assert (serving.endpoint, serving.registration) == (paths.service, paths.registration)


async def test_sockets_and_directories_are_closed_to_others_even_without_an_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        async with serve(root) as running:
            paths = running.paths
            modes = {path: stat.S_IMODE(os.stat(path).st_mode) for path in (paths.service, paths.registration)}
            assert set(modes.values()) == {0o600}
            for directory in (root / "plugins", root / "plugins" / DRIVER):
                assert stat.S_IMODE(directory.stat().st_mode) == 0o750
    finally:
        os.umask(before)


async def test_nothing_is_left_after_a_stop(root: Path) -> None:
    async with serve(root) as running:
        running.stop()
        await wait_until(lambda: running.heard(Stopped))
        assert names(root / "plugins_registry") == []
        assert names(root / "plugins" / DRIVER) == []
        assert running.heard(Stopped) == [Stopped(driver=DRIVER, cut_off=0)]


async def test_a_stop_lets_the_call_in_flight_end(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.gate = anyio.Event()
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await prepare(kubelet, "uid-1"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await wait_until(lambda: running.claims.asked)
            running.stop()
            await wait_until(lambda: not exists(running.paths.service))
            assert exists(running.paths.registration)
            async with grpcio_kubelet(running.paths.registration) as starting:
                with pytest.raises(Failed, match=r"UNAVAILABLE: driver gpu\.example\.com is stopping"):
                    await get_info(starting)
            running.claims.gate.set()
        assert answers[0].claims["uid-1"].error == ""
        await wait_until(lambda: running.heard(Stopped))
        assert not exists(running.paths.registration)


async def test_a_stop_cuts_off_what_does_not_end_within_the_grace(root: Path) -> None:
    async with (
        serve(root, drain_grace=0.05) as running,
        grpcio_kubelet(running.paths.service) as kubelet,
    ):
        running.claims.gate = anyio.Event()
        async with anyio.create_task_group() as group:

            async def call() -> None:
                with pytest.raises(Failed, match="UNAVAILABLE"):
                    await prepare(kubelet, "uid-1")

            group.start_soon(call)
            await wait_until(lambda: running.claims.asked)
            running.stop()
        await wait_until(lambda: running.heard(Stopped))
        assert running.heard(Stopped)[0].cut_off == 1
        assert running.claims.done == []


async def test_a_kubelet_that_comes_late_is_waited_for(root: Path) -> None:
    async with serve(root, wait=False) as running:
        [waiting] = await wait_until(lambda: running.heard(Waiting))
        assert "plugins_registry: not there; is the kubelet running" in waiting.problem
        assert names(root) == []
        (root / "plugins_registry").mkdir()
        await wait_until(lambda: running.heard(Serving))
        assert await works(running)
        assert len(running.heard(Waiting)) == 1


async def test_a_wiped_kubelet_root_gets_its_sockets_back(root: Path) -> None:
    async with serve(root) as running:
        shutil.rmtree(root / "plugins")
        shutil.rmtree(root / "plugins_registry")
        await wait_until(lambda: running.heard(Waiting))
        (root / "plugins_registry").mkdir()
        await wait_until(lambda: len(running.heard(Serving)) == 2)
        assert await works(running)


@pytest.mark.parametrize("which", ["service", "registration"])
async def test_a_socket_that_vanishes_is_made_again_under_the_kubelets_open_connection(root: Path, which: str) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        await prepare(kubelet, "uid-1")
        path = getattr(running.paths, which)
        os.unlink(path)
        await wait_until(lambda: exists(path))
        assert (await prepare(kubelet, "uid-1")).claims["uid-1"].error == ""
        assert await works(running)


@pytest.mark.parametrize(("which", "registered"), [("service", True), ("registration", False)])
async def test_the_kubelet_has_registered_the_plugin_until_the_registration_socket_is_another_one(
    root: Path, which: str, registered: bool
) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.registration) as kubelet:
        await notify(kubelet, registered=True)
        path = getattr(running.paths, which)
        os.unlink(path)
        Path(path).touch()  # a file that is not a socket
        await wait_until(lambda: running.heard(Waiting))
        os.unlink(path)
        await wait_until(lambda: len(running.heard(Serving)) == 2)
        assert [one.registered for one in running.heard(Serving)] == [False, registered]


async def test_a_killed_instances_sockets_are_replaced(root: Path) -> None:
    (root / "plugins" / DRIVER).mkdir(parents=True)
    (root / "plugins_registry").mkdir()
    for path in (root / "plugins" / DRIVER / "dra.sock", root / "plugins_registry" / f"{DRIVER}-reg.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    async with serve(root) as running:
        assert await works(running)


def leave_socket(path: Path, *, listening: bool = False) -> socket.socket:
    """A socket's file; once closed, as a killed process leaves it."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    if listening:
        left.listen()
    return left


async def test_sockets_of_killed_instances_are_removed_and_no_others(root: Path) -> None:
    registry, directory = root / "plugins_registry", root / "plugins" / DRIVER
    registry.mkdir()
    directory.mkdir(parents=True)
    digest = "Zm9vYmFyX-0"
    stale = [
        registry / f"{DRIVER}-{OTHER_UID}-reg.sock",
        registry / f"{DRIVER}-{digest}-reg.sock",
        registry / f"{DRIVER}-reg.sock",
        directory / f"dra-{OTHER_UID}.sock",
        directory / "dra.sock",
    ]
    alive = registry / f"{DRIVER}-{UID[:-1]}0-reg.sock"
    others = [registry / f"{DRIVER}-b-reg.sock", registry / f"other.{DRIVER}-{UID}-reg.sock", directory / "mine.sock"]
    (registry / f"{DRIVER}-{UID[:-1]}2-reg.sock").write_text("not a socket")
    with ExitStack() as left:
        for path in [*stale, *others]:
            leave_socket(path).close()
        left.enter_context(leave_socket(alive, listening=True))
        before = {*names(registry), *names(directory)}
        async with serve(root, pod_uid=UID) as running:
            await wait_until(lambda: not any(path.exists() for path in stale))
            assert await works(running)
        assert before - {*names(registry), *names(directory)} == {path.name for path in stale}


async def test_a_name_that_another_process_serves_is_waited_for(root: Path) -> None:
    directory = root / "plugins" / DRIVER
    directory.mkdir(parents=True)
    (root / "plugins_registry").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(directory / "dra.sock"))
        other.listen()
        async with serve(root, wait=False) as running:
            [waiting] = await wait_until(lambda: running.heard(Waiting))
            assert "dra.sock: another process listens there" in waiting.problem
            assert names(root / "plugins_registry") == []
            other.close()
            await wait_until(lambda: running.heard(Serving))
            assert await works(running)


async def test_a_file_in_the_way_is_said_and_not_removed(root: Path) -> None:
    path = root / "plugins_registry" / f"{DRIVER}-reg.sock"
    path.parent.mkdir()
    path.write_text("precious")
    async with serve(root, wait=False) as running:
        [waiting] = await wait_until(lambda: running.heard(Waiting))
        assert waiting.problem == f"{path}: is not a socket; move it away"
    assert path.read_text() == "precious"


async def test_two_instances_overlap_and_either_may_leave_first(root: Path) -> None:
    async with serve(root, pod_uid=UID) as old, serve(root, pod_uid=OTHER_UID) as new:
        assert names(root / "plugins_registry") == [f"{DRIVER}-{uid}-reg.sock" for uid in (UID, OTHER_UID)]
        assert await works(old)
        assert await works(new)
        old.stop()
        await wait_until(lambda: old.heard(Stopped))
        assert names(root / "plugins_registry") == [f"{DRIVER}-{OTHER_UID}-reg.sock"]
        assert await works(new)


async def test_a_successor_under_the_same_name_keeps_its_socket_when_the_first_stops(root: Path) -> None:
    async with serve(root, check_period=60) as first:
        os.unlink(first.paths.service)
        os.unlink(first.paths.registration)
        async with serve(root) as successor:
            first.stop()
            await wait_until(lambda: first.heard(Stopped))
            assert await works(successor)


async def test_many_drivers_serve_in_one_process(root: Path) -> None:
    async with serve(root, driver="a.example.com") as one, serve(root, driver="b.example.com") as two:
        assert await works(one)
        assert await works(two)
        one.stop()
        await wait_until(lambda: one.heard(Stopped))
        assert await works(two)
