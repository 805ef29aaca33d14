"""What distributions and images consist of, as CycloneDX documents.

A distribution's components are the pins of constraints.txt that it needs. An image's are what is found in its layers:
Python itself, its distributions by their metadata, and the packages of Debian that /var/lib/dpkg/status.d lists.
Licences are those that metadata tells; those of Debian's packages are files of the image.
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
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import lock
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_METADATA = re.compile(r"(^|.*/)[^/]+\.dist-info/METADATA")
_PYTHON = re.compile(r"(^|.*/)include/python3\.\d+/patchlevel\.h")
_DEBIAN = re.compile(r"(^|.*/)var/lib/dpkg/status\.d/[^/.]+")


def of_distribution(name: str, version: str, moment: int) -> str:
    """The SBOM of one distribution of this repository, with the versions that it is tested with."""
    pins = lock.pins()
    needed = dict(pins[one].split(maxsplit=1)[0].split("==") for one in lock.needs([name]))
    needed |= dict.fromkeys(lock.own_needs(name), version)
    components = [_python(found, pinned, _installed_licence(found)) for found, pinned in needed.items()]
    return _write(_python(name, version, _installed_licence(name)), components, moment)


def _installed_licence(name: str) -> str:
    try:
        return _find_licence(metadata.metadata(name))  # type: ignore[arg-type] # a Message, as of a file
    except metadata.PackageNotFoundError:  # pinned for another platform or Python
        return ""


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
            yield _python(str(about["Name"]), str(about["Version"]), _find_licence(about))
        elif _PYTHON.fullmatch(member.name):
            (version,) = re.findall(
                r'^#define PY_VERSION\s+"(.+)"$', _open(layer, member).read().decode(), re.MULTILINE
            )
            yield _interpreter(version)
        elif _DEBIAN.fullmatch(member.name):
            about = _parse(layer, member)
            yield _debian(str(about["Package"]), str(about["Version"]), str(about["Architecture"]))


def _python(name: str, version: str, licence: str = "") -> Component:
    return _component(PackageURL("pypi", None, lock.canonical(name), version), licence)


def _interpreter(version: str) -> Component:
    found = _component(PackageURL("generic", None, "python", version), "PSF-2.0")
    found.cpe = f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*"  # by which scanners know it
    return found


def _debian(name: str, version: str, architecture: str) -> Component:
    return _component(PackageURL("deb", "debian", name, version, {"arch": architecture}))


def _component(purl: PackageURL, licence: str = "") -> Component:
    return Component(
        name=purl.name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else (),
    )


def _find_licence(about: Message) -> str:
    """An SPDX expression, or a name; empty if the metadata has a text only, or nothing."""
    names = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier", ()) if one.startswith("License ::")]
    told = [str(about[key]) for key in ("License-Expression", "License") if about[key] and "\n" not in about[key]]
    return next(iter([*told, *names]), "")


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


def _open(archive: tarfile.TarFile, name: str | tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _parse(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Message:
    """Python's metadata and Debian's control files are headers as in a mail."""
    return BytesParser().parse(_open(archive, member), headersonly=True)
