"""Runs the conformance checks against a backend, crashes included.

The backend runs in a process and is called as the agent would. Public: uses no test framework, and never raises for
what a backend does.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import anyio

from pydra.backends.child.conformance_main import PROGRAM, VARIABLE
from pydra.backends.discovery import BackendSource, choose_backend, extend_module_path, find_backend, variable_prefix
from pydra.backends.supervisor import BackendSupervisor
from pydra.backends.timeouts import CallDeadlines, ProcessTimeouts, RestartPolicy
from pydra.claim import OpaqueConfig
from pydra.errors import SettingsError
from pydra.settings import CLAIM_DEADLINE, CONNECT_DEADLINE, DISCOVER_DEADLINE
from pydra.testing.check_recorder import Progress
from pydra.testing.checks import Checks
from pydra.testing.forked_processes import ForkedProcesses
from pydra.testing.process_failures import BackendEvents
from pydra.testing.report import Report
from pydra.testing.session import Session


def check_backend(
    target: str | object,
    *,
    prepare: bool = True,
    device: str = "",
    config: Mapping[str, Any] = {},
    parameters: Sequence[Mapping[str, Any]] = (),
    progress: Progress = lambda _title, _check: None,
) -> Report:
    """Check an installed backend by name, `module:attribute`, or an importable module or object.

    Prepares and unprepares its first healthy device that is not held, or the one called `device`; with `prepare` false
    the hardware is only read. The backend's process can import what this process can. Simulated hardware keeps its
    state in a temporary directory, unless PYDRA_<NAME>_STATE names one. `config` is the agent's settings file:
    `backendSettings` has the backend's own settings; `drivers` and the directories say where an agent has records.
    `parameters` is the opaque configuration of the claims that it prepares, for devices that need one: each with its
    `apiVersion` and `kind`. `progress` is called with each check's title and None before the check, and with the title
    and the Check after it. Raises SettingsError if there is no such backend.
    """
    source = find_backend(target) if isinstance(target, str) else _locate(target)
    logging.getLogger("pydra").addHandler(logging.NullHandler())  # crashes are intended, and the report has the rest
    # Direct targets only: an installed backend is found without the caller's path, as on a node.
    places = () if source.distribution else (*sys.path, "")
    with tempfile.TemporaryDirectory(prefix="pydra-check-") as state:
        environ = {f"{variable_prefix(source.name)}_STATE": state, **os.environ}
        environ = extend_module_path(environ, places)
        return anyio.run(
            lambda: run_checks(
                source,
                prepare=prepare,
                device=device,
                environ=environ,
                config=config,
                parameters=parameters,
                progress=progress,
            )
        )


async def run_checks(
    source: BackendSource,
    *,
    prepare: bool = True,
    device: str = "",
    deadlines: CallDeadlines = CallDeadlines(connect=CONNECT_DEADLINE, discover=DISCOVER_DEADLINE),  # noqa: B008 - frozen
    timeouts: ProcessTimeouts = ProcessTimeouts(),  # noqa: B008 - frozen
    environ: Mapping[str, str] | None = None,
    config: Mapping[str, Any] = {},
    parameters: Sequence[Mapping[str, Any]] = (),
    progress: Progress = lambda _title, _check: None,
) -> Report:
    """Do what `check_backend` does, inside an event loop."""
    variables = os.environ if environ is None else environ
    events, processes = BackendEvents(), ForkedProcesses()
    with tempfile.TemporaryDirectory(prefix="pydra-observed-") as directory:
        supervisor = BackendSupervisor(
            source,
            deadlines=deadlines,
            timeouts=timeouts,
            restarts=RestartPolicy(first=0.0, cap=0.0),
            environ={**variables, VARIABLE: directory},
            settings=config.get("backendSettings", {}).get(source.configured_name, {}),
            program=PROGRAM,
            spawn=processes.spawn,
            report=events.hear,
        )
        configs = tuple(
            OpaqueConfig(source="FromClaim", position=f"parameters[{place}]", parameters=one)
            for place, one in enumerate(parameters)
        )
        session = Session(supervisor, configs, directory=directory, connect_limit=deadlines.connect)
        run = Checks(source, session, events, progress, timeouts, environ=variables, config=config, device=device)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            try:
                checks = await run.run(connect=deadlines.connect, prepare=prepare)
            finally:
                with anyio.move_on_after(CLAIM_DEADLINE, shield=True):
                    await run.undo()
            tasks.cancel_scope.cancel()
        await processes.close()
    return Report(backend=source.name, checks=checks)


def _locate(backend: object) -> BackendSource:
    """Find from where another process can import the object. Raises SettingsError."""
    if isinstance(backend, ModuleType):
        return choose_backend(f"{backend.__name__}:", ())
    module = sys.modules.get(type(backend).__module__)
    for name, value in vars(module).items() if module is not None else ():
        if value is backend:
            return choose_backend(f"{type(backend).__module__}:{name}", ())
    raise SettingsError([f"{backend!r} is not a module, and no variable of its class's module: give module:attribute"])
