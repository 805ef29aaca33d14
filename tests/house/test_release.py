"""`make release` and `make publish`: what they refuse, what they build, and what a registry gets."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import publish
import pytest
import release
import sbom
import tenacity
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"


@pytest.mark.parametrize(
    ("changelog", "changes", "problem"),
    [
        pytest.param("## 1.2.0 (2026-01-31)\n\n- New.\n", [], "", id="complete"),
        pytest.param("## 1.1.0 (2026-01-31)\n", [], "has no section 1.2.0", id="no section"),
        pytest.param("## 1.2.0 (unreleased)\n", [], "must have a date", id="no date"),
        pytest.param("## 1.2.0 (2026-01-31)\n", ["+new.added.md"], "has +new.added.md", id="a change is left"),
    ],
)
def test_a_tag_needs_a_complete_section_of_the_changelog(changelog: str, changes: list[str], problem: str) -> None:
    problems = "\n".join(release.find_changelog_problems(changelog, changes, "1.2.0"))
    assert (problem in problems) if problem else not problems


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def build_archive(path: Path, files: dict[str, bytes]) -> None:
    """An OCI archive of an image with one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w:gz") as inner:
        for name, content in files.items():
            add(inner, name, content)
    with tarfile.open(path, "w") as outer:

        def put(content: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            add(outer, f"blobs/sha256/{digest}", content)
            return {"digest": f"sha256:{digest}", "size": len(content)}

        labels = {"org.opencontainers.image.title": "pydra-fpga", "org.opencontainers.image.version": VERSION}
        config = put(json.dumps({"config": {"Labels": labels}}).encode())
        manifest = put(json.dumps({"config": config, "layers": [put(layer.getvalue())]}).encode())
        add(outer, "index.json", json.dumps({"manifests": [manifest]}).encode())


@pytest.mark.parametrize(
    ("told", "licences"),
    [
        (["License-Expression: Apache-2.0 AND MIT"], [{"expression": "Apache-2.0 AND MIT"}]),
        (["License: MIT"], [{"license": {"id": "MIT"}}]),
        (
            ["License: Copyright", "        all", "Classifier: License :: OSI Approved :: MIT License"],
            [{"license": {"name": "MIT License"}}],
        ),
        ([], None),
    ],
)
def test_the_sbom_of_an_image_lists_what_its_layers_have(told: list[str], licences: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.oci.tar"
    about = "\n".join(["Name: My_Lib", "Version: 1.2", *told, "", "Text"])
    build_archive(
        image,
        {
            "usr/lib/python3/site-packages/My_Lib-1.2.dist-info/METADATA": about.encode(),
            "usr/local/include/python3.13/patchlevel.h": b'/* */\n#define PY_VERSION      \t"3.13.15"\n\n/*\n',
            "usr/lib/python3/site-packages/my_lib/METADATA": b"Name: other\nVersion: 1\n",
            "var/lib/dpkg/status.d/libc6": b"Package: libc6\nVersion: 2.36-9+deb12u14\nArchitecture: amd64\n",
            "var/lib/dpkg/status.d/libc6.md5sums": b"0 file\n",
        },
    )
    found = json.loads(sbom.of_image(image, 1700000000))
    assert found["specVersion"] == "1.6"
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert found["metadata"]["component"]["purl"].startswith("pkg:oci/pydra-fpga@sha256:")
    assert {one["purl"]: one.get("licenses") for one in found["components"]} == {
        "pkg:pypi/my-lib@1.2": licences,
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64": None,
        "pkg:generic/python@3.13.15": [{"license": {"id": "PSF-2.0"}}],
    }
    assert [one["cpe"].split(":")[5] for one in found["components"] if "cpe" in one] == ["3.13.15"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a repository of their own, with all that is not committed yet, and a released folder."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("the sources are not a git repository")
    tree = tmp_path_factory.mktemp("release") / "tree"
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():  # not deleted since the last commit
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all", "--no-verify"]):
        git(tree, *command)
    return tree


def git(tree: Path, *command: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", tree, *who, *command], check=True)


def call(tree: Path, script: str, *arguments: str, **tools: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "hack" / script), *arguments]
    environ = {**os.environ, "ENGINE": "", **tools}
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_two_releases_of_a_commit_are_the_same_and_complete_and_what_is_not_committed_is_not_released(
    clone: Path,
) -> None:
    assert_refused_with_changes(clone)
    sums = []
    for _ in range(2):
        done = call(clone, "release.py", "--without-images")
        assert done.returncode == 0, done.stdout + done.stderr
        sums.append((clone / "dist" / VERSION / "SHA256SUMS").read_text())
    assert sums[0] == sums[1]
    folder = clone / "dist" / VERSION
    listed = dict(line.split("  ")[::-1] for line in sums[0].splitlines())
    assert listed.keys() == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    for project in ("pydra_dra", "pydra_nvidia", "pydra_dev"):
        assert {f"{project}-{VERSION}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json")} <= listed.keys()
    statement = json.loads((folder / "provenance.intoto.json").read_text())
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == {
        name: digest for name, digest in listed.items() if name != "provenance.intoto.json"
    }
    with helm_python.Chart.load(folder / f"pydra-{VERSION}.tgz") as chart:
        assert chart.version == VERSION


@pytest.mark.parametrize(
    ("arguments", "base"),
    [
        ("", re.findall("^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[0]),
        (f"--no-cache --build-arg BASE=r.io/python@sha256:{'0' * 64}", f"r.io/python@sha256:{'0' * 64}"),
        ("--build-arg=BASE=r.io/python:3", "r.io/python:3"),
    ],
)
def test_the_provenance_of_images_names_what_they_are_built_on(arguments: str, base: str, tmp_path: Path) -> None:
    release.write_provenance(tmp_path, "", ("linux/amd64",), release.find_base(arguments))
    statement = json.loads((tmp_path / "provenance.intoto.json").read_text())
    found = statement["predicate"]["buildDefinition"]["resolvedDependencies"][-1]
    assert found["uri"] == base
    assert [*found.get("digest", {}).values()] == base.partition("@sha256:")[2].split()


def assert_refused_with_changes(clone: Path) -> None:
    chart = clone / "charts" / "pydra" / "Chart.yaml"
    text = chart.read_text()
    chart.write_text(text.replace(f"appVersion: {VERSION}", "appVersion: 9.9.9"))
    done = call(clone, "release.py", "--without-images", "--tag", "v1.0.0")
    chart.write_text(text)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "make release: charts/pydra appVersion has the version 9.9.9, the chart 0.1.0; all must have one" in lines
    assert "make release: these files are not committed: charts/pydra/Chart.yaml" in lines
    assert "make release: the tag v1.0.0 is not v0.1.0, which this commit has" in lines


def test_what_was_changed_after_the_release_is_not_published(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "pydra-0.1.0-linux-amd64.oci.tar").write_bytes(b"new")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  pydra-0.1.0-linux-amd64.oci.tar\n")
    assert list(publish.find_problems(folder, "registry.example.com/team")) == [
        f"{folder}/pydra-0.1.0-linux-amd64.oci.tar is not what SHA256SUMS says; run make release again"
    ]


def write_tool(path: Path, last_line: str = "") -> str:
    """A program that writes down what it is called with; returns its command."""
    path.write_text(f'#!/bin/sh\necho "$@" >> {path}.calls\n{last_line}\n')
    path.chmod(0o755)
    return f"{path} --strict"


def test_an_image_that_the_scanner_refuses_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("pydra-sim-0.1.0-linux-amd64.cdx.json", "pydra_dra-0.1.0.cdx.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setenv("SCANNER", write_tool(tmp_path / "accepting"))
    release.scan_images(tmp_path)
    assert (tmp_path / "accepting.calls").read_text() == f"--strict {tmp_path}/pydra-sim-0.1.0-linux-amd64.cdx.json\n"
    monkeypatch.setenv("SCANNER", write_tool(tmp_path / "refusing", "echo CVE-2026-1 critical; exit 2"))
    with pytest.raises(SystemExit, match="ended with 2\nCVE-2026-1 critical"):
        release.scan_images(tmp_path)
    monkeypatch.setenv("SCANNER", "")
    release.scan_images(tmp_path)
    assert "the images are not scanned: SCANNER names no command" in capsys.readouterr().out


def test_a_scanner_or_signer_that_is_not_installed_is_reported_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIGNER", "no-such-signer sign --yes")
    monkeypatch.delenv("SCANNER", raising=False)
    (problem,) = release.find_tool_problems("SIGNER")
    assert problem.startswith("SIGNER=no-such-signer sign --yes: no-such-signer is not installed")
    assert not list(release.find_tool_problems("SCANNER"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("docker-registry is not installed: nothing to push to")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    (tmp_path / "users").write_text(
        "robot:$2b$05$.gJWtvZvdrTvvKZZ/ZAuZevcdoKq6cUyfKPeCVQg4FKrYb/sH49kW\n"
    )  # of "password", by bcrypt
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": f"{tmp_path}/data"}},
        "auth": {"htpasswd": {"realm": "test", "path": f"{tmp_path}/users"}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(config))
    with subprocess.Popen([program, "serve", tmp_path / "registry.yaml"], stderr=subprocess.DEVNULL) as process:
        for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.05), stop=tenacity.stop_after_delay(20)):
            with attempt:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
        yield f"127.0.0.1:{port}/team"
        process.terminate()


def test_images_of_all_platforms_become_one_index_in_the_registry(registry: str, clone: Path) -> None:
    if not shutil.which("buildah") or os.geteuid():
        pytest.skip("needs buildah and root: it pushes images")
    folder = clone / "dist" / VERSION
    if not folder.exists():
        assert call(clone, "release.py", "--without-images").returncode == 0
    for platform in ("amd64", "arm64"):
        write_image(folder / f"pydra-fpga-{VERSION}-linux-{platform}.oci.tar", platform)
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    signer = write_tool(clone.parent / "signer")
    logins = str(clone.parent / "logins.json")
    host, _, path = registry.partition("/")
    refused = call(clone, "publish.py", registry, "--plain-http", REGISTRY_AUTH_FILE=logins)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused.stderr
    login = ["buildah", "login", "--tls-verify=false", "--authfile", logins, "-u", "robot", "-p", "password", host]
    subprocess.run(login, check=True, capture_output=True, timeout=20)
    done = call(clone, "publish.py", registry, "--plain-http", SIGNER=signer, REGISTRY_AUTH_FILE=logins)
    assert done.returncode == 0, done.stdout + done.stderr
    image, chart = done.stdout.splitlines()
    assert (clone.parent / "signer.calls").read_text() == f"--strict {image}\n--strict {chart}\n"
    assert image.startswith(f"{registry}/pydra-fpga:{VERSION}@sha256:")
    assert chart.startswith(f"{registry}/charts/pydra:{VERSION}@sha256:")
    basic = base64.b64encode(b"robot:password").decode()
    kinds = {"Accept": "application/vnd.oci.image.index.v1+json", "Authorization": f"Basic {basic}"}
    asked = urllib.request.Request(f"http://{host}/v2/{path}/pydra-fpga/manifests/{VERSION}", headers=kinds)
    with urllib.request.urlopen(asked, timeout=20) as answer:
        index = json.load(answer)
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]


def write_image(path: Path, architecture: str) -> None:
    """An image with an empty layer, as an OCI archive."""
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w"):
        pass
    with tarfile.open(path, "w") as outer:

        def put(content: bytes, kind: str) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            add(outer, f"blobs/sha256/{digest}", content)
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

        prefix = "application/vnd.oci.image"
        layer = put(empty.getvalue(), f"{prefix}.layer.v1.tar")
        config = {
            "architecture": architecture,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{prefix}.manifest.v1+json",
            "config": put(json.dumps(config).encode(), f"{prefix}.config.v1+json"),
            "layers": [layer],
        }
        entry = put(json.dumps(manifest).encode(), f"{prefix}.manifest.v1+json")
        add(outer, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        index = {
            "schemaVersion": 2,
            "manifests": [{**entry, "platform": {"architecture": architecture, "os": "linux"}}],
        }
        add(outer, "index.json", json.dumps(index).encode())


def test_the_workflows_call_targets_that_exist_and_test_every_supported_python() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = set()
    for path in sorted((ROOT / ".github" / "workflows").iterdir()):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        steps = [step.get("run", "") for job in jobs for step in job.get("steps", ())]
        called |= {found for step in steps for found in re.findall(r"\bmake ([a-z0-9-]+)", step)}
    assert {"test", "release", "publish"} <= called <= targets
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = [one.rpartition(" ")[2] for one in classifiers if re.fullmatch(r".* 3\.\d+", one)]
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == supported


def test_the_workflows_run_no_action_that_somebody_else_can_change_and_leave_it_no_token() -> None:
    for path in sorted((ROOT / ".github" / "workflows").iterdir()):
        text = path.read_text()
        used = re.findall(r"uses: (\S+)(.*)", text)
        for name, comment in used:
            assert name.startswith("./") or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name), name
            assert name.startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", comment), "dependabot updates both"
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        steps = [step for job in workflow["jobs"].values() for step in job.get("steps", ())]
        for step in steps:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            assert "${{ github." not in step.get("run", ""), "a name could end the command"
