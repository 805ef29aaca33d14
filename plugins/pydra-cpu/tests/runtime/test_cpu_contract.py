"""The backend keeps pydra's contract, on simulated machines and on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.testing import check_backend
from pydra_cpu.simulation.simulation import THIS_MACHINE


@pytest.mark.parametrize(
    ("scenario", "group_by"),
    [(THIS_MACHINE, "numaNode"), ("desktop", "cpu")],
)
def test_it_keeps_the_contract(scenario: str, group_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_CPU_SCENARIO", scenario)
    monkeypatch.setenv("PYDRA_CPU_STATE", str(tmp_path))
    monkeypatch.setenv("PYDRA_CPU_GROUP_BY", group_by)
    report = check_backend("cpu")
    assert report.ok, report.text
