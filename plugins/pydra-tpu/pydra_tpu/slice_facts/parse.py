"""Parses what the sources tell: the text of tpu-env, the metadata server's attributes and labels, to `SourceFacts`.

Sources: pytorch/xla and JAX, which read tpu-env and worker-network-endpoints; the labels are GKE's, and the neutral
ones of Google's DRA driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pydra_tpu.generations import GENERATIONS, Generation
from pydra_tpu.geometry import Bounds, parse_topology
from pydra_tpu.hardware_types import SliceFacts
from pydra_tpu.settings import HOSTNAME, Settings

SETTINGS: Final = "the settings"
ATTRIBUTES: Final = ("tpu-env", "accelerator-type", "agent-worker-number", "worker-network-endpoints", "kube-labels")
"""The attributes of the metadata server that are read, below /computeMetadata/v1/instance/attributes/."""

T = TypeVar("T")

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"[0-9]{1,6}")
_ACCELERATOR_TYPE = re.compile(r"(.+)-([1-9][0-9]{0,5})")
_OTHER_NAMES: Final = {"v5lite": "v5litepod", "v7x": "tpu7x"}


class SourceFacts(SliceFacts, frozen=True, kw_only=True):
    """What one source reports. `unusable` has a text for each unreadable value.

    `accelerator` is a label of GKE; `accelerator_type` such as `v5litepod-16`.
    """

    source: str
    generation: Generation | None = None
    accelerator_type: str | None = None
    unusable: tuple[str, ...] = ()


def parse_settings(settings: Settings) -> SourceFacts:
    """What the admin has said, which was validated before the start."""
    return SourceFacts(
        source=SETTINGS,
        generation=_find_label(settings.accelerator),
        accelerator=settings.accelerator or None,
        topology=parse_topology(settings.topology) if settings.topology else None,
        host_chips=settings.host_chips,
        worker_id=settings.worker_id,
        worker_hostnames=settings.worker_hostnames,
    )


def parse_tpu_env(text: str, source: str) -> SourceFacts:
    """What lines `KEY: 'value'` tell, in the file or in the attribute of the metadata server."""
    values = _Values(source, _split_lines(text))
    kind = values.read("ACCELERATOR_TYPE", _parse_accelerator_type)
    generation = (kind and kind[0]) or values.read("TYPE", _parse_generation)
    chips, hosts = values.read("CHIPS_PER_HOST_BOUNDS", _parse_bounds), values.read("HOST_BOUNDS", _parse_bounds)
    topology = values.read("TOPOLOGY", parse_topology)
    if topology is None and chips and hosts:
        topology = Bounds(*(one * other for one, other in zip(chips, hosts, strict=True)))
    return SourceFacts(
        source=source,
        generation=generation,
        accelerator_type=kind and kind[1],
        topology=topology,
        host_chips=chips.size if chips else None,
        host_bounds=hosts,
        worker_id=values.read("WORKER_ID", _parse_number),
        wrap=values.read("WRAP", _parse_wrap),
        ici_resiliency=values.read("ENABLE_ICI_RESILIENCY", _parse_bool),
        slice_name=values.read("NODE_ID", _parse_label),
        unusable=tuple(values.unusable),
    )


def parse_attributes(answers: Mapping[str, str]) -> tuple[SourceFacts, ...]:
    """What the metadata server reports, by the names of ATTRIBUTES; those that it does not have are absent."""
    values = _Values("the metadata server", answers)
    kind = values.read("accelerator-type", _parse_accelerator_type)
    own = SourceFacts(
        source="the metadata server",
        generation=kind and kind[0],
        accelerator_type=kind and kind[1],
        worker_id=values.read("agent-worker-number", _parse_number),
        worker_hostnames=values.read("worker-network-endpoints", _parse_endpoints) or (),
        unusable=tuple(values.unusable),
    )
    tpu_env = parse_tpu_env(answers.get("tpu-env", ""), "the metadata server's tpu-env")
    return tpu_env, own, parse_labels(answers.get("kube-labels", ""), "the metadata server's kube-labels")


def parse_labels(text: str, source: str) -> SourceFacts:
    """What labels of the node tell, as `key=value,key=value`."""
    pairs = (one.partition("=") for one in text.split(","))
    values = _Values(source, {key.strip(): value.strip() for key, _, value in pairs})
    accelerator = values.read_first(
        ("tpu.google.com/accelerator", "cloud.google.com/gke-tpu-accelerator"), _parse_label
    )
    return SourceFacts(
        source=source,
        generation=_find_label(accelerator or ""),
        accelerator=accelerator,
        topology=values.read_first(("tpu.google.com/topology", "cloud.google.com/gke-tpu-topology"), parse_topology),
        host_chips=values.read_first(
            ("tpu.google.com/chip-count", "cloud.google.com/gke-accelerator-count"), _parse_number
        ),
        ici_resiliency=values.read_first(
            ("tpu.google.com/ici-resiliency", "cloud.google.com/gke-tpu-ici-resiliency"), _parse_bool
        ),
        # A node pool of GKE with hosts of a slice has one slice.
        slice_name=values.read("cloud.google.com/gke-nodepool", _parse_label) if accelerator else None,
        unusable=tuple(values.unusable),
    )


class _Values:
    """The values of one source by their keys, and what of them could not be parsed."""

    def __init__(self, source: str, values: Mapping[str, str]) -> None:
        self._source = source
        self._values = values
        self.unusable: list[str] = []

    def read(self, key: str, parse: Callable[[str], T]) -> T | None:
        """The value of the key; None where it is absent, empty, or not to be parsed."""
        if not (text := self._values.get(key, "")):
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.unusable.append(f"{key} of {self._source} is ignored: {str(error)[:200]}")
            return None

    def read_first(self, keys: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
        """The value of the first of these keys that is there."""
        return next((value for key in keys if (value := self.read(key, parse)) is not None), None)


def _split_lines(text: str) -> dict[str, str]:
    parts = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"").strip() for key, _, value in parts}


def _find_label(accelerator: str) -> Generation | None:
    return next((one for one in GENERATIONS if accelerator in one.labels), None)


def _parse_generation(text: str) -> Generation:
    name = text.lower().replace("_", "").removeprefix("tpu-")
    name = _OTHER_NAMES.get(name, name)
    for one in GENERATIONS:
        if name in (one.name, one.jax):
            return one
    raise ValueError(f"{text[:64]!r} is not a known generation of TPUs")


def _parse_accelerator_type(text: str) -> tuple[Generation, str]:
    parts = _ACCELERATOR_TYPE.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text[:64]!r} is not an accelerator type, such as v5litepod-16")
    generation = _parse_generation(parts[1])
    return generation, f"{generation.name}-{parts[2]}"


def _parse_bounds(text: str) -> Bounds:
    lengths = text.split(",")
    if len(lengths) != 3 or not all(_NUMBER.fullmatch(one) and int(one) for one in lengths):
        raise ValueError(f"{text[:64]!r} is not three numbers, such as 2,2,1")
    return Bounds(*map(int, lengths))


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a number")
    return int(text)


def _parse_bool(text: str) -> bool:
    known = {"true": True, "false": False}.get(text.lower())
    if known is None:
        raise ValueError(f"{text[:64]!r} is neither true nor false")
    return known


def _parse_wrap(text: str) -> tuple[bool, bool, bool]:
    closed: list[Any] = [_parse_bool(one) for one in text.split(",")]
    if len(closed) != 3:
        raise ValueError(f"{text[:64]!r} does not say three times true or false")
    return closed[0], closed[1], closed[2]


def _parse_label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a label's value")
    return text


def _parse_endpoints(text: str) -> tuple[str, ...]:
    """Host names or addresses: the third part of `name:id:address` each."""
    names = [one.strip().split(":", 2)[-1] for one in text.split(",")]
    if wrong := [one for one in names if not HOSTNAME.fullmatch(one)]:
        raise ValueError(f"{wrong[0][:64]!r} is not a host name or an address")
    return tuple(names)
