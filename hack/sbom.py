"""What distributions and images consist of, as CycloneDX documents.

A distribution's components are the pins of constraints.txt that it needs. An image's are what is found in its layers:
Python's distributions by their metadata, and the packages of Debian that /var/lib/dpkg/status.d lists.
"""

from __future__ import annotations

import datetime
import json
import re
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import IO, Any

import lock
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_METADATA = re.compile(r"(^|.*/)[^/]+\.dist-info/METADATA")
_DEBIAN = re.compile(r"(^|.*/)var/lib/dpkg/status\.d/[^/.]+")


def of_distribution(name: str, version: str, moment: int) -> str:
    """The SBOM of one distribution of this repository, with the versions that it is tested with."""
    pins = lock.pins()
    needed = [pins[one].split(maxsplit=1)[0].partition("==") for one in lock.needs([name])]
    components = [_python(found, pinned) for found, _, pinned in needed]
    components += [_python(one, version) for one in lock.own_needs(name)]
    return _write(_python(name, version), components, moment)


def of_image(archive: Path, moment: int) -> str:
    """The SBOM of an image in an OCI archive."""
    with tarfile.open(archive) as outer:
        (entry,) = _load(outer, "index.json")["manifests"]
        manifest = _load(outer, _blob(entry["digest"]))
        labels = _load(outer, _blob(manifest["config"]["digest"]))["config"]["Labels"]
        found: dict[str, Component] = {}
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=_open(outer, _blob(layer["digest"]))) as inner:
                found |= {str(one.bom_ref.value): one for one in _find(inner)}
    title, version = labels["org.opencontainers.image.title"], labels["org.opencontainers.image.version"]
    image = Component(
        name=title,
        version=version,
        type=ComponentType.CONTAINER,
        purl=PackageURL("oci", None, title, entry["digest"]),
        bom_ref=f"pkg:oci/{title}@{entry['digest']}",
    )
    return _write(image, found.values(), moment)


def _find(layer: tarfile.TarFile) -> Iterator[Component]:
    for member in layer:
        if not member.isfile():
            continue
        if _METADATA.fullmatch(member.name):
            about = _parse(layer, member)
            yield _python(str(about["Name"]), str(about["Version"]))
        elif _DEBIAN.fullmatch(member.name):
            about = _parse(layer, member)
            yield _debian(str(about["Package"]), str(about["Version"]), str(about["Architecture"]))


def _python(name: str, version: str) -> Component:
    return _component(PackageURL("pypi", None, lock.canonical(name), version))


def _debian(name: str, version: str, architecture: str) -> Component:
    return _component(PackageURL("deb", "debian", name, version, {"arch": architecture}))


def _component(purl: PackageURL) -> Component:
    return Component(
        name=purl.name, version=purl.version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string()
    )


def _write(root: Component, components: Iterable[Component], moment: int) -> str:
    bom = Bom(components=sorted(components, key=lambda one: str(one.bom_ref.value)))
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    bom.serial_number = None  # type: ignore[assignment] # a random one would make two builds differ
    bom.register_dependency(root, bom.components)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the library warns of graphs that are not complete
        return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def _load(archive: tarfile.TarFile, name: str) -> Any:
    return json.load(_open(archive, name))


def _open(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _parse(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Message:
    """Python's metadata and Debian's control files are headers as in a mail."""
    file = archive.extractfile(member)
    assert file is not None
    return BytesParser().parse(file, headersonly=True)
