"""The backend keeps pydra's contract, on a simulated machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pydra.testing import check_backend


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_NET_SCENARIO", "server")
    monkeypatch.setenv("PYDRA_NET_STATE", str(tmp_path))
    report = check_backend("net")
    assert report.ok, report.text


@pytest.mark.timeout(120)
def test_the_demo_shows_the_interface_that_the_pod_gets() -> None:
    command = [sys.executable, "-m", "pydra.cli.tool", "dev", "--backend", "net", "--scenario", "server", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "+ network  dummy0 (device dummy0), 02:00:00:00:01:00\n" in done.stdout, done.stdout + done.stderr
