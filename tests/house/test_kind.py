"""The helper that brings up kind: what it asks kind for, and what it says where that cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "hack" / "kind.py"


def kind(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({"PATH": str(path)} if path else {})}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def program(path: Path, name: str, *, code: int = 0, says: str = "") -> None:
    """A program on the PATH, which keeps its arguments and what it is given."""
    file = path / name
    file.write_text(f'#!/bin/sh\necho "$*" >>{path}/{name}.calls\necho "{says}" >&2\nexit {code}\n')
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ("v1.34.0", {"DRAConsumableCapacity", "DRADeviceTaints"}, {"DRADeviceTaintRules", "DRAListTypeAttributes"}),
        ("v1.35.1@sha256:0f", {"DRADeviceTaintRules"}, {"DRAListTypeAttributes"}),
        ("v1.36.2", {"DRADeviceTaintRules", "DRAListTypeAttributes"}, set()),
    ],
)
def test_a_cluster_has_the_gates_that_its_version_knows(version: str, has: set[str], lacks: set[str]) -> None:
    config = json.loads(kind("config", "--image", f"kindest/node:{version}").stdout)
    assert has <= set(config["featureGates"])
    assert not lacks & set(config["featureGates"])
    assert config["runtimeConfig"]["resource.k8s.io/v1beta2"] == "true"


def test_the_node_shares_the_directories_that_the_variables_name_and_reads_cdi_specs() -> None:
    config = json.loads(kind("config").stdout)
    variables = load(SCRIPT).build_environment("pydra", "busybox:1.37", "", "")
    (node,) = config["nodes"]
    shared = {mount["hostPath"] for mount in node["extraMounts"] if mount["hostPath"] == mount["containerPath"]}
    assert "/var/run/cdi" in shared
    for name in ("KUBECONFIG", "PYDRA_E2E_KUBELET_ROOT", "TMPDIR"):
        assert any(f"{variables[name]}/".startswith(f"{path}/") for path in shared), name
    places = {mount["containerPath"]: mount["hostPath"] for mount in node["extraMounts"]}
    assert places["/var/lib/kubelet"] == variables["PYDRA_E2E_KUBELET_ROOT"]
    assert "enable_cdi = true" in config["containerdConfigPatches"][0]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("kindest/node:v1.33.4", "Kubernetes 1.33 has no resource.k8s.io/v1; 1.34 or newer is needed"),
        ("kindest/node:latest", "its tag names no Kubernetes version, as in kindest/node:v1."),
    ],
)
def test_a_node_image_that_cannot_do_is_refused(image: str, words: str) -> None:
    done = kind("config", "--image", image)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize("what", ["up", "down"])
def test_what_is_missing_is_named(what: str, tmp_path: Path) -> None:
    done = kind(what, path=tmp_path)
    assert done.returncode == 2
    assert "not on the PATH: docker, kind; kind needs all of" in done.stderr


def test_a_docker_that_does_not_answer_is_reported_in_its_own_words(tmp_path: Path) -> None:
    program(tmp_path, "docker", code=1, says="Cannot connect to the Docker daemon")
    program(tmp_path, "kind")
    done = kind("up", path=tmp_path)
    assert done.returncode == 2
    assert "docker does not answer: Cannot connect to the Docker daemon" in done.stderr
    assert not (tmp_path / "kind.calls").exists()


def test_a_release_that_is_tested_has_its_images_on_the_node_and_in_the_variables() -> None:
    script = load(SCRIPT)
    tested = ("amd", "cpu", "net", "nvidia", "nvidia-compute-domain", "sim", "tpu")
    backends = [f"localhost:5000/pydra-{name}:2" for name in tested]
    older = ["localhost/pydra:1", "localhost/pydra-sim:1"]
    images = script.list_images("busybox:1.37", "localhost:5000/pydra:2", "localhost/pydra:1")
    assert images == ["busybox:1.37", "localhost:5000/pydra:2", *backends, *older]
    variables = script.build_environment("pydra", "busybox:1.37", "localhost/pydra:2", "localhost/pydra:1")
    images = [variables[f"PYDRA_E2E_{name}IMAGE"] for name in ("", "CHART_", "OLDER_")]
    assert images == ["busybox:1.37", "localhost/pydra:2", "localhost/pydra:1"]


def test_variables_of_no_cluster_are_refused() -> None:
    if load(SCRIPT).VARIABLES.exists():
        pytest.skip("there is a cluster of this helper here")
    done = kind("env")
    assert (done.returncode, done.stdout) == (2, "")
    assert "make one: up" in done.stderr


def test_a_release_without_a_tag_is_refused_before_a_cluster_is_made(tmp_path: Path) -> None:
    program(tmp_path, "docker")
    program(tmp_path, "kind")
    done = kind("up", "--chart", "localhost:5000/pydra", path=tmp_path)
    assert done.returncode == 2
    assert "localhost:5000/pydra: found no tag" in done.stderr
    assert not (tmp_path / "kind.calls").exists()


def test_every_variable_of_the_tests_is_explained() -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), SCRIPT]
    names = {name for source in sources for name in re.findall(r"PYDRA_E2E_[A-Z_]+[A-Z]", source.read_text())}
    page = (ROOT / "tests" / "e2e" / "README.md").read_text()
    assert names == set(re.findall(r"PYDRA_E2E_[A-Z_]+[A-Z]", page))
