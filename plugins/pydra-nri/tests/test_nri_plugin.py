"""A backend is called for pods and containers, whatever the runtime's version; what takes too long is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from pinning import FAST, POD, Pinning, make_container, nothing
from pydra import ClaimError
from pydra_nri import (
    ContainerUpdate,
    Handlers,
    LinuxCPU,
    LinuxResources,
    Pauses,
    Plugin,
    RuntimeUnavailable,
    connect,
    cpuset,
)
from pydra_nri.frames import Connection, Kind, Message, encode
from pydra_nri.plugin import Attempts
from pydra_nri.simulation.connection import PluginRefused
from pydra_nri.simulation.runtime import FakeRuntime, OperationFailed
from pydra_nri.values import PodSandbox

Serving = Callable[[FakeRuntime, Pinning], AbstractAsyncContextManager[Plugin]]


@pytest.fixture
def serving(socket: str) -> Serving:
    """A runtime, and a backend that is registered with it."""

    @asynccontextmanager
    async def serve(runtime: FakeRuntime, backend: Pinning) -> AsyncIterator[Plugin]:
        async with (
            runtime.serve(socket),
            connect("pinning", index=50, handlers=backend.handlers, socket=socket, pauses=FAST) as plugin,
        ):
            await runtime.wait_logged("registered pinning")
            await plugin.wait_synchronized()
            yield plugin

    return serve


async def wait_for_problem(plugin: Plugin, words: str) -> None:
    """Wait until claims are refused with these words."""
    while True:
        try:
            plugin.require_synchronized()
        except RuntimeUnavailable as problem:
            if words in str(problem):
                return
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "runtime",
    [FakeRuntime(), FakeRuntime(version="2.3.4", nri="v0.12.0"), FakeRuntime(cut=1), FakeRuntime(cut=4097)],
    ids=["state-changes", "own-methods", "byte-by-byte", "in-pieces"],
)
async def test_a_backend_is_called_for_all_that_happens_to_a_pod(runtime: FakeRuntime, serving: Serving) -> None:
    backend = Pinning()
    async with serving(runtime, backend):
        await runtime.run_pod(POD)
        created = await runtime.create_container(make_container("main", env=("LONG=" + "x" * 9000,)))
        assert created.linux.resources.cpu == LinuxCPU(cpus="4-7", mems="0")
        updated = await runtime.update_container(created, LinuxResources(cpu=LinuxCPU(shares=512, cpus="0-63")))
        assert updated.linux.resources.cpu == LinuxCPU(shares=512, cpus="4-7", mems="0")
        await runtime.stop_container(created)
        await runtime.stop_pod(POD)
    events = ["run trainer", "create main", "update main", "stop main", "remove main", "stop trainer"]
    assert backend.calls == ["synchronize", *events]


@pytest.mark.parametrize("part", [0, 1, 7])
async def test_a_backend_learns_what_exists_in_however_many_parts_and_corrects_it(part: int, serving: Serving) -> None:
    runtime, backend = FakeRuntime(part=part), Pinning()
    runtime.pods[POD.id] = POD
    for number in range(200):
        container = make_container(f"c{number}")
        runtime.containers[container.id] = container
    backend.corrections = [ContainerUpdate.of(key, cpuset("0-3")) for key in runtime.containers]
    async with serving(runtime, backend):
        assert backend.known == ["trainer", *(f"c{number}" for number in range(200))]
        assert {one.linux.resources.cpu.cpus for one in runtime.containers.values()} == {"0-3"}


@pytest.mark.parametrize("obeys", [True, False], ids=["is-cancelled", "ignores-cancellation"])
async def test_a_handler_that_is_late_makes_the_operation_fail_and_keeps_the_connection(
    obeys: bool, serving: Serving
) -> None:
    released = asyncio.Event()

    async def be_late(call: str) -> None:
        if call == "create late":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if obeys:
                    raise
                await released.wait()

    runtime = FakeRuntime(request_timeout=1.0)
    async with serving(runtime, Pinning(before=be_late)):
        await runtime.run_pod(POD)
        with pytest.raises(
            OperationFailed,
            match=r"pinning did not finish CreateContainer of container late of pod ml/trainer within 0\.[67]\d* s",
        ):
            await runtime.create_container(make_container("late"))
        await runtime.create_container(make_container("next"))
        assert runtime.log == ["registered pinning"]
    released.set()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ClaimError("cpu-3 is offline"), "pinning: cpu-3 is offline"),
        (KeyError("cpu-3"), "pinning has a defect: KeyError: 'cpu-3'"),
        (asyncio.CancelledError(), "pinning did not finish RunPodSandbox of pod ml/trainer"),
        (ClaimError("no \udcff"), r"pinning: no \\udcff"),
        (ClaimError("x" * (5 << 20)), "pinning: x{100}"),
    ],
    ids=["claim", "defect", "cancelled", "no-utf-8", "too-long"],
)
async def test_an_error_of_a_handler_makes_the_operation_fail_with_its_words(
    error: BaseException, message: str, serving: Serving
) -> None:
    async def fail(call: str) -> None:
        if call == "run trainer":
            raise error

    runtime = FakeRuntime()
    async with serving(runtime, Pinning(before=fail)):
        with pytest.raises(OperationFailed, match=message):
            await runtime.run_pod(POD)


async def test_a_runtime_that_restarts_tells_everything_once_more(socket: str) -> None:
    runtime, backend = FakeRuntime(), Pinning()
    async with connect("pinning", index=50, handlers=backend.handlers, socket=socket, pauses=FAST) as plugin:
        async with runtime.serve(socket):
            await runtime.wait_logged("registered pinning")
            plugin.require_synchronized()
            await runtime.run_pod(POD)
        await runtime.wait_logged("closed pinning")
        await wait_for_problem(plugin, "is not running")
        assert (await plugin.update([ContainerUpdate.of("id-main", cpuset("1"))])).now is False
        async with runtime.serve(socket):
            await runtime.wait_logged("registered pinning", times=2)
            assert backend.known == ["trainer"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_runtime_that_ends_closes_all_connections(turns: int, socket: str) -> None:
    runtime = FakeRuntime()
    async with runtime.serve(socket):
        reader, writer = await asyncio.open_unix_connection(socket)
        for _ in range(turns):  # until the runtime has noticed the connection, reads from it, or neither
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_runtime_that_ends_many_connections_is_tried_until_it_serves_one_and_the_log_says_it_once(
    socket: str, caplog: pytest.LogCaptureFixture
) -> None:
    many, ended = 12, asyncio.Queue[None]()

    def end(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        ended.put_nowait(None)

    runtime = FakeRuntime()
    server = await asyncio.start_unix_server(end, socket)
    async with connect("pinning", index=50, handlers=Pinning().handlers, socket=socket, pauses=FAST) as plugin:
        for _ in range(many):
            await ended.get()
        server.close()
        await server.wait_closed()
        async with runtime.serve(socket):
            await plugin.wait_synchronized()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines
    assert not [line for line, following in pairwise(lines) if line == following]


PATIENT = msgspec.structs.replace(FAST, patience=3600.0)


async def test_a_claim_waits_for_a_runtime_that_starts_again_but_not_for_one_that_was_never_there(socket: str) -> None:
    runtime, handlers = FakeRuntime(), Pinning().handlers
    async with connect("pinning", index=50, handlers=handlers, socket=socket, pauses=PATIENT) as plugin:
        with pytest.raises(RuntimeUnavailable, match=r"there is no .*; to enable NRI, set"):
            await plugin.check_synchronized()
        async with runtime.serve(socket):
            await plugin.wait_synchronized()
        await wait_for_problem(plugin, "is not running")
        waiting = asyncio.ensure_future(plugin.check_synchronized())
        async with runtime.serve(socket):
            await waiting


async def test_a_backend_that_could_not_be_synchronized_is_tried_again(socket: str) -> None:
    errors = [ClaimError("the state of the node is not known yet"), None]

    async def fail_once(call: str) -> None:
        if call == "synchronize" and (error := errors.pop(0)):
            raise error

    runtime = FakeRuntime()
    handlers = Pinning(before=fail_once).handlers
    async with runtime.serve(socket), connect("pinning", index=5, handlers=handlers, socket=socket, pauses=FAST):
        await runtime.wait_logged("registered pinning")
    message = "not synchronized pinning: pinning: the state of the node is not known yet"
    assert runtime.log[:3] == [message, "closed pinning", "registered pinning"]


async def test_two_instances_are_both_called_and_what_both_want_happens(serving: Serving, socket: str) -> None:
    runtime, old, new = FakeRuntime(), Pinning("4-7"), Pinning("4-7")
    async with serving(runtime, old), connect("new", index=50, handlers=new.handlers, socket=socket, pauses=FAST):
        await runtime.wait_logged("registered new")
        await runtime.run_pod(POD)
        created = await runtime.create_container(make_container("main"))
        assert created.linux.resources.cpu.cpus == "4-7"
        assert old.calls == new.calls
        new.cpus = "0-3"
        with pytest.raises(OperationFailed, match="plugins pinning and new both tried to set cpus"):
            await runtime.create_container(make_container("other"))


UPDATE = ContainerUpdate.of("id-main", cpuset("0-9"))


@pytest.mark.parametrize("carrier", ["create", "update", "stop", "synchronize"])
async def test_updates_wait_for_an_answer_where_they_could_deadlock_the_runtime(carrier: str, serving: Serving) -> None:
    runtime, backend = FakeRuntime(version="2.3.4", nri="v0.12.0"), Pinning()
    async with serving(runtime, backend) as plugin:
        await runtime.run_pod(POD)
        other = await runtime.create_container(make_container("other"))
        main = await runtime.create_container(make_container("main"))
        assert (await plugin.update([UPDATE])).now is False
        await runtime.stop_pod(PodSandbox(id=POD.id))
        assert runtime.containers[main.id].linux.resources.cpu.cpus == "4-7"
        runtime.pods[POD.id] = POD
        match carrier:
            case "create":
                await runtime.create_container(make_container("new"))
            case "update":
                await runtime.update_container(other, LinuxResources())
            case "stop":
                await runtime.stop_container(other)
            case "synchronize":
                # The handler knows everything that there is, so nothing waits any more.
                backend.corrections = [UPDATE]
                runtime.plugins[0].connection.close()
                await runtime.wait_logged("registered pinning", times=2)
        assert runtime.containers[main.id].linux.resources.cpu.cpus == "0-9"


async def test_updates_are_sent_at_once_where_the_runtime_allows_it(serving: Serving) -> None:
    runtime = FakeRuntime(version="2.4.0", nri="v0.12.1")
    async with serving(runtime, Pinning()) as plugin:
        await runtime.run_pod(POD)
        main = await runtime.create_container(make_container("main"))
        gone = ContainerUpdate.of("id-gone", cpuset("0-9"))
        sent = await plugin.update([UPDATE, gone])
        assert (sent.now, sent.failed) == (True, (gone,))
        assert runtime.containers[main.id].linux.resources.cpu.cpus == "0-9"
        assert (await plugin.update([])).now is False


async def test_an_update_from_a_handler_goes_with_its_answer(serving: Serving) -> None:
    runtime = FakeRuntime(version="2.4.0", nri="v0.12.1")
    plugins: list[Plugin] = []

    async def update_when_stopped(call: str) -> None:
        if call == "stop other":
            assert (await plugins[0].update([UPDATE])).now is False

    async with serving(runtime, Pinning(before=update_when_stopped)) as plugin:
        plugins.append(plugin)
        await runtime.run_pod(POD)
        other = await runtime.create_container(make_container("other"))
        main = await runtime.create_container(make_container("main"))
        await runtime.stop_container(other)
        assert runtime.containers[main.id].linux.resources.cpu.cpus == "0-9"
        assert "updated" not in runtime.log


async def test_a_runtime_is_not_asked_for_events_that_it_does_not_know(socket: str) -> None:
    handlers = Handlers(synchronize=Pinning().synchronize, run_pod_sandbox=nothing, update_pod_sandbox=nothing)
    runtime = FakeRuntime(version="2.1.9")
    async with runtime.serve(socket), connect("pinning", index=0, handlers=handlers, socket=socket, pauses=FAST):
        await runtime.wait_logged("registered pinning")
        assert runtime.plugins[0].events == 1


async def test_a_backend_whose_events_the_runtime_lacks_does_not_get_all_of_them(socket: str) -> None:
    handlers = Handlers(synchronize=Pinning().synchronize, update_pod_sandbox=nothing)
    runtime = FakeRuntime(version="2.1.9")
    async with (
        runtime.serve(socket),
        connect("pinning", index=0, handlers=handlers, socket=socket, pauses=FAST) as plugin,
    ):
        await runtime.wait_logged(
            "refused pinning: containerd 2.1.9 has none of the events that pinning needs", times=2
        )
        with pytest.raises(RuntimeUnavailable):
            plugin.require_synchronized()


async def test_calls_that_nri_does_not_allow_are_answered_with_an_error(serving: Serving) -> None:
    runtime = FakeRuntime()
    async with serving(runtime, Pinning()):
        call = partial(runtime.plugins[0].connection.call, payload=POD, timeout=60)
        codes = []
        for method, stream in (("Shutdown", 2), ("Shutdown", 1), ("ValidateContainerAdjustment", None)):
            with pytest.raises(PluginRefused) as refused:
                await call(method, stream=stream)
            codes.append(refused.value.code)
        assert codes == [3, 3, 12]
        await call("Shutdown")


async def test_an_answer_that_nobody_waits_for_is_dropped(serving: Serving) -> None:
    runtime = FakeRuntime()
    async with serving(runtime, Pinning()):
        await runtime.plugins[0].connection.write(
            encode(Message(connection=Connection.RUNTIME, stream=99, kind=Kind.RESPONSE, data=b"late"))
        )
        await runtime.run_pod(POD)
        assert runtime.log == ["registered pinning"]


@pytest.mark.parametrize(
    "written", [b"\0\0\0\1\0\0\0\x20half", b"\xff" * 16], ids=["in-the-middle-of-a-frame", "after-nonsense"]
)
async def test_a_connection_that_ends_is_opened_again(written: bytes, serving: Serving) -> None:
    runtime = FakeRuntime()
    async with serving(runtime, Pinning()):
        connection = runtime.plugins[0].connection
        await connection.write(written)
        connection.end()
        await runtime.wait_logged("registered pinning", times=2)


@pytest.mark.parametrize(("name", "index"), [("", 50), ("a name", 50), ("pinning", -1), ("pinning", 100)])
async def test_a_name_or_index_that_the_runtime_would_refuse_is_an_error(name: str, index: int, socket: str) -> None:
    with pytest.raises(ValueError, match=r"the (name|index) is"):
        async with connect(name, index=index, handlers=Pinning().handlers, socket=socket):
            pass


async def test_the_problem_is_named_while_no_runtime_listens(socket: str) -> None:
    async with connect("pinning", index=50, handlers=Pinning().handlers, socket=socket, pauses=FAST) as plugin:
        await wait_for_problem(plugin, "NRI is disabled in its configuration")


async def test_a_user_who_may_not_connect_is_told_to_be_root(short_path: Path, socket: str) -> None:
    """As a backend's process with `runAsUser`, since a runtime makes the directory for root alone."""
    os.chmod(short_path, 0)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        async with connect("pinning", index=50, handlers=Pinning().handlers, socket=socket, pauses=FAST) as plugin:
            await wait_for_problem(plugin, "Permission denied; only root may: leave out runAsUser")
    finally:
        os.seteuid(user)
        os.chmod(short_path, 0o700)


