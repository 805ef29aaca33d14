"""Builds the wheels, installs them into an empty environment, tries there what a user would, and runs all tests there.

That it works with the sources proves nothing: a module left out of a wheel, or a dependency that only development
has, is found only here. Arguments go to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from importlib import metadata
from pathlib import Path

import lock

ROOT = lock.ROOT
QUIET = ("--quiet", "--disable-pip-version-check")
BUILD = ("--no-deps", "--no-build-isolation")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pydra-wheels-") as scratch:
        os.chmod(scratch, 0o755)  # some tests become another user, who must be able to read what is installed
        wheels, environment = Path(scratch, "wheels"), Path(scratch, "env")
        run(sys.executable, "-m", "pip", "wheel", *QUIET, *BUILD, "--wheel-dir", wheels, *lock.PROJECTS)
        venv.create(environment)
        site = next(environment.glob("lib/python*/site-packages"))
        for name in lock.needs(lock.project_names()):
            copy_installed(name, site)
        pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
        # By name, so that the extra `dev` is what brings pydra-dev and pydra-sim.
        names = ("pydra-dra[dev]", "pydra-amd", "pydra-cpu", "pydra-net", "pydra-nvidia", "pydra-tpu")
        run(*pip, "install", *QUIET, "--no-index", "--find-links", wheels, *names)
        try_out(environment / "bin", Path(scratch))
        print(
            f"wheels: {', '.join(sorted(wheel.name for wheel in wheels.glob('*.whl')))} work when installed", flush=True
        )
        # A plain entry adds the tools of development behind the wheels, without their links to the sources.
        site.joinpath("tools.pth").write_text(sysconfig.get_path("purelib") + "\n")
        run_tests(environment, Path(scratch, "tree"), sys.argv[1:])


def copy_installed(name: str, site: Path) -> None:
    """Install a distribution as it is installed here: pip has checked its hash, and would ask the index once more."""
    try:
        files = metadata.files(name) or ()
    except metadata.PackageNotFoundError:  # pinned for another platform or Python
        return
    for file in files:
        if ".." not in file.parts and "__pycache__" not in file.parts:  # programs belong to this environment
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), site / file)


def try_out(programs: Path, scratch: Path) -> None:
    """The commands of the README, away from the sources."""
    assert "--backend NAME" in run(programs / "pydra-agent", "--help", cwd=scratch)
    assert "sim" in run(programs / "pydra", "backends", cwd=scratch)
    run(programs / "pydra", "dev", "--once", cwd=scratch)
    assert "NVIDIA H100" in run(programs / "pydra-nvidia", "show", "--scenario", "hgx-h100", cwd=scratch)
    run(programs / "pydra", "dev", "--backend", "tpu", "--scenario", "v5e-8", "--once", cwd=scratch)
    run(programs / "pydra", "dev", "--backend", "cpu", "--scenario", "this-machine", "--once", cwd=scratch)


def run_tests(environment: Path, tree: Path, arguments: list[str]) -> None:
    """All tests but those of the house, in a tree without the sources, so that only the wheels can answer."""
    folders = ("tests", "charts", "docs", "examples", "proto", "hack", "benchmarks")
    for name in (*folders, "README.md", "CHANGELOG.md", "conftest.py", "pyproject.toml"):
        copy(ROOT / name, tree / name)
    for part in (
        found for name in ("tests", "docs", "examples", "README.md") for found in ROOT.glob(f"plugins/*/{name}")
    ):
        copy(part, tree / part.relative_to(ROOT))
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "--ignore=tests/house", *arguments]
    side_by_side = ("-n", "4", "--dist", "worksteal")  # keeps two processors busy; each more collects all tests first
    # The tests start hundreds of processes, and each would compile all that it imports.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Helm in the chart's tests would spend a third of its time on collecting garbage of a few megabytes. The runtime of
    # Go reads the environment that its process began with.
    environ["GOGC"] = "400"
    environ["TEST_REPOSITORY"] = str(ROOT)
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Each worker would compile all tests, which takes longer than to import them.
    subprocess.run([*command, "--collect-only"], cwd=tree, env=environ, check=False, timeout=300, capture_output=True)
    done = subprocess.run([*command, *side_by_side], cwd=tree, env=environ, check=False, timeout=1500)
    if done.returncode:
        sys.exit(done.returncode)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output; ends the whole check, showing it, when the command fails."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYDRA_"))}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=600, check=False, cwd=cwd, env=environ
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
