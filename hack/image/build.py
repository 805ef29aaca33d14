"""`make image`: builds the image of the core and one for each backend, with docker, podman or buildah.

Each backend's image is called as the chart asks for it: IMAGE-BACKEND:TAG, BACKEND being what `pydra backends` prints.
`nvidia+sim` among the backends makes one image with both.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit(
        f"make image needs Python 3.11 or newer, this is {sys.version.split()[0]}; PYTHON=python3.13 names another"
    )

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("docker", "podman", "buildah")
INSTALL = (
    "Install one: `apt-get install podman` on Debian and Ubuntu, `dnf install podman` on Fedora,"
    " or Docker (https://docs.docker.com/engine/install/)"
)


def main(passed_on: Sequence[str]) -> None:
    """Arguments go to the engine; ENGINE, IMAGE, TAG and BACKENDS are variables, as make hands them on."""
    given = os.environ.get
    try:
        images = plan(given("IMAGE") or "pydra", given("TAG") or version(), given("BACKENDS", "").split())
        engine = choose_engine(given("ENGINE", ""))
        moment = last_change()
    except ValueError as error:
        sys.exit(f"make image: {error}")
    for name, folders in images.items():
        build(engine, name, folders, moment, passed_on)
    print("built with", engine + ":", *images)


def plan(image: str, tag: str, wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The folders of plugins/ in each image, by the image's name; the core's is the first."""
    known = backends()
    if unknown := {name for one in wanted for name in one.split("+")} - known.keys():
        raise ValueError(
            f"BACKENDS: plugins/ has no backend {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
        )
    images: dict[str, tuple[str, ...]] = {f"{image}:{tag}": ()}
    for one in wanted or sorted(known):
        names = one.split("+")
        folders = with_needed({known[name] for name in names})
        images[f"{image}-{'-'.join(sorted({*names}))}:{tag}"] = tuple(sorted(folders))
    return images


def with_needed(folders: Iterable[str]) -> set[str]:
    """The folders of plugins/, and those of the distributions there that they need."""
    projects = {path.parent.name: tomllib.loads(path.read_text())["project"] for path in find_projects()}
    by_name = {project["name"]: folder for folder, project in projects.items()}
    found: set[str] = set()
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        found.add(folder)
        needed = (re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in projects[folder].get("dependencies", ()))
        waiting += [by_name[name] for name in needed if by_name.get(name, folder) not in found]
    return found


def find_projects() -> list[Path]:
    """What plugins/ has."""
    return sorted(ROOT.glob("plugins/*/pyproject.toml"))


def backends() -> dict[str, str]:
    """The folder of plugins/ that each backend is in, by the backend's name."""
    found: dict[str, str] = {}
    for path in find_projects():
        points = tomllib.loads(path.read_text())["project"].get("entry-points", {})
        found |= dict.fromkeys(points.get("pydra.backends", {}), path.parent.name)
    return found


def version() -> str:
    """The core's, which the chart asks for when it is not told otherwise."""
    (found,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "pydra" / "__init__.py").read_text(), flags=re.MULTILINE)
    return str(found)


def choose_engine(wanted: str) -> str:
    """The engine that was named, or the first that works."""
    silent = []
    for name in [wanted] if wanted else ENGINES:
        if Path(name).name not in ENGINES:
            raise ValueError(f"ENGINE={name} is none of {', '.join(ENGINES)}")
        if shutil.which(name):
            done = subprocess.run([name, "info"], capture_output=True, text=True, check=False, timeout=60)
            if not done.returncode:
                return name
            silent.append(f"`{name} info` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    if silent:
        raise ValueError("\n".join(["no engine works here:", *silent]))
    raise ValueError(f"{wanted or ', '.join(ENGINES)}: not found. {INSTALL}")


def last_change() -> int:
    """When the last commit was made: the time of all files in the images."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        if not given.isdecimal():
            raise ValueError(f"SOURCE_DATE_EPOCH={given} is not a number of seconds")
        return int(given)
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise ValueError("no git history tells the time of the sources: set SOURCE_DATE_EPOCH to it") from None


def build(engine: str, name: str, folders: Sequence[str], moment: int, passed_on: Sequence[str]) -> None:
    """One image."""
    kind = Path(engine).name
    path, _, tag = name.rpartition(":")
    # Arguments, and not --label, which some engines forget where a layer is in their cache.
    given = {"SOURCE_DATE_EPOCH": moment, "TITLE": path.rpartition("/")[2], "VERSION": tag}
    command = [engine, "build", "--file", "Dockerfile", "--tag", name]
    command += [f"--build-arg={key}={value}" for key, value in given.items()]
    command += [f"--build-arg=BACKENDS={' '.join(folders)}"] if folders else ["--target=core"]
    if kind != "docker":
        # docker takes the time from the argument, and the files' from the stage.
        command += ["--layers", f"--timestamp={moment}", "--identity-label=false"]
    print(f"{name}:", flush=True)
    done = subprocess.run(
        [*command, *passed_on, "."], cwd=ROOT, check=False, env={**os.environ, "DOCKER_BUILDKIT": "1"}
    )
    if done.returncode:
        sys.exit(f"make image: {engine} ended with {done.returncode} while it built {name}; what it said is above")


if __name__ == "__main__":
    main(sys.argv[1:])
