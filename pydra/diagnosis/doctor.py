"""Examines the node on which it runs, and what its agent may do in the cluster; `pydra doctor`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence

import msgspec

from pydra.diagnosis.agent_state import AgentState, judge_agent, read_agent
from pydra.diagnosis.backend_checks import judge_backends
from pydra.diagnosis.checkpoint_records import find_drivers, judge_left_over
from pydra.diagnosis.claim_on_node import judge_files
from pydra.diagnosis.cluster_checks import judge_cluster, judge_pool
from pydra.diagnosis.cluster_reader import open_cluster
from pydra.diagnosis.container_runtime import judge_runtime
from pydra.diagnosis.directories_and_sockets import judge_directories_and_sockets
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import PydraError
from pydra.settings import Settings


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All findings about this node, in the order in which they matter."""

    node: str
    findings: tuple[Finding, ...]


async def examine_node(settings: Settings) -> Examination:
    """Look at the agent, the directories, the runtime and the API server. Nothing is changed."""
    agent = await asyncio.to_thread(read_agent, settings)
    findings = [*judge_agent(agent), *await asyncio.to_thread(judge_backends, settings, os.environ)]
    drivers, unread = await asyncio.to_thread(_find_drivers, settings, agent)
    findings += [*unread, *await asyncio.to_thread(judge_directories_and_sockets, settings, drivers)]
    findings += await asyncio.to_thread(_judge_left_over, settings) if not unread else ()
    findings += await judge_files(settings)
    runtime: str | None = None
    try:
        async with open_cluster(settings) as client:
            driver = min(agent.drivers or drivers, default="doctor.pydra.example")
            runtime, found = await judge_cluster(client, settings, driver=driver)
            findings += found
            findings += [await judge_pool(client, settings, driver) for driver in sorted(agent.drivers)]
    except PydraError as error:
        findings.append(Finding(subject="API server", level=Level.PROBLEM, found=str(error)))
    if runtime is not None:
        findings.append(await asyncio.to_thread(judge_runtime, settings, runtime))
    return Examination(node=settings.node_name, findings=tuple(findings))


def _find_drivers(settings: Settings, agent: AgentState) -> tuple[Collection[str], Sequence[Finding]]:
    """Return the drivers that the agent serves or that have records here, and why the latter cannot be read."""
    try:
        return {*find_drivers(settings), *agent.drivers, *settings.drivers.values()}, ()
    except PydraError as error:
        denied = Finding(subject="records", level=Level.UNKNOWN, found=str(error), advice="run it as root")
        return agent.drivers, (denied,)


def _judge_left_over(settings: Settings) -> Sequence[Finding]:
    try:
        return tuple(judge_left_over(settings))
    except PydraError as error:
        return (Finding(subject="left over", level=Level.UNKNOWN, found=str(error)),)
