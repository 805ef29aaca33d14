"""The generated code is what the protos and hack/generate_proto.py make today."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PB = ROOT / "pydra" / "kubelet" / "pb.py"
TPU_PB = ROOT / "plugins" / "pydra-tpu" / "pydra_tpu" / "runtime_metrics" / "pb.py"


def test_the_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    for needed in ("grpc_tools", "betterproto2_compiler"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, so nothing can be generated to compare with")
    pb, tpu_pb = tmp_path / "pb.py", tmp_path / "tpu_pb.py"
    script = str(ROOT / "hack" / "generate_proto.py")
    command = [sys.executable, script, "--output", str(pb), "--tpu-output", str(tpu_pb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pb.read_text() == PB.read_text(), "the kubelet's messages are stale: run make proto"
    assert tpu_pb.read_text() == TPU_PB.read_text(), "the TPU runtime's messages are stale: run make proto"
