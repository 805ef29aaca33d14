"""Runs while an image is built: makes the root of an image from the sources, pinned packages, and the base's system.

    install.py core ROOT                 Python, the system's libraries, pydra
    install.py backends ROOT [FOLDER..]  what these folders of plugins/ need beside that

Standard library only. The base has been chosen, so that pip and Python are pinned too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import root as image_root

CORE = "pydra-dra[tracing]"
"""With what a setting can ask for."""
WHEELS = Path("/wheels")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--no-input", "--quiet")
ONTO_ROOT = ("install", "--no-compile", "--no-deps", "--ignore-installed", "--root-user-action=ignore")


def main() -> None:
    what, root, folders = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if what == "core":
        image_root.lay_system(root)
        install([build(Path())], root, have=())
    else:
        core = Path("/core", *site_packages().parts[1:])
        have = {canonical(found.name) for found in metadata.distributions(path=[str(core)])}
        projects = [Path("plugins", folder) for folder in folders]
        install([build(project) for project in projects], root, have)
        image_root.leave_out(root / site_packages().relative_to("/"), projects)
    image_root.finish(root)


def build(project: Path) -> str:
    """The project's wheel into WHEELS; its requirement."""
    about = tomllib.loads((project / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as tools:
        locked = write(tools, lock(about["build-system"]["requires"]))
        pip("install", "--no-compile", "--no-deps", "--root-user-action=ignore", "--target", tools, "-r", locked)
        environ = {**os.environ, "PYTHONPATH": tools}
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", WHEELS, f"./{project}", environ=environ)
    name = about["project"]["name"]
    return CORE if name == CORE.partition("[")[0] else name


def install(requirements: Sequence[str], root: Path, have: Iterable[str]) -> None:
    """Packages of the registry by their hashes, then our wheels."""
    if not requirements:
        return
    locked = lock([*requirements, CORE], have)
    to_root = (*ONTO_ROOT, "--root", root, "--prefix", sys.base_prefix)
    if locked:
        with tempfile.TemporaryDirectory() as scratch:
            pip(*to_root, "-r", write(scratch, locked))
    names = [requirement.partition("[")[0] for requirement in requirements]
    # By name from a folder: a wheel given by its path would leave that path in the image.
    pip(*to_root, "--no-index", "--find-links", WHEELS, *names)


def lock(requirements: Sequence[str], have: Iterable[str] = ()) -> str:
    """The blocks of constraints.txt, with hashes, for all that these need and that is neither there nor ours."""
    blocks = re.split(r"\n(?=\S)", Path("constraints.txt").read_text().strip())
    # To resolve, versions are enough, and with hashes pip would ask for those of our own wheels.
    versions = [re.sub(r"\s*(\\|--hash=\S+)", "", block) for block in blocks]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        links = ("--find-links", WHEELS) if WHEELS.exists() else ()
        wanted = ("install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", report, *links)
        pip(*wanted, "-c", write(scratch, "\n".join(versions)), *requirements)
        found = {canonical(one["metadata"]["name"]) for one in json.loads(report.read_text())["install"]}
    ours = {canonical(wheel.name.partition("-")[0]) for wheel in WHEELS.glob("*.whl")}
    needed = found - ours - set(have)
    if missing := needed - {name_of(block) for block in blocks}:
        sys.exit(f"constraints.txt does not pin {', '.join(sorted(missing))}: add what needs it to it with `make lock`")
    return "".join(f"{block}\n" for block in blocks if name_of(block) in needed)


def name_of(block: str) -> str:
    return canonical(block.partition("==")[0].strip())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def write(directory: str, text: str) -> Path:
    """A file with these requirements, for pip."""
    path = Path(directory, "requirements.txt")
    path.write_text(text)
    return path


def pip(*arguments: str | Path, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run([*PIP, *map(str, arguments)], check=False, env=environ)
    if done.returncode:
        sys.exit(f"pip {arguments[0]} ended with {done.returncode}; what it wrote is above")


if __name__ == "__main__":
    main()
