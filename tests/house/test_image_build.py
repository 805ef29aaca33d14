"""Builds the images with a real engine, and looks into them.

PYDRA_IMAGE_ENGINE is docker, podman or buildah; PYDRA_IMAGE_ARGS goes to it, as `--build-arg BASE=localhost/base:1`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = os.environ.get("PYDRA_IMAGE_ENGINE", "")
ARGUMENTS = shlex.split(os.environ.get("PYDRA_IMAGE_ARGS", ""))
NAME = "localhost/pydra-image-test"
BACKENDS = ("amd", "cpu", "net", "nvidia", "nvidia-compute-domain", "sim", "tpu")
IMAGES = (f"{NAME}:1", *(f"{NAME}-{backend}:1" for backend in BACKENDS))
MOMENT = 1700000000
MEGABYTE = 1 << 20

pytestmark = [
    pytest.mark.skipif(not ENGINE, reason="PYDRA_IMAGE_ENGINE names no engine to build with"),
    pytest.mark.timeout(3600),
]


def make(*arguments: str) -> dict[str, str]:
    """Build all; the id of each image."""
    variables = {"ENGINE": ENGINE, "IMAGE": NAME, "TAG": "1", "SOURCE_DATE_EPOCH": str(MOMENT)}
    command = [sys.executable, str(ROOT / "hack" / "image" / "build.py"), *ARGUMENTS, *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {image: ask("inspect", "--type=image", "--format", "{{.Id}}", image) for image in IMAGES}


def ask(*arguments: str) -> str:
    if arguments[0] == "inspect" and ENGINE == "buildah":
        arguments = tuple("{{.FromImageID}}" if one == "{{.Id}}" else one for one in arguments)
    done = subprocess.run([ENGINE, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Image:
    """What an image consists of: its config, and the files of its layers."""

    def __init__(self, name: str, scratch: Path) -> None:
        archive = scratch / "image.tar"
        if ENGINE == "buildah":
            ask("push", name, f"docker-archive:{archive}:{name}")
        else:
            ask("save", "--output", str(archive), name)
        self.files: dict[str, tarfile.TarInfo] = {}
        self.root = scratch / "root"
        with tarfile.open(archive) as outer:
            (manifest,) = json.load(self._member(outer, "manifest.json"))
            self.config: Mapping[str, object] = json.load(self._member(outer, manifest["Config"]))["config"]
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=self._member(outer, layer)) as inner:
                    self.files |= {f"/{one.name.strip('./')}": one for one in inner.getmembers() if one.name != "./"}
                    inner.extractall(self.root, filter="tar")
        archive.unlink()

    @staticmethod
    def _member(archive: tarfile.TarFile, name: str) -> tarfile.ExFileObject:
        file = archive.extractfile(name)
        assert isinstance(file, tarfile.ExFileObject)
        return file

    def run(self, *command: str, user: int = 65532) -> str:
        """A command with this as its root, and no other help: no /proc, no devices."""
        environ = dict(one.split("=", 1) for one in self.config["Env"])  # type: ignore[attr-defined]
        done = subprocess.run(
            ["chroot", f"--userspec={user}:{user}", self.root, *command],
            env=environ, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def ids() -> dict[str, str]:
    return make("--no-cache")


@pytest.fixture(scope="module", params=IMAGES, ids=["core", *BACKENDS])
def image(request: pytest.FixtureRequest, ids: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(request.param, tmp_path_factory.mktemp("image"))


@pytest.fixture
def runs(image: Image) -> Image:
    if os.geteuid():
        pytest.skip("only root can start a program in another root")
    return image


def test_files_belong_to_root_and_nobody_else_writes_them(image: Image) -> None:
    assert not [path for path, one in image.files.items() if (one.uid, one.gid) != (0, 0)]
    writable = [path for path, one in image.files.items() if one.mode & 0o022 and not one.issym()]
    assert writable == ["/tmp"]
    assert not [path for path, one in image.files.items() if one.mode & 0o6000]


def test_files_have_the_time_of_the_sources(image: Image) -> None:
    assert {one.mtime for path, one in image.files.items() if path != "/"} == {MOMENT}


def test_there_is_no_shell_no_compiler_no_package_manager_and_no_cache(image: Image) -> None:
    names = {path.rpartition("/")[2] for path, one in image.files.items() if not one.isdir()}
    assert not names & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "gcc", "cc", "ld", "perl", "make"}
    assert not [path for path in image.files if "/.cache" in path or path.startswith(("/src", "/wheels", "/root"))]


def test_all_python_is_compiled(image: Image) -> None:
    folders = "/usr/local/lib/python"
    sources = {path for path in image.files if path.startswith(folders) and path.endswith(".py")}
    compiled = {path for path in image.files if path.endswith(".pyc")}
    assert len(sources) > 1000
    there = {f"{path.replace('/__pycache__', '').rpartition('.cpython-')[0]}.py" for path in compiled}
    assert sources == there


def test_bytecode_asks_for_no_time_of_a_source(image: Image) -> None:
    flags = {path.read_bytes()[4:8] for path in image.root.rglob("*.pyc")}
    assert flags == {(1).to_bytes(4, "little")}, "unchecked hashes"


def test_nothing_of_where_it_was_built_is_inside(image: Image) -> None:
    for path in (image.root / "usr" / "local").rglob("*.dist-info/*"):
        assert path.name != "direct_url.json", "pip wrote where a wheel was"
    assert not [one for one in image.config["Env"] if "PIP" in one or "BASE" in one]  # type: ignore[attr-defined]


def test_it_says_what_it_is_and_runs_as_nobody(image: Image) -> None:
    labels = image.config["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.version"] == "1"
    assert str(labels["org.opencontainers.image.title"]).startswith("pydra-image-test")
    assert image.config["User"] == "65532:65532"


def test_it_is_small(image: Image) -> None:
    assert sum(one.size for one in image.files.values()) < 250 * MEGABYTE


def test_commands_of_the_chart_start_as_nobody(runs: Image) -> None:
    assert "--backend NAME" in runs.run("pydra-agent", "--help")
    assert "--tls-cert" in runs.run("pydra", "webhook", "--help")
    assert "pip" in runs.run("python", "-m", "pip", "--version")
    assert runs.run("python", "-c", "import ssl, sqlite3, ctypes, uvloop, yaml; print('loaded')") == "loaded\n"
    assert "chroot" in runs.run("chroot", "--help")


def test_each_image_has_its_backend(ids: dict[str, str], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can start a program in another root")
    found = {}
    for number, name in enumerate(IMAGES):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        image = Image(name, scratch)
        found[name] = [one["name"] for one in json.loads(image.run("pydra", "backends", "--output", "json"))]
    nvidia = ["nvidia", "nvidia-compute-domain"]
    assert found == dict(zip(IMAGES, ([], ["amd"], ["cpu"], ["net"], nvidia, nvidia, ["sim"], ["tpu"]), strict=True))


def test_no_image_has_what_only_developers_need(image: Image) -> None:
    assert not [path for path in image.files if "/pydra_dev/" in path or "/simulation/" in path]


def test_two_builds_from_nothing_are_one(ids: dict[str, str]) -> None:
    assert make("--no-cache") == ids
