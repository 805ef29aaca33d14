"""`make publish REGISTRY=host/path`: pushes the images and the chart of dist/VERSION to an OCI registry.

The images of all platforms in dist/VERSION become one image index each. The credentials are those of the engine
(`buildah login`); for the chart, those of Helm (`helm registry login`) if the engine has none. Prints each reference
with its digest, which is what a signature belongs to. SIGNER is called for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import helm_python
import release

_ARCHIVE = re.compile(r"(?P<title>.+)-(?P<version>\d+\.\d+\.\d+.*?)-linux-[a-z0-9-]+\.oci\.tar")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make publish", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("registry", help="host and path, without a scheme, such as registry.example.com/team")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS, as one on loopback")
    given = parser.parse_args(arguments)
    version = release.chart_versions()[0]
    folder = release.ROOT / "dist" / version
    if problems := tuple(find_problems(folder, given.registry)):
        sys.exit("\n".join(f"make publish: {problem}" for problem in problems))
    pushed = []
    for title, archives in group(folder).items():
        name = f"{given.registry}/{title}:{version}"
        pushed.append(f"{name}@{push_image(name, archives, plain_http=given.plain_http)}")
        print(pushed[-1], flush=True)
    chart = folder / f"pydra-{version}.tgz"
    name = f"{given.registry}/charts/pydra:{version}"
    logins = find_logins(given.registry.partition("/")[0])
    try:
        with helm_python.RegistryClient(plain_http=given.plain_http, credentials_file=logins) as client:
            client.push(chart, f"oci://{given.registry}/charts", plain_http=given.plain_http or None)
            pushed.append(f"{name}@{client.resolve(f'oci://{name}')['digest']}")
    except helm_python.HelmError as error:
        sys.exit(f"make publish: {name} cannot be pushed: {error}")
    print(pushed[-1], flush=True)
    sign(pushed)


def sign(references: Sequence[str]) -> None:
    """Have SIGNER sign what was pushed. The digest is signed: a tag may come to mean something else."""
    command = shlex.split(os.environ.get("SIGNER", ""))
    if not command:
        print("nothing is signed: SIGNER names no command, such as 'cosign sign --yes'", file=sys.stderr)
    for reference in references if command else ():
        print(f"signing {reference}", file=sys.stderr, flush=True)
        release.run(*command, reference)


def find_problems(folder: Path, registry: str) -> Iterator[str]:
    """Why nothing is pushed, all at once."""
    if "://" in registry or not registry.strip("/"):
        yield f"REGISTRY={registry} must be a host and a path without a scheme, such as registry.example.com/team"
    sums = folder / "SHA256SUMS"
    if not sums.exists():
        yield f"{folder} has no SHA256SUMS; make release makes it"
        return
    listed = dict(line.split("  ", 1)[::-1] for line in sums.read_text().splitlines())
    for name in sorted(listed.keys() | {path.name for path in folder.iterdir()} - {sums.name}):
        if not (folder / name).exists() or listed.get(name) != release.digest(folder / name):
            yield f"{folder / name} is not what SHA256SUMS says; run make release again"
    if not group(folder):
        yield f"{folder} has no images: it was made with --without-images"
    yield from release.find_tool_problems("SIGNER")


def find_logins(host: str) -> Path | None:
    """The file with the engine's logins, if one is for this host. Helm reads the same format.

    Source: containers-auth.json(5).
    """
    places = [
        os.environ.get("REGISTRY_AUTH_FILE"),
        os.environ.get("XDG_RUNTIME_DIR") and f"{os.environ['XDG_RUNTIME_DIR']}/containers/auth.json",
        f"/run/containers/{os.getuid()}/auth.json",
    ]
    for place in map(Path, filter(None, places)):
        if place.exists() and host in json.loads(place.read_text()).get("auths", {}):
            return place
    return None


def group(folder: Path) -> dict[str, list[Path]]:
    """The archives of each image, one for each platform."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.oci.tar")):
        if match := _ARCHIVE.fullmatch(path.name):
            found.setdefault(match["title"], []).append(path)
    return found


def push_image(name: str, archives: Sequence[Path], *, plain_http: bool) -> str:
    """Push the archives as one image index; its digest."""
    engine = os.environ.get("ENGINE", "") or next(one for one in ("buildah", "podman") if shutil.which(one))
    index = f"localhost/pydra-release-{os.getpid()}/{name.rpartition('/')[2]}"  # one user's engines share their store
    with tempfile.TemporaryDirectory() as scratch:
        digest = Path(scratch, "digest")
        release.run(engine, "manifest", "create", index)
        try:
            for archive in archives:
                release.run(engine, "manifest", "add", index, f"oci-archive:{archive}")
            tls = "--tls-verify=false" if plain_http else "--tls-verify=true"
            release.run(engine, "manifest", "push", "--all", tls, "--digestfile", digest, index, f"docker://{name}")
        finally:
            subprocess.run([engine, "manifest", "rm", index], check=False, capture_output=True)
        return digest.read_text().strip()


if __name__ == "__main__":
    main(sys.argv[1:])
