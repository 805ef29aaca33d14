"""The backend keeps pydra's contract, on a simulated machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.testing import check_backend


def test_it_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_NET_SCENARIO", "server")
    monkeypatch.setenv("PYDRA_NET_STATE", str(tmp_path))
    report = check_backend("net")
    assert report.ok, report.text
