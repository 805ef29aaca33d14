"""The backend keeps pydra's contract, on a simulated machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pydra.testing import check_backend
from tests.forked import run_forked


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_NET_SCENARIO", "server")
    monkeypatch.setenv("PYDRA_NET_STATE", str(tmp_path))
    report = check_backend("net")
    assert report.ok, report.text


@pytest.mark.timeout(120)
def test_the_demo_shows_the_interface_that_the_pod_gets() -> None:
    arguments = ["dev", "--backend", "net", "--scenario", "server", "--once"]
    done = run_forked("pydra.cli.tool", arguments, os.environ)
    assert "+ network  dummy0 (device dummy0), 02:00:00:00:01:00\n" in done.stdout, done.stdout + done.stderr
