"""Tools that look at files of a node: records and CDI specs, as a table, as JSON, and in exit codes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from pydra.checkpoint.record import Record, Stage, build_record
from pydra.claim import AllocatedDevice, Claim
from pydra.cli.tool import main
from pydra.diagnosis.cdi_validation import find_spec_problems
from pydra.diagnosis.node_checks import judge_runtime
from pydra.settings import Settings

DRIVER = "gpu.example.com"


class Node:
    """The directories of a node, and the tool that looks at them."""

    def __init__(self, root: Path, output: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.claims = root / "run" / DRIVER / "claims"
        self._output = output
        (root / "kubelet").mkdir()
        (root / "boot").write_text("boot-1\n")

    def write(self, uid: str, *, stage: Stage = Stage.COMPLETED) -> Path:
        """The record of a claim with one device."""
        device = AllocatedDevice(request="gpu", pool="n", device=f"gpu-{uid}")
        claim = Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=(device,))
        record = Record(claim=claim, driver=DRIVER, stage=stage, boot_id="boot-1", created=1.0)
        self.claims.mkdir(parents=True, exist_ok=True)
        path = self.claims / f"{uid}.json"
        path.write_bytes(build_record(record))
        return path

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code of `pydra checkpoint`, and what it printed on both streams."""
        places = {"records-dir": "run", "kubelet-root": "kubelet", "cdi-dir": "cdi", "boot-id-file": "boot"}
        flags = [f"--{name}={self.root / path}" for name, path in places.items()]
        code = main(["checkpoint", *arguments, "--node-name=n", *flags])
        printed = self._output.readouterr()
        return code, printed.out, printed.err

    def json(self, *arguments: str) -> Any:
        """What it printed as JSON."""
        return json.loads(self.run(*arguments, "-o", "json")[1])


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, capsys)


def test_records_are_listed_with_claim_stage_and_devices(node: Node) -> None:
    node.write("1")
    node.write("2", stage=Stage.STARTED)
    code, printed, _ = node.run("list")
    assert code == 0
    assert [line.split()[:5] for line in printed.splitlines()] == [
        ["DRIVER", "CLAIM", "UID", "STAGE", "DEVICES"],
        [DRIVER, "default/claim-1", "1", "completed", "gpu-1"],
        [DRIVER, "default/claim-2", "2", "started", "gpu-2"],
    ]
    assert [one["stage"] for one in node.json("list")] == ["completed", "started"]


def test_a_damaged_record_is_named_with_its_devices_and_left_where_it_is(node: Node) -> None:
    path = node.write("1")
    path.write_bytes(path.read_bytes()[:-30])
    code, printed, _ = node.run("list")
    assert code == 1
    assert f"{path}: not a checkpoint record" in printed
    assert node.json("list")[0]["devices"] == ["gpu-1"]
    assert path.exists()


def test_a_record_is_shown_by_name_and_by_uid_and_a_similar_one_is_suggested(node: Node) -> None:
    node.write("1")
    for name in ("1", "default/claim-1"):
        assert node.json("show", name)[0]["record"]["claim"]["name"] == "claim-1"
    code, _, said = node.run("show", "default/clam-1")
    assert code == 2
    assert 'no record of a claim default/clam-1 on this node (did you mean "default/claim-1"?)' in said


def test_repair_sets_a_damaged_record_aside_and_uses_it_again_when_it_is_whole(node: Node) -> None:
    path = node.write("1")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    code, printed, _ = node.run("repair")
    assert code == 1
    assert "holds gpu-1" in printed
    aside = node.claims / "corrupt" / "1.json"
    aside.write_bytes(whole)
    code, printed, _ = node.run("repair")
    assert code == 0
    assert f"{aside} can be read, and is used again" in printed
    assert path.read_bytes() == whole


def build_kubelet_state(*uids: str) -> str:
    data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": [{"ClaimUID": uid} for uid in uids]})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})


def test_a_damaged_record_is_discarded_only_when_the_kubelet_does_not_know_its_claim(node: Node) -> None:
    path = node.write("1")
    path.write_bytes(b"?")
    kubelet = node.root / "kubelet" / "dra_manager_state"
    kubelet.write_text(build_kubelet_state("1"))
    code, _, said = node.run("repair", "--discard", "1")
    assert code == 1
    assert "the kubelet still has claim 1" in said
    assert (node.claims / "corrupt" / "1.json").exists()
    kubelet.write_text("{}")
    code, _, said = node.run("repair", "--discard", "1")
    assert code == 1
    assert "is damaged" in said
    kubelet.write_text(build_kubelet_state())
    assert node.run("repair", "--discard", "1")[0] == 0
    assert not (node.claims / "corrupt" / "1.json").exists()
    assert node.run("repair", "--discard", "1")[0] == 2, "there is nothing left to discard"


