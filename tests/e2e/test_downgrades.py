"""A checkpoint that a newer pydra wrote: read as far as it can be, else refused in words, and never lost."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from pydra.checkpoint.record import SCHEMA
from pydra.kube.api_resources import EVENTS, PODS
from tests.e2e.agent import open_agent, run_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, cdi_files, open_cluster, records

RESTART_KUBELET = shlex.split(os.environ.get("PYDRA_E2E_KUBELET_RESTART", ""))


@pytest.mark.skipif(not RESTART_KUBELET, reason="PYDRA_E2E_KUBELET_RESTART names no command that restarts the kubelet")
async def test_what_a_newer_pydra_says_of_a_claim_is_kept_while_an_older_one_serves_it(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await prepare_and_stop(cluster, tmp_path)
        with written_by_newer(invented={"later": [1, 2]}):
            async with open_agent(cluster, tmp_path):
                await anyio.run_process(RESTART_KUBELET)  # it knows no more what it asked for, and asks again
                found = await cluster.run_pod("too", resourceClaimName="old")
                assert any(line.startswith("SIM_ACCEL_") for line in found["main"])
                await cluster.delete_pod("too")
                assert read()["invented"] == {"later": [1, 2]}
                await cluster.delete_pod("old")
                await cluster.wait_unprepared()


async def test_a_claim_of_a_newer_schema_waits_for_the_newer_pydra_and_keeps_nobody_else_waiting(
    tmp_path: Path,
) -> None:
    advice = "a newer version of pydra wrote it; upgrade again, or unprepare the claim with that version"
    async with open_cluster() as cluster:
        uid = await prepare_and_stop(cluster, tmp_path)
        with written_by_newer(schema=SCHEMA + 1), run_agent(cluster.node, tmp_path) as agent:
            await agent.wait_serving(cluster)
            await cluster.wait("an Event on the node", lambda: _is_told_of_node(cluster, uid, advice))
            await cluster.create_claim("other")
            await cluster.run_pod("other", resourceClaimName="other")
            await cluster.delete_pod("other")
            assert (await cluster.pod("old"))["status"]["phase"] == "Running"
            await cluster.client.delete(PODS, "old", namespace=cluster.namespace)
            note = await cluster.wait_note("CheckpointFailed", about="old", saying="the claim cannot be unprepared")
            assert advice in note
            assert (read()["schema"], len(cdi_files())) == (SCHEMA + 1, 1)
            assert await to_thread.run_sync(agent.stop) == 0
        async with open_agent(cluster, tmp_path):  # the newer version, which has read it all along
            await cluster.wait_gone("old")
            await cluster.wait_unprepared()


async def prepare_and_stop(cluster: Cluster, scratch: Path) -> str:
    """A pod that runs with a claim, both called `old`, and no agent; the claim's uid."""
    await cluster.create_class(DRIVER)
    claim = await cluster.create_claim("old")
    with run_agent(cluster.node, scratch) as agent:
        await agent.wait_serving(cluster)
        await cluster.start_pod("old", STAY, resourceClaimName="old")
        assert await to_thread.run_sync(agent.stop) == 0
    return str(claim["metadata"]["uid"])


def read() -> dict[str, Any]:
    """The last record in the only checkpoint."""
    (file,) = records()
    *_, last = (line for line in file.read_bytes().splitlines() if line.strip())
    record: dict[str, Any] = json.loads(last)["record"]
    return record


@contextmanager
def written_by_newer(**changes: Any) -> Iterator[None]:
    """The only checkpoint as a version would have written it that says this too; at the end as it was before."""
    (file,) = records()
    before = file.read_bytes()
    record = json.dumps(read() | changes, separators=(",", ":"))
    checksum = hashlib.sha256(record.encode()).hexdigest()
    file.write_text(f'{{"checksum":"sha256:{checksum}","record":{record}}}\n')
    try:
        yield
    finally:
        if file.exists():
            file.write_bytes(before)


async def _is_told_of_node(cluster: Cluster, uid: str, words: str) -> bool:
    found = (await cluster.client.list(EVENTS, namespace="default")).items
    notes = [str(one.get("note")) for one in found if one.get("reason") == "CheckpointTooNew"]
    return any(uid in note and words in note for note in notes)
