"""Value types for claims.

What a backend gets for a ResourceClaim and returns for it, and how the kubelet identifies one.
`pydra.claims.allocation` parses claims from the API's JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from pydra.cdi.edits import ContainerEdits
from pydra.devices import AttributeValue
from pydra.errors import PydraError
from pydra.limits import LABEL, SUBDOMAIN

ConfigT = TypeVar("ConfigT")

_NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}
CLAIM_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""A claim's uid, which names files. The API server makes UUIDs; one from elsewhere must be as harmless: not a path, not
hidden, and short enough for a prefix and a suffix.
"""
_SHARE_ID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,62}[A-Za-z0-9])?")
_REQUEST = re.compile(rf"{LABEL.pattern}(?:/{LABEL.pattern})?")
_POOL = re.compile(rf"{SUBDOMAIN.pattern}(?:/{SUBDOMAIN.pattern})*")
_LONGEST_NAME = 253


def find_name_problem(uid: str, namespace: str, name: str) -> str:
    """Return why a claim cannot have these names, to follow the words "a claim"; "" if it can.

    They become file names, CDI ids and URLs.
    """
    if not CLAIM_UID.fullmatch(uid):
        rule = "letters, digits, '.', '-' and '_', with a letter or digit at both ends, of at most 128 bytes"
        return _explain("uid", uid, 128, rule)
    if not LABEL.fullmatch(namespace):
        return _explain("namespace", namespace, 63, "a DNS label, of at most 63 bytes")
    if len(name) > _LONGEST_NAME or not SUBDOMAIN.fullmatch(name):
        return _explain("name", name, _LONGEST_NAME, "a DNS subdomain, of at most 253 bytes")
    return ""


def _explain(field: str, value: str, limit: int, rule: str) -> str:
    return f"whose {field} is {value[:limit]!r}; it must be {rule}" if value else f"without {field}"


def find_device_name_problem(request: str, pool: str, device: str, share_id: str | None) -> str:
    """Return the first invalid name of an allocated device, by its field in the API; "" if all are valid."""
    for field, text, pattern, rule in (
        ("request", request, _REQUEST, "a DNS label, or two with a slash between"),
        ("pool", pool, _POOL, "DNS subdomains with slashes between"),
        ("device", device, LABEL, "a DNS label"),
        ("shareID", share_id or "0", _SHARE_ID, "a UUID"),
    ):
        if len(text) > _LONGEST_NAME or not pattern.fullmatch(text):
            return f"{field} is {text if len(text) <= 64 else text[:61] + '...'!a}; it must be {rule}"
    return ""


class OpaqueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One opaque configuration as the allocation carries it, not yet decoded.

    `source` is `FromClass` or `FromClaim`; `position` names the entry for error messages;
    `parameters` is the JSON object that the claim's author wrote.
    """

    source: str
    position: str
    parameters: Mapping[str, Any]


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that the scheduler gave to the claim.

    `request` is the request's name, `parent/sub` for the chosen entry of firstAvailable.
    `share_id` and `consumed_capacity` are set for a device that several claims may hold.
    `configs` are ordered, weakest first (class, then claim), at most one of each kind: `OpaqueConfig`
    values in the agent and on the wire, decoded values of the backend's CONFIG_TYPES in the backend. `explicit` says
    of each whether the claim names this device's request for it.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    consumed_capacity: Mapping[str, str] = {}
    admin_access: bool = False
    configs: tuple[Any, ...] = ()
    explicit: tuple[bool, ...] = ()

    def config(self, kind: type[ConfigT]) -> ConfigT | None:
        """Return the configuration of this type that applies to this device, or None."""
        for config in reversed(self.configs):
            if isinstance(config, kind):
                return config
        return None

    def misplaced(self, *fitting: type) -> tuple[Any, ...]:
        """Return configurations of other types that name this device's request: a mistake of their author."""
        marked = zip(self.configs, self.explicit, strict=False)
        return tuple(config for config, explicit in marked if explicit and not isinstance(config, fitting))

    def prepared(
        self,
        edits: ContainerEdits = ContainerEdits(),  # noqa: B008 - frozen
        state: Any = None,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
    ) -> PreparedDevice:
        """Return this device as prepared; edits, state and attributes are those of `PreparedDevice`."""
        return PreparedDevice(
            request=self.request,
            pool=self.pool,
            device=self.device,
            share_id=self.share_id,
            edits=edits,
            state=state,
            attributes=attributes,
        )


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is ready for containers.

    `request`, `pool`, `device` and `share_id` say which allocated device this is. `state` is any JSON
    value; it is kept across restarts and handed to `unprepare`. `attributes` are what is only known now, such as the
    UUID of a partition that was made: containers find them in the device's metadata file, beside those that `discover`
    reported and instead of those with the same name.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    edits: ContainerEdits = ContainerEdits()
    state: Any = None
    attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ResourceClaim with this driver's devices only. At least one device.

    `plan` is the JSON value that the backend's `plan` returned for it; None before that, and for a backend without.
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    plan: Any = None


class HeldClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose devices this node holds.

    `completed` is false while its prepare has begun and not ended: `prepared` is then empty, and what may have been
    done is in `plan`. Of a claim whose record cannot be read neither is known, and of its devices only what the
    record's bytes still tell; it may be in use.
    """

    claim: Claim
    prepared: tuple[PreparedDevice, ...] = ()
    completed: bool

    @property
    def plan(self) -> Any:
        """What the backend's `plan` returned for the claim."""
        return self.claim.plan


class InheritedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that another driver prepared, as if this backend had: one entry for each of its devices.

    A claim whose name that driver did not write down has an empty name and namespace; the agent looks it up.
    """

    claim: Claim
    prepared: tuple[PreparedDevice, ...]


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What another driver of the same name left on the node.

    `files` are that driver's own records in the plugin directory; once the claims are kept durably, they are renamed
    to end in `.inherited`, so they are not read again and not lost.
    """

    claims: tuple[InheritedClaim, ...] = ()
    files: tuple[str, ...] = ()


# Between the kubelet plugin and the claims behind it


class ClaimRef(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may use a claim, from the claim's `status.reservedFor`."""

    uid: str
    namespace: str
    name: str


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared device as reported to the kubelet; `requests` are base names, without `/sub`."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


PrepareOutcome: TypeAlias = tuple[ContainerDevice, ...] | PydraError
UnprepareOutcome: TypeAlias = PydraError | None
