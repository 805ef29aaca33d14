"""`make release`: everything that a release consists of, from the last commit, into dist/VERSION.

Wheels and sdists of all distributions, the chart as an archive, each image as an OCI archive, an SBOM of each
distribution and image (CycloneDX), a provenance statement (SLSA, in-toto) and SHA256SUMS. The sources are exported from
git, and all times are that of the commit, so two builds of a commit with the same tools have the same digests.
`docs/release.md` says how a release is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import helm_python.chart
import lock
import sbom
import yaml

ROOT = lock.ROOT
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""As images call them."""
BUILD_TYPE = "make release"
BUILD = """
import os, sys
from hatchling.build import build_sdist, build_wheel
out, *projects = sys.argv[1:]
for project in projects:
    os.chdir(project)
    build_sdist(out)
    build_wheel(out)
"""
"""One process for all distributions: most of the time of one each went into imports."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--tag", default="", help="the tag that is released, vVERSION: the changelog must have it")
    parser.add_argument("--platforms", default="", help="of the images, such as linux/amd64,linux/arm64; this one's")
    parser.add_argument("--without-images", action="store_true", help="only what needs no engine")
    given = parser.parse_args(arguments)
    here = MACHINES.get(platform.machine(), platform.machine())
    platforms = tuple(filter(None, given.platforms.split(","))) or (f"linux/{here}",)
    needed = [] if given.without_images else [*find_engine_problems(), *find_tool_problems("SCANNER")]
    if problems := [*find_problems(given.tag), *needed]:
        sys.exit("\n".join(f"make release: {problem}" for problem in problems))
    version = chart_versions()[0]
    target = ROOT / "dist" / version
    with tempfile.TemporaryDirectory(prefix="pydra-release-") as scratch:
        tree, out = Path(scratch, "tree"), Path(scratch, "out")
        out.mkdir()
        export(tree)
        build_distributions(tree, out)
        helm_python.chart.package(tree / "charts" / "pydra", destination=out)
        if not given.without_images:
            build_images(tree, out, version, platforms)
            scan_images(out)
        base = "" if given.without_images else find_base(os.environ.get("IMAGE_ARGS", ""))
        write_provenance(out, given.tag, platforms, base)
        write_sums(out)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(out, target)
    print(f"{target.relative_to(ROOT)}:", *sorted(path.name for path in target.iterdir()), sep="\n  ")


# What is checked before anything is built


def find_problems(tag: str) -> Iterator[str]:
    """Why this commit cannot be released, all at once."""
    version = chart_versions()[0]
    versions = {str(one.relative_to(ROOT)): distribution_version(one) for one in lock.PROJECTS}
    versions |= dict(zip(("charts/pydra version", "charts/pydra appVersion"), chart_versions(), strict=True))
    for place, found in versions.items():
        if found != version:
            yield f"{place} has the version {found}, the chart {version}; all must have one"
    if changes := git("status", "--porcelain"):
        yield f"these files are not committed: {', '.join(line[3:] for line in changes.splitlines())}"
    if not tag:
        return
    if tag != f"v{version}":
        yield f"the tag {tag} is not v{version}, which this commit has"
    fragments = sorted(path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md")
    yield from find_changelog_problems((ROOT / "CHANGELOG.md").read_text(), fragments, version)


def find_changelog_problems(text: str, changes: Sequence[str], version: str) -> Iterator[str]:
    """Why the changelog does not describe this version: no section with a date, or changes (files) that are in none."""
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    heading = next((one for one in headings if one.split()[0] == version), "")
    if not heading:
        yield f"CHANGELOG.md has no section {version}; `towncrier build --version {version}` makes it"
    elif not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        yield f"CHANGELOG.md has the section {heading!r}; it must have a date, as in `## {version} (2026-01-31)`"
    if changes:
        left = ", ".join(changes)
        yield f"changelog.d has {left}; `towncrier build --version {version}` puts them into CHANGELOG.md"


def find_engine_problems() -> Iterator[str]:
    """Why there is no engine to build images with."""
    engine = os.environ.get("ENGINE", "")
    if shutil.which(engine or "buildah") is None and shutil.which(engine or "podman") is None:
        yield f"{engine or 'neither buildah nor podman'} is not installed; --without-images leaves the images out"
    elif Path(engine).name == "docker":
        yield "docker cannot write OCI archives of an image that it has; use ENGINE=buildah or ENGINE=podman"


def find_tool_problems(variable: str) -> Iterator[str]:
    """Why the command of this variable cannot be called; nothing if there is none: a release needs no such tool."""
    command = os.environ.get(variable, "")
    if command and shutil.which(shlex.split(command)[0]) is None:
        yield f"{variable}={command}: {shlex.split(command)[0]} is not installed; install it, or leave {variable} empty"


def chart_versions() -> tuple[str, str]:
    """The chart's own version, and that of the images which it asks for."""
    chart = yaml.safe_load((ROOT / "charts" / "pydra" / "Chart.yaml").read_text())
    return str(chart["version"]), str(chart["appVersion"])


def distribution_version(project: Path) -> str:
    """The version of a distribution, which the core keeps in its package."""
    about = tomllib.loads((project / "pyproject.toml").read_text())
    if "version" in about["project"]:
        return str(about["project"]["version"])
    text = (project / about["tool"]["hatch"]["version"]["path"]).read_text()
    return next(iter(re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)), "unknown")


