"""The generated code is what the protos and hack/generate_proto.py make today."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PB = ROOT / "pydra" / "kubelet" / "pb"
TPU_PB = ROOT / "plugins" / "pydra-tpu" / "pydra_tpu" / "runtime_metrics" / "pb.py"


def modules(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(directory.glob("*.py")) if path.name != "__init__.py"}


def test_the_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    for needed in ("grpc_tools", "betterproto2_compiler"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, so nothing can be generated to compare with")
    pb, tpu_pb = tmp_path / "pb", tmp_path / "tpu_pb.py"
    script = str(ROOT / "hack" / "generate_proto.py")
    command = [sys.executable, script, "--output", str(pb), "--tpu-output", str(tpu_pb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fresh, committed = modules(pb), modules(PB)
    assert sorted(committed) == sorted(fresh)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert not stale, f"{stale} are stale: run make proto"
    assert tpu_pb.read_text() == TPU_PB.read_text(), "the TPU runtime's messages are stale: run make proto"


def test_every_proto_has_its_module() -> None:
    protos = {path.stem for path in (ROOT / "proto").glob("*.proto")}
    assert protos == {name.removesuffix(".py") for name in modules(PB)} - {"message"}
