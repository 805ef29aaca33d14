"""A backend that starts before there is anybody to tell."""

from __future__ import annotations

import anyio
import pytest

from pydra.agent.entry import SpawnedBackend
from pydra.backends.discovery import BackendSource, find_backend
from pydra.backends.supervisor_events import BackendEvent, BackendReady, BackendRefused, BackendState
from pydra.errors import ContractError
from pydra.settings import parse_settings

SETTINGS = parse_settings({"nodeName": "n1", "backends": ["sim"]})


async def test_what_it_tells_before_anybody_listens_is_kept_in_order() -> None:
    backend = SpawnedBackend(find_backend("sim"), SETTINGS)
    heard: list[BackendEvent] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.supervisor.run)
            await backend.supervisor.wait_ready()
            backend.report_to(heard.append)
            tasks.cancel_scope.cancel()
    assert [type(event) for event in heard] == [BackendReady]


async def test_it_counts_as_spawned_before_it_is_ready() -> None:
    backend = SpawnedBackend(find_backend("sim"), SETTINGS)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.supervisor.run)
            await backend.supervisor.wait_spawned()
            assert backend.supervisor.statistics().state is BackendState.STARTING
            facts = await backend.supervisor.wait_ready()
            assert facts.name == "sim"
            tasks.cancel_scope.cancel()


async def test_its_process_has_the_agents_variables_without_those_that_lead_to_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "OTEL_EXPORTER_OTLP_HEADERS", "VENDOR_LIBRARY"):
        monkeypatch.setenv(name, "value")
    backend = SpawnedBackend(find_backend("sim"), SETTINGS)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.supervisor.run)
            await backend.supervisor.wait_ready()
            environ = await anyio.Path(f"/proc/{backend.supervisor.statistics().pid}/environ").read_text()
            tasks.cancel_scope.cancel()
    names = {entry.partition("=")[0] for entry in environ.split("\0")}
    assert "VENDOR_LIBRARY" in names
    assert not [name for name in names if name.startswith(("KUBE", "OTEL"))]


async def test_a_backend_that_is_refused_keeps_nobody_waiting() -> None:
    backend = SpawnedBackend(BackendSource(name="absent", target="no_such_module:"), SETTINGS)
    heard: list[BackendEvent] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.supervisor.run)
            try:
                await backend.supervisor.wait_ready()
            except ContractError:
                await backend.supervisor.wait_spawned()
            backend.report_to(heard.append)
            tasks.cancel_scope.cancel()
    assert [type(event) for event in heard] == [BackendRefused]
