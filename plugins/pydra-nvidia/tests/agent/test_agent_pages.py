"""The claims that the pages print, applied as they are: their pods run, and nothing is left when they have ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pydra.kube.api_resources import PODS, RESOURCE_CLAIM_TEMPLATES

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]

HERE = Path(__file__).resolve().parents[2]
PLAIN = ("hgx-h100", ())
STAGES: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "some-memory": ("t4", (("consumable_shares", "memory"),)),
    "a-quarter": ("t4", (("consumable_shares", "4"),)),
    "for-a-machine": ("mixed", ()),
    "gpu-for-a-guest": ("mixed", ()),
}
"""Machine and settings of claims that an HGX H100 with dynamic partitions is not for."""


README = HERE / "README.md"
PAGES = (README, *sorted((HERE / "docs").glob("*.md")))


def documents(*pages: Path) -> Iterator[Any]:
    for page in pages:
        for block in re.findall(r"^ *```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
            for document in yaml.safe_load_all(block):
                if isinstance(document, dict) and "kind" in document:
                    yield document


CLAIMS = {
    one["metadata"]["name"]: one["spec"]["devices"] for one in documents(*PAGES) if one["kind"] == "ResourceClaim"
}


async def test_the_pod_of_the_readme_runs(stage: Stage) -> None:
    kinds = {"Pod": PODS, "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES}
    wanted = [one for one in documents(README) if one["kind"] in kinds]
    assert [one["kind"] for one in wanted] == ["ResourceClaimTemplate", "Pod"]
    async with stage("hgx-h100") as scene:
        for one in wanted:
            await scene.node.client.create(kinds[one["kind"]], one, namespace="default")
        await scene.wait_running("train")
        await scene.end_pods("train")
        await scene.undone()


@pytest.mark.parametrize("where", sorted({STAGES.get(name, PLAIN) for name in CLAIMS}), ids=str)
async def test_the_claims_of_the_pages_are_prepared_and_undone(stage: Stage, where: tuple[str, Any]) -> None:
    machine, settings = where
    names = [name for name in CLAIMS if STAGES.get(name, PLAIN) == where]
    async with stage(machine, **dict(settings)) as scene:
        for name in names:
            devices = dict(CLAIMS[name])
            await scene.create_claim(name, *devices.pop("requests"), **devices)
            await scene.create_pod(name)
        await scene.wait_running(*names)
        await scene.end(*names)
        await scene.undone()
