"""The init container of `packages` as a process, with real pip: the image's own packages are never replaced."""

from __future__ import annotations

import shutil
import subprocess
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.chart.rendering import SIM, at, overlay, render, variables

pip = pytest.importorskip("pip", reason="there is no pip to give to the image")
PRINT = """
import importlib.metadata, corelib, fpga
print(corelib.VERSION, fpga.__file__)
print([point.load().NAME for point in importlib.metadata.entry_points(group="pydra.backends")])
"""


class Image:
    """A Python with a distribution in it, a folder of wheels, and the containers that the chart makes for both."""

    def __init__(self, python: Path, scratch: Path) -> None:
        self.python = python
        self.wheels = scratch / "wheels"
        self.packages = scratch / "packages"
        self.packages.mkdir()
        self.wheels.mkdir()

    def wheel(self, name: str, version: str, needs: Iterable[str] = (), points: str = "") -> None:
        """Put one into the folder: a module of the distribution's name with VERSION in it."""
        about = f"{name}-{version}.dist-info"
        requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
        files = {
            f"{name}.py": f"VERSION = {version!r}\nNAME = {name!r}\n",
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/entry_points.txt": points,
        }
        record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
        with zipfile.ZipFile(self.wheels / f"{name}-{version}-py3-none-any.whl", "w") as archive:
            for path, text in {**files, f"{about}/RECORD": record}.items():
                archive.writestr(path, text)

    def pip(self, *command: str) -> int:
        done = subprocess.run([self.python, *command], capture_output=True, text=True, check=False)
        self.said = done.stdout + done.stderr
        return done.returncode

    def install(self, *names: str) -> int:
        """What the init container does."""
        arguments = ["--no-index", "--find-links", str(self.wheels)]
        pod = render(SIM, at("packages", {"names": [*names], "pipArguments": arguments})).pod()
        (installer,) = pod["initContainers"]
        words: list[str] = installer["command"] + installer["args"]
        assert words[0] == "python"
        return self.pip(*(str(self.packages) if word == "/packages" else word for word in words[1:]))

    def run(self, code: str) -> str:
        """What the agent's Python prints, with the agent's variables."""
        path = variables(render(SIM, at("packages.names", ["any"])).agent())["PYTHONPATH"]
        environ = {"PYTHONPATH": path.replace("/packages", str(self.packages))}
        done = subprocess.run([self.python, "-P", "-c", code], capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the image, which has corelib 1.0 and is never written to."""
    scratch = tmp_path_factory.mktemp("image")
    venv.create(scratch / "image")
    # A copy of the pip that is here, compiled as it is: to install it takes longer than all tests of this file.
    (site,) = (scratch / "image").glob("lib/python*/site-packages")
    shutil.copytree(Path(pip.__file__).parent, site / "pip")
    made = Image(scratch / "image" / "bin" / "python", scratch)
    made.wheel("corelib", "1.0")
    with zipfile.ZipFile(made.wheels / "corelib-1.0-py3-none-any.whl") as archive:
        archive.extractall(site)
    return made.python


@pytest.fixture
def image(python: Path, tmp_path: Path) -> Image:
    made = Image(python, tmp_path)
    for version in ("1.0", "9.9"):
        made.wheel("corelib", version)
    return made


def test_a_backend_comes_beside_what_the_image_has_and_hides_nothing_of_it(image: Image) -> None:
    image.wheel("fpga", "1.2", needs=["corelib>=0.5", "more"], points="[pydra.backends]\nfpga = fpga\n")
    image.wheel("more", "3.0")
    for _ in range(2):  # as when a node has restarted
        assert image.install("fpga") == 0, image.said
        first, points = image.run(PRINT).splitlines()
        assert first.startswith(f"1.0 {image.packages}"), "the image's, though there is a newer one"
        assert points == "['fpga']"
    assert "3.0" in image.run("import more; print(more.VERSION)")
    (site,) = image.packages.glob("lib/python*/site-packages")
    (site / "corelib.py").write_text("VERSION = 'stray'\n")
    (site / "json.py").write_text("raise SystemExit('not the one of Python')\n")
    said = image.run("import corelib, json; print(corelib.VERSION)")
    assert said == "1.0\n", "a module that the image has comes first even if a package brings one of its name"


def test_a_package_that_needs_another_version_than_the_images_is_refused(image: Image) -> None:
    image.wheel("fpga", "1.2", needs=["corelib>=2"])
    assert image.install("fpga") != 0
    assert "corelib==1.0" in image.said
    assert "conflict" in image.said


def test_webhook_and_agent_find_the_same_packages() -> None:
    objects = render(overlay(SIM, at("webhook.enabled", True)), at("packages.names", ["any"]))
    (webhook,) = objects.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert variables(webhook)["PYTHONPATH"] == variables(objects.agent())["PYTHONPATH"] == "/packages/start"
