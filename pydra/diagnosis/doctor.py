"""Examines the node on which it runs, and what its agent may do in the cluster; `pydra doctor`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

import msgspec

from pydra.backends.backend_settings import read_settings
from pydra.backends.discovery import UNNAMED, BackendSource, LoadError, find_backend, load_backend, variable_prefix
from pydra.diagnosis import Finding, Level
from pydra.diagnosis.agent_state import judge_agent, read_agent
from pydra.diagnosis.cluster_checks import judge_cluster, judge_pool
from pydra.diagnosis.cluster_reader import open_cluster
from pydra.diagnosis.held_claims import (
    ClaimRecord,
    find_drivers,
    judge_files,
    judge_left_over,
    judge_unreadable,
    read_held,
)
from pydra.diagnosis.node_checks import judge_directories_and_sockets, judge_runtime
from pydra.errors import PydraError, SettingsError
from pydra.settings import Settings


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All findings about this node, in the order in which they matter."""

    node: str
    findings: tuple[Finding, ...]


async def examine_node(settings: Settings) -> Examination:
    """Look at the agent, the directories, the runtime and the API server. Nothing is changed."""
    agent = await asyncio.to_thread(read_agent, settings)
    held, unread = await read_held(settings)
    drivers = {*agent.drivers, *settings.drivers.values()}
    with suppress(PydraError):  # which is in `unread`, too
        drivers.update(find_drivers(settings))
    findings = [*judge_agent(agent), *await asyncio.to_thread(judge_backends, settings, held, unread)]
    findings += unread.values()
    findings += await asyncio.to_thread(judge_directories_and_sockets, settings, drivers)
    findings += [*judge_left_over(held), *judge_unreadable(held), *await judge_files(settings, held)]
    runtime: str | None = None
    try:
        async with open_cluster(settings) as client:
            driver = min(agent.drivers or drivers, default="doctor.pydra.example")
            runtime, found = await judge_cluster(client, settings, driver=driver)
            findings += found
            findings += [await judge_pool(client, settings, driver) for driver in sorted(agent.drivers)]
    except PydraError as error:
        findings.append(Finding("API server", Level.PROBLEM, str(error)))
    if runtime is not None:
        findings.append(await asyncio.to_thread(judge_runtime, settings, runtime))
    return Examination(node=settings.node_name, findings=tuple(findings))


_SUBJECT = "backend"


def judge_backends(settings: Settings, held: Sequence[ClaimRecord], unread: Mapping[str, Finding]) -> Sequence[Finding]:
    """Return backends that cannot be loaded here, and what the others find wrong. Blocks.

    `unread` says by driver why there may be other records than those `held`, as `read_held` does.
    """
    named = [name for name in settings.backends if name != UNNAMED]
    with redirect_stdout(sys.stderr):  # what a backend prints is not part of the output
        return [finding for name in named for finding in _judge(name, settings, held, unread)]


def _judge(
    name: str, settings: Settings, held: Sequence[ClaimRecord], unread: Mapping[str, Finding]
) -> Iterator[Finding]:
    try:
        source = find_backend(name)
        backend = load_backend(name, source)
    except (SettingsError, LoadError) as error:
        yield Finding(_SUBJECT, Level.PROBLEM, str(error))
        return
    examine = getattr(backend, "examine", None)
    if examine is None:
        return
    driver = settings.drivers.get(name, "") or str(getattr(backend, "DRIVER", ""))
    if why := unread.get("") or unread.get(driver):
        yield Finding(_SUBJECT, Level.UNKNOWN, f"{name}: {why.found}")
        return
    try:
        own = _read_own_settings(backend, source, settings)
        problems = [str(one) for one in examine(own, tuple(one.held for one in held if one.driver == driver))]
    except PydraError as error:
        yield Finding(_SUBJECT, Level.UNKNOWN, f"{name}: {error}")
    except Exception as error:  # noqa: BLE001 - the backend's own code may fail in any way
        found = f"{name} cannot examine the node: {type(error).__name__}: {error}"
        yield Finding(_SUBJECT, Level.UNKNOWN, found, "report it to the backend's author")
    else:
        for problem in problems:
            yield Finding(_SUBJECT, Level.PROBLEM, f"{name}: {problem}")
        if not problems:
            yield Finding(_SUBJECT, Level.OK, f"{name} finds nothing wrong on the node")


def _read_own_settings(backend: Any, source: BackendSource, settings: Settings) -> Any:
    settings_type = getattr(backend, "SETTINGS_TYPE", None)
    if settings_type is None:
        return None
    values = settings.backend_settings.get(source.configured_name, {})
    prefix = f"{variable_prefix(source.name)}_"
    return read_settings(settings_type, source.name, prefix, os.environ, values)