def test_a_node_without_claims_and_a_driver_without_records_are_reported(node: Node) -> None:
    assert node.run("list") == (0, "this node holds no claims\n", "")
    node.write("1")
    code, _, said = node.run("list", "--only", "gpu.example.co")
    assert code == 2
    assert f'(did you mean "{DRIVER}"?): records are of {DRIVER}' in said


# The container runtime


CONTAINERD = "etc/containerd/config.toml"
SECTION = "[plugins.'io.containerd.cri.v1.runtime']\n"


@pytest.mark.parametrize(
    ("runtime", "files", "level", "words"),
    [
        ("containerd://2.1.4", {}, "ok", "reads /var/run/cdi"),
        ("containerd://1.7.27", {}, "problem", "has CDI switched off"),
        (
            "containerd://1.7.27",
            {CONTAINERD: "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"},
            "ok",
            "reads /var/run/cdi",
        ),
        ("containerd://2.1.4", {CONTAINERD: SECTION + "cdi_spec_dirs = ['/etc/cdi']"}, "problem", "in /etc/cdi, and"),
        (
            "containerd://2.1.4",
            {
                CONTAINERD: "imports = ['/etc/containerd/d/*.toml']",
                "etc/containerd/d/a.toml": f"{SECTION}enable_cdi = false",
            },
            "problem",
            "has CDI switched off",
        ),
        (
            "containerd://2.1.4",
            {CONTAINERD: "imports = ['d/a.toml']", "etc/containerd/d/a.toml": f"{SECTION}enable_cdi = false"},
            "problem",
            "has CDI switched off",
        ),
        ("containerd://2.1.4", {CONTAINERD: "["}, "unknown", "cannot be read"),
        ("cri-o://1.34.0", {}, "ok", "reads /var/run/cdi"),
        (
            "cri-o://1.34.0",
            {"etc/crio/crio.conf.d/10.conf": "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']"},
            "problem",
            "reads CDI files in /opt/cdi, and the agent writes /var/run/cdi (",
        ),
        ("docker://28", {}, "unknown", "docker://28"),
    ],
)
def test_a_runtime_that_does_not_read_the_agents_cdi_files_is_reported(
    runtime: str, files: dict[str, str], level: str, words: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    finding = judge_runtime(Settings(backends=("sim",), node_name="n", host_root=str(tmp_path)), runtime)
    assert (finding.level.value, words in finding.found) == (level, True), finding


# CDI specs


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "gpu"}, "kind: 'gpu' must be VENDOR/CLASS"),
        ({"cdiVersion": "9"}, "cdiVersion: '9' must be one of"),
        (
            {"cdiVersion": "0.3.0", "annotations": {"a": "b"}},
            "cdiVersion: is 0.3.0, and what the file uses is there from",
        ),
        ({"surprise": 1}, "unknown field `surprise`"),
        ({"devices": []}, "devices: must have at least one device"),
        ({"devices": [{"name": "a", "containerEdits": {}}]}, "devices[0].containerEdits: must not be empty"),
        ({"containerEdits": {"env": ["A"]}}, "containerEdits.env[0]: 'A' must be NAME=VALUE"),
        ({"containerEdits": {"deviceNodes": [{"path": "a"}]}}, "containerEdits.deviceNodes[0].path: 'a' must be"),
        ({"containerEdits": {"hooks": [{"hookName": "x", "path": "/x"}]}}, "hooks[0].hookName: 'x' must be one of"),
    ],
)
def test_what_a_runtime_refuses_is_reported_with_its_place(changes: dict[str, Any], problem: str) -> None:
    device = {"name": "a", "containerEdits": {"env": ["A=b"]}}
    spec = {"cdiVersion": "1.0.0", "kind": "example.com/gpu", "devices": [device]}
    assert find_spec_problems(spec) == ()
    (found,) = find_spec_problems({**spec, **changes})
    assert problem in found


def test_what_other_drivers_write_for_older_runtimes_is_taken() -> None:
    edits = {"intelRdt": {"closID": "c", "enableCMT": True}, "env": ["A=b"]}
    spec = {"cdiVersion": "0.7.0", "kind": "example.com/gpu", "devices": [{"name": "a", "containerEdits": edits}]}
    assert find_spec_problems(spec) == ()


def test_files_are_checked_whatever_is_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("{cdiVersion: 1.0.0, kind: a.com/b, devices: [{name: a, containerEdits: {env: [A=b]}}]}")
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"\xff")
    other = tmp_path / "other.txt"
    other.write_text(good.read_text())
    assert main(["cdi", "validate", str(good)]) == 0
    assert main(["cdi", "validate", str(bad), str(other), f"{tmp_path}/none.json"]) == 1
    printed = capsys.readouterr().out
    assert f"ok       {good}" in printed
    for words in ("is not JSON", "runtimes read no other file", "cannot be read: no such file"):
        assert words in printed