# What is built


def export(tree: Path) -> None:
    """What the last commit has, with its time."""
    tree.mkdir()
    with subprocess.Popen(["git", "-C", ROOT, "archive", "HEAD"], stdout=subprocess.PIPE) as archive:
        run("tar", "--extract", "--directory", tree, stdin=archive.stdout)
    if archive.returncode:
        sys.exit(f"make release: git archive ended with {archive.returncode}")


def build_distributions(tree: Path, out: Path) -> None:
    """A wheel, an sdist and an SBOM of each distribution."""
    projects = (tree / project.relative_to(ROOT) for project in lock.PROJECTS)
    run(sys.executable, "-c", BUILD, out, *projects)
    for name, project in zip(lock.project_names(), lock.PROJECTS, strict=True):
        version = distribution_version(project)
        text = sbom.of_distribution(name, version, commit_time())
        Path(out, f"{name.replace('-', '_')}-{version}.cdx.json").write_text(text)


def build_images(tree: Path, out: Path, version: str, platforms: Sequence[str]) -> None:
    """An OCI archive and an SBOM of each image, for each platform."""
    engine = os.environ.get("ENGINE", "") or next(one for one in ("buildah", "podman") if shutil.which(one))
    for one in platforms:
        print(f"building images for {one}", flush=True)
        environ = {"ENGINE": engine, "IMAGE": "localhost/pydra", "TAG": version}
        extra = os.environ.get("IMAGE_ARGS", "").split()
        build = [sys.executable, tree / "hack" / "image" / "build.py", "--platform", one, *extra]
        for name in run(*build, cwd=tree, environ=environ).splitlines()[-1].split()[3:]:
            title = name.rpartition("/")[2].replace(":", "-")
            path = out / f"{title}-{one.replace('/', '-')}.oci.tar"
            run(engine, "push", "--quiet", name, f"oci-archive:{path}:{version}")
            Path(out, f"{path.name.removesuffix('.oci.tar')}.cdx.json").write_text(sbom.of_image(path, commit_time()))


def scan_images(out: Path) -> None:
    """Have SCANNER look for known vulnerabilities in the SBOM of each image; what it refuses is not released."""
    command = shlex.split(os.environ.get("SCANNER", ""))
    if not command:
        print(
            "the images are not scanned: SCANNER names no command, such as SCANNER='grype --fail-on high'", flush=True
        )
        return
    for path in sorted(out.glob("*-linux-*.cdx.json")):
        print(f"scanning {path.name}", flush=True)
        print(run(*command, path), end="", flush=True)


def find_base(arguments: str) -> str:
    """What the images are built on: as these arguments of the engine say, else as the Dockerfile does."""
    default = re.findall(r"^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: str = [*default, *re.findall(r"--build-arg[ =]BASE=(\S+)", arguments)][-1]
    return found


def write_provenance(out: Path, tag: str, platforms: Sequence[str], base: str) -> None:
    """From what, by whom and how all files were built: an in-toto statement with SLSA's predicate, version 1.

    RELEASE_BUILDER, RELEASE_SOURCE and RELEASE_RUN are URIs of the builder, the repository and the run; a workflow sets
    them. Without them the statement says that the files were built on somebody's machine.
    """
    given = os.environ.get
    subjects = [{"name": path.name, "digest": {"sha256": digest(path)}} for path in sorted(out.iterdir())]
    commit = git("rev-parse", "HEAD")
    source = given("RELEASE_SOURCE", "urn:pydra:local")
    materials: list[object] = [{"uri": f"git+{source}", "digest": {"gitCommit": commit}}]
    if base:
        _, _, pinned = base.partition("@sha256:")
        materials.append({"uri": base, **({"digest": {"sha256": pinned}} if pinned else {})})
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{source}#{BUILD_TYPE.replace(' ', '-')}",
                "externalParameters": {"tag": tag, "platforms": list(platforms)},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": given("RELEASE_BUILDER", "urn:pydra:local")},
                "metadata": {"invocationId": given("RELEASE_RUN", commit)},
            },
        },
    }
    Path(out, "provenance.intoto.json").write_text(json.dumps(statement, indent=1) + "\n")


def write_sums(out: Path) -> None:
    """SHA256SUMS, for `sha256sum --check`."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    Path(out, "SHA256SUMS").write_text("".join(lines))


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def commit_time() -> int:
    """The seconds since 1970 that all files of the release have."""
    return int(git("log", "-1", "--format=%ct"))


def git(*arguments: str) -> str:
    """What git prints."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"make release: needs the git repository that it is called in: {error}")
    return done.stdout.rstrip("\n")


def run(*command: object, cwd: Path | None = None, environ: dict[str, str] | None = None, stdin: object = None) -> str:
    """Run a command at the commit's time; what it prints."""
    moment = {"SOURCE_DATE_EPOCH": str(commit_time()), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [str(one) for one in command],
        cwd=cwd,
        env={**os.environ, **moment, **(environ or {})},
        stdin=stdin,  # type: ignore[call-overload]
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = f"{done.stdout}{done.stderr}"
        sys.exit(f"make release: {' '.join(map(str, command))} ended with {done.returncode}\n{told}")
    return str(done.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
