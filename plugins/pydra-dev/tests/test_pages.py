"""The backends in the README and on the tutorial's first page are taken as they stand, examined, and run on a node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pydra.testing import check_backend
from pydra_dev.story import Story, tell

ROOT = Path(__file__).parents[3]
PAGES = ["README.md", "docs/backend.md"]


@pytest.fixture(params=PAGES)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first Python block of the page as a module beside the newcomer, named as the page tells."""
    source = next(iter(re.findall(r"```python\n(.*?)```", (ROOT / request.param).read_text(), flags=re.DOTALL)))
    (tmp_path / "my_fpga.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    return "my_fpga:"


def test_the_page_s_backend_keeps_the_contract(backend: str) -> None:
    report = check_backend(backend)
    assert report.ok, report.text


async def test_a_pod_runs_with_a_device_of_the_page_s_backend(backend: str) -> None:
    said: list[str] = []
    assert await tell(Story(backend, once=True, write=said.append)) == 0, "\n".join(said)
    text = "\n".join(said)
    assert "+ env      FPGA=fpga-0" in text
    assert "+ device   /dev/fpga-0 (c 1:3, rwm)" in text


async def test_a_backend_that_is_not_served_ends_the_story_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nameless.py").write_text(
        "async def discover(): ...\nasync def prepare(claim): ...\nasync def unprepare(claim, prepared): ...\n"
    )
    for backend, reason in (("nameless:", "--driver nameless:=NAME"), ("nowhere:", "there is no module nowhere")):
        said: list[str] = []
        assert await tell(Story(backend, once=True, write=said.append)) == 1
        text = "\n".join(said)
        assert "FAILED: the agent does not serve the backend" in text
        assert reason in text
