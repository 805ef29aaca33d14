"""What images are made of is pinned, each backend has one, and `make image` says what it needs. No engine is needed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

import pydra
from tests.chart.rendering import AMD, BOTH, COMPUTE_DOMAIN, CPU, NET, TPU, at, overlay, render
from tests.house.scripts import load

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PLUGIN = '[project]\nname = "pydra-fpga"\n[project.entry-points."pydra.backends"]\nfpga = "pydra_fpga"\n'
RECORDS = '#!/bin/sh\nif [ "$1" = build ]; then echo "$@" >>"$RECORD"; else exit "${INFO:-0}"; fi\nexit "${BUILD:-0}"\n'


def test_every_stage_is_from_the_pinned_base_or_from_one_before_it() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert re.fullmatch(r"[a-z.]+/[a-z/]+@sha256:[0-9a-f]{64}", base)
    stages = {"${BASE}", "scratch"}
    for source, name in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, flags=re.MULTILINE):
        assert source in stages
        stages.add(name)
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= stages


def test_the_python_of_the_base_is_one_that_pydra_supports() -> None:
    (version,) = re.findall(r"^# python:(\d+\.\d+)\.\d+-slim", DOCKERFILE, flags=re.MULTILINE)
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version}" in about["classifiers"]


def test_all_that_wheels_are_built_from_is_in_the_context_and_no_tests_are() -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert rules[1] == "*", "what is not named stays outside"
    named = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = core["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {*packages, core["project"]["readme"], "pyproject.toml", "constraints.txt", "plugins"} <= named
    assert not [name for name in named if not (ROOT / name).exists()]
    assert "plugins/*/tests" in rules


def test_no_image_has_pydra_dev_or_the_simulation_of_a_vendors_library() -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"plugins/pydra-dev", "plugins/*/*/simulation"} <= set(rules)
    assert list(ROOT.glob("plugins/*/*/simulation")), "the rule leaves something out"


def test_what_images_leave_out_of_packages_is_not_missed(tmp_path: Path) -> None:
    for file in importlib.metadata.files("cel-expr-python") or ():
        if ".pyc" not in file.name:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), tmp_path / file)
    root, projects = load(ROOT / "hack" / "image" / "root.py"), [ROOT / "plugins" / "pydra-net"]
    root.leave_out(tmp_path, projects)
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["cel_expr_python"] * 2
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 16_000_000
    code = (
        "from cel_expr_python import cel; from pydra import Device; from pydra_net.cel_filter import DeviceFilter;"
        """chosen = DeviceFilter('cel.bind(d, device.attributes["dra.net"], d.?mtu.orValue(0) > 1 &&"""
        """ sets.contains([d.type.lowerAscii()], ["veth"]) && [1].all(i, v, i < v) && [[1]].flatten() == [1])');"""
        "print(cel.__file__, chosen.selects('dra.net', Device(name='a', attributes={'type': 'VETH', 'mtu': 9})))"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert done.stdout.endswith(" True\n")
    shutil.rmtree(tmp_path / "cel_expr_python")
    record = next(tmp_path.glob("*.dist-info/RECORD"))
    record.write_text(record.read_text().replace("cel_expr_python/cel.", "cel_expr_python/other."))
    with pytest.raises(SystemExit, match=r"cel-expr-python has no cel_expr_python/cel.\*.so; correct that"):
        root.leave_out(tmp_path, projects)


def test_every_plugin_with_a_backend_gets_an_image_by_the_name_that_the_chart_asks_for() -> None:
    build = load(ROOT / "hack" / "image" / "build.py")
    images = build.plan("pydra", build.version(), [])
    assert images.pop(f"pydra:{pydra.__version__}") == ()
    folders = {folder for several in images.values() for folder in several}
    assert folders == {project.name for project in PROJECTS[1:]} - {"pydra-dev"}
    sets = render(overlay(BOTH, TPU, AMD, CPU, NET, COMPUTE_DOMAIN)).all("DaemonSet")
    assert {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in sets} == set(images)


@pytest.mark.parametrize(
    ("wanted", "images"),
    [
        (["sim"], {"r/p:1": (), "r/p-sim:1": ("pydra-sim",)}),
        (["sim+nvidia"], {"r/p:1": (), "r/p-nvidia-sim:1": ("pydra-nvidia", "pydra-pci", "pydra-sim")}),
    ],
    ids=["one", "two in one, with what they need"],
)
def test_backends_choose_the_images(wanted: list[str], images: Mapping[str, tuple[str, ...]]) -> None:
    assert load(ROOT / "hack" / "image" / "build.py").plan("r/p", "1", wanted) == images


@pytest.mark.parametrize("wanted", ["nvidia+sim", "sim+nvidia"])
def test_the_image_of_several_backends_is_the_one_that_the_chart_asks_for_with_onepod(wanted: str) -> None:
    asked = render(BOTH, at("onePod", True)).agent()["image"]
    assert asked in load(ROOT / "hack" / "image" / "build.py").plan("pydra", "0.1.0", [wanted])


class Tree:
    """A copy of what `make image` reads, with one plugin; engines are programs that write down what they are asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("Makefile", "hack/image/build.py", "pydra/__init__.py"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path / name)
        (path / "plugins" / "pydra-fpga").mkdir(parents=True)
        (path / "plugins" / "pydra-fpga" / "pyproject.toml").write_text(PLUGIN)
        self.programs = path / "bin"
        self.programs.mkdir()
        for name in ("sh", "awk"):
            (self.programs / name).symlink_to(shutil.which(name) or f"/bin/{name}")

    def engine(self, name: str) -> None:
        (self.programs / name).write_text(RECORDS)
        (self.programs / name).chmod(0o755)

    def make(self, *arguments: str, **environ: str) -> tuple[int, str, list[str]]:
        """Exit code, what it said, and the builds that engines were asked for."""
        record = self.path / "record"
        variables = {"PATH": str(self.programs), "RECORD": str(record), "SOURCE_DATE_EPOCH": "1700000000", **environ}
        make = shutil.which("make") or "/usr/bin/make"
        command = [make, "image", f"PYTHON={sys.executable}", *arguments]
        # Nothing of the make that runs this test.
        done = subprocess.run(
            command, cwd=self.path, env=variables, capture_output=True, text=True, check=False, timeout=50
        )
        return done.returncode, done.stdout + done.stderr, record.read_text().splitlines() if record.exists() else []


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_without_an_engine_it_says_what_to_install(tree: Tree) -> None:
    code, said, _ = tree.make()
    assert code
    assert "docker, podman, buildah: not found. Install one: `apt-get install podman`" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["ENGINE=buildah"], {}, "buildah: not found. Install one"),
        (["ENGINE=kaniko"], {}, "ENGINE=kaniko is none of docker, podman, buildah"),
        (["BACKENDS=gpu"], {}, "BACKENDS: plugins/ has no backend gpu; it has fpga"),
        ([], {"INFO": "3"}, "no engine works here:\n`podman info` ended with 3"),
        ([], {"BUILD": "4"}, "podman ended with 4 while it built pydra:"),
        ([], {"SOURCE_DATE_EPOCH": "now"}, "SOURCE_DATE_EPOCH=now is not a number of seconds"),
        ([], {"SOURCE_DATE_EPOCH": ""}, "no git history tells the time of the sources: set SOURCE_DATE_EPOCH to it"),
    ],
    ids=["not there", "of another kind", "unknown backend", "not working", "failing", "time", "no time"],
)
def test_what_is_wrong_is_reported(tree: Tree, arguments: list[str], environ: Mapping[str, str], words: str) -> None:
    tree.engine("podman")
    code, said, _ = tree.make(*arguments, **environ)
    assert code
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_a_new_folder_of_plugins_gets_an_image_with_every_engine(tree: Tree, engine: str) -> None:
    tree.engine(engine)
    code, said, builds = tree.make("IMAGE=registry.example.com/team/pydra", "TAG=7", "ARGS=--pull --build-arg=BASE=b")
    assert code == 0, said
    core, fpga = builds
    assert "--tag registry.example.com/team/pydra:7 " in core
    assert "--target=core" in core
    assert "--tag registry.example.com/team/pydra-fpga:7 " in fpga
    assert "--build-arg=BACKENDS=pydra-fpga " in fpga
    assert "--build-arg=TITLE=pydra-fpga " in fpga
    assert "--build-arg=VERSION=7 " in fpga
    for one in builds:
        assert "--build-arg=SOURCE_DATE_EPOCH=1700000000 " in one
        assert one.endswith("--pull --build-arg=BASE=b .")
        assert ("--timestamp=1700000000" in one) == (engine != "docker")


def test_an_engine_that_does_not_answer_gives_way_to_one_that_does(tree: Tree) -> None:
    tree.engine("podman")
    (tree.programs / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tree.programs / "docker").chmod(0o755)
    code, said, builds = tree.make("BACKENDS=fpga")
    assert code == 0, said
    assert len(builds) == 2
    assert "built with podman: pydra:" in said


def test_git_tells_the_time_of_the_files(tree: Tree) -> None:
    tree.engine("podman")
    if not (git := shutil.which("git")):
        pytest.skip("no git is here")
    (tree.programs / "git").symlink_to(git)
    moment = {"GIT_COMMITTER_DATE": "1650000000 +0000", "GIT_AUTHOR_DATE": "1650000000 +0000"}
    who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    environ = {**os.environ, **moment}
    for command in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "--message", "one"]):
        subprocess.run([git, *command], cwd=tree.path, env=environ, check=True, timeout=50)
    code, said, builds = tree.make(SOURCE_DATE_EPOCH="")
    assert code == 0, said
    assert all("--timestamp=1650000000" in one for one in builds)
