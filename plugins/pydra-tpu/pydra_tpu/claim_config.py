"""What claims and DeviceClasses may configure: Google's kind `TpuConfig`, field for field, and more.

    apiVersion: tpu.resource.google.com/v1alpha1
    kind: TpuConfig
    logging: {level: 2, stderrLevel: 3}
    premappedBuffer: {size: 8Gi}
    megascale: {slices: 2, slice: 0, coordinator: "train-0.train:8080"}

Decoded strictly, in the backend and in the webhook alike. Absent and null mean the same: libtpu's own default.
Sources: kubernetes-sigs/dra-driver-google-tpu, api/google.com/resource/tpu/v1alpha1, for `logging`; Cloud TPU's
performance guide for the buffer; GKE's multislice guide for megascale.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated

import msgspec

from pydra import Quantity, parse_quantity
from pydra_tpu.settings import Port

GROUP_VERSION = "tpu.resource.google.com/v1alpha1"
LARGEST = 1 << 63
PAGE = 4096
"""The size of a premapped buffer must be a multiple of this many bytes."""

LogLevel = Annotated[int, msgspec.Meta(ge=0, le=3)]
"""0 for INFO, 1 for WARNING, 2 for ERROR, 3 for FATAL."""
Argument = Annotated[str, msgspec.Meta(pattern="^--?[a-z][a-z0-9_]*(=[^ ]*)?$", max_length=512)]
Directory = Annotated[str, msgspec.Meta(pattern="^(/.*|disabled)$", max_length=512)]
Address = Annotated[
    str, msgspec.Meta(pattern="^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$", max_length=259)
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Unknown fields are refused everywhere."""


class LoggingConfig(_Part, frozen=True):
    """From which level on libtpu writes to its log files, and to standard error: `stderr_level`, or the same.

    `directory` is the container's directory for the files, /tmp/tpu_logs by default, or `disabled`.
    """

    level: LogLevel | None = None
    stderr_level: LogLevel | None = None
    directory: Directory | None = None


class PremappedBuffer(_Part, frozen=True):
    """Host memory that the runtime pins for transfers: its size, 4Gi by default, and from which size on it is used."""

    size: Quantity | None = None
    transfer_threshold: Quantity | None = None

    def __post_init__(self) -> None:
        if problems := [*self._find_problems()]:
            raise ValueError("; ".join(problems))

    def _find_problems(self) -> Iterator[str]:
        for field, value in (("size", self.size), ("transferThreshold", self.transfer_threshold)):
            if value is not None and parse_quantity(value) > LARGEST:  # such as one of thousands of digits
                yield f"premappedBuffer.{field}: {str(value)[:32]} must be at most 8Ei"
            elif value is not None and (parse_quantity(value) <= 0 or parse_quantity(value) % PAGE):
                yield f"premappedBuffer.{field}: {value} must be a positive multiple of {PAGE} bytes"


class Megascale(_Part, frozen=True):
    """This claim's slice among several that compute together over the data centre's network.

    `coordinator` is the address of the first slice's first worker; its port is 8080 by default.
    """

    slices: Annotated[int, msgspec.Meta(ge=1)]
    slice: Annotated[int, msgspec.Meta(ge=0)]
    coordinator: Address

    def __post_init__(self) -> None:
        if self.slice >= self.slices:
            raise ValueError(f"megascale.slice: {self.slice} must be less than slices, which is {self.slices}")


class Processes(_Part, frozen=True):
    """Each request of the claim is a process of its own on the mesh that the whole claim is.

    They find each other on the pod's loopback address: the first at `first_port`, the others at the ports after it.
    """

    first_port: Annotated[int, msgspec.Meta(ge=1024, le=65528)] = 8476


class VisibleChips(Enum):
    """How TPU_VISIBLE_CHIPS counts the chips of a part of a host."""

    LOCAL = "local"
    """From 0, as the container sees them."""
    UNSET = "unset"
    """The variable is left out: libtpu takes all chips whose nodes it finds."""


class TpuConfig(_Part, frozen=True):
    """For the containers of a claim, whatever it has.

    `metrics_ports` are those on which the runtime serves its metrics, one for each process; 8431 by default.
    `ici_resiliency` keeps a slice of v4 or v5p going without some links between its chips, if each dimension of its
    topology has at least 4 chips; the source of the slice's facts decides by default. `arguments` are handed to libtpu
    when it starts (LIBTPU_INIT_ARGS).
    """

    logging: LoggingConfig | None = None
    metrics_ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=64)] | None = None
    premapped_buffer: PremappedBuffer | None = None
    ici_resiliency: bool | None = None
    megascale: Megascale | None = None
    visible_chips: VisibleChips | None = None
    processes: Processes | None = None
    arguments: tuple[Argument, ...] | None = None

    def __post_init__(self) -> None:
        ports = self.metrics_ports or ()
        if twice := sorted({port for port in ports if ports.count(port) > 1}):
            raise ValueError(f"metricsPorts: {twice[0]} must not be there twice")


CONFIG_TYPES = {f"{GROUP_VERSION}/TpuConfig": TpuConfig}
