"""The generated code is what the protos and hack/generate_proto.py make today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_code_is_what_the_protos_generate() -> None:
    for needed in ("grpc_tools", "betterproto2_compiler"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, so nothing can be generated to compare with")
    for path, text in load(ROOT / "hack" / "generate_proto.py").files().items():
        assert path.read_text() == text, f"{path.name} is stale: make proto"