async def test_the_problem_is_named_while_a_runtime_listens_and_does_not_answer(socket: str) -> None:
    async def read_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_unix_server(read_only, socket),
        connect("pinning", index=50, handlers=Pinning().handlers, socket=socket, pauses=FAST) as plugin,
    ):
        await wait_for_problem(plugin, "waits for the container runtime to register it")


@pytest.mark.parametrize(
    ("failures", "reached", "pause"),
    [(0, True, 0.2), (1, True, 0.4), (5, False, 0.2), (5, True, 6.4), (9, True, 60.0), (10_000, True, 60.0)],
)
def test_a_runtime_that_was_reached_is_tried_less_often(failures: int, reached: bool, pause: float) -> None:
    assert Pauses().choose(failures, reached=reached) == pytest.approx(pause)


def test_an_outage_does_not_make_the_pause_after_a_second_restart_longer() -> None:
    attempts, pauses = Attempts(), []
    for reached in (*[False] * 20, True, True, False):
        attempts = attempts.add(reached=reached, lasted=False)
        pauses.append(Pauses().choose(attempts.failures, reached=reached))
    assert pauses[:3] == pytest.approx([0.2, 0.2, 0.2])
    assert pauses[-4:] == pytest.approx([0.2, 0.2, 0.4, 0.2])
    assert attempts.add(reached=False, lasted=True).failures == 0


def test_an_empty_list_of_cpus_is_an_error_because_the_runtime_would_change_nothing() -> None:
    with pytest.raises(ValueError, match="name the CPUs"):
        cpuset("")
