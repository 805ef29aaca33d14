"""Value types for claims.

What a backend gets for a ResourceClaim and returns for it, with its plan, and how the kubelet identifies one.
`pydra.claims.allocation` parses claims from the API's JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import msgspec

from pydra.api_name_formats import LABEL, SUBDOMAIN
from pydra.cdi.edits import ContainerEdits
from pydra.devices import AttributeValue, DeviceStatus
from pydra.errors import PydraError

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

    In the agent and on the wire `configs` are `OpaqueConfig` values, which the backend's process decodes.
    """

    request: str
    """The request's name in the claim; `parent/sub` for the chosen entry of `firstAvailable`."""
    pool: str
    """The pool that the device is in: the node's name, unless settings say otherwise."""
    device: str
    """The name from `Device.name`. It may be gone since the scheduler chose it: raise `UnknownDevice`."""
    share_id: str | None = None
    """Which share of a device with `allow_multiple_allocations` this is; None for other devices."""
    consumed_capacity: Mapping[str, str] = {}
    """How much of each capacity the share has, as a canonical quantity."""
    admin_access: bool = False
    """Whether the claim may only monitor the device: other claims may hold it, so change nothing."""
    configs: tuple[Any, ...] = ()
    """The configurations that apply to it, decoded, weakest first (class, then claim), at most one of each kind. Use
    `config`.
    """
    explicit: tuple[bool, ...] = ()
    """For each of `configs`, whether the claim names this device's request for it."""
    positions: tuple[str, ...] = ()
    """For each of `configs`, where it is written. Use `position`."""

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

    def position(self, config: Any) -> str:
        """Return where one of `configs` is written, for messages: `spec.devices.config[0] (request gpu)`."""
        marked = zip(self.configs, self.positions, strict=False)
        return next((where for one, where in marked if one is config), f"a config of request {self.request}")

    def prepared(
        self,
        edits: ContainerEdits = ContainerEdits(),  # noqa: B008 - frozen
        state: Any = None,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
        *,
        own_container: bool = False,
        status: DeviceStatus | None = None,
    ) -> PreparedDevice:
        """Return this device as prepared; the arguments are fields of `PreparedDevice`."""
        return PreparedDevice(
            request=self.request,
            pool=self.pool,
            device=self.device,
            share_id=self.share_id,
            edits=edits,
            state=state,
            attributes=attributes,
            own_container=own_container,
            status=status,
        )


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is ready for containers; `AllocatedDevice.prepared` makes one."""

    request: str
    """As in the allocated device."""
    pool: str
    """As in the allocated device."""
    device: str
    """As in the allocated device."""
    share_id: str | None = None
    """As in the allocated device."""
    edits: ContainerEdits = ContainerEdits()
    """What containers with this device get."""
    state: Any = None
    """Any JSON value; it is kept across restarts and passed to `unprepare`."""
    attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES
    """Attributes that are known only after `prepare`, such as the UUID of a created partition. Containers find them in
    the device's metadata file; they replace published attributes of the same name.
    """
    own_container: bool = False
    """Whether each container uses this device's request only, and none of the claim's other requests. Only then may the
    edits of two requests set one thing to different values; a container that uses the whole claim would get the last
    value.
    """
    status: DeviceStatus | None = None
    """What the claim's `status.devices` says of it until `discover` says something else; None for nothing. The agent
    writes it with the setting `deviceStatus`.
    """


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may use a claim, from the claim's `status.reservedFor`."""

    uid: str
    """The pod's UID, which the container runtime knows, too."""
    namespace: str
    """The pod's namespace."""
    name: str
    """The pod's name."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# Plans


class StepStage(Enum):
    """How far a step of a plan has come."""

    PLANNED = "planned"
    """Nothing was done, or all was undone."""
    BEGUN = "begun"
    """`apply` was, or is about to be, called, and has not returned: it may have been done."""
    DONE = "done"
    """`apply` has returned, for this claim or for another with an equal step."""


class ClaimStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a claim's plan, and how far it has come."""

    step: Any
    """The step: a value of one of the backend's `STEP_TYPES`; in the agent, and if its type is unknown, a mapping."""
    key: str
    """Steps with the same key are one change, of however many claims."""
    label: str
    """What the log and messages call it."""
    holds: tuple[str, ...] | None = None
    """The devices of the claim that stay held as long as the step cannot be undone; None for all of them."""
    stage: StepStage = StepStage.PLANNED
    """How far it has come."""
    result: Any = None
    """What `apply` returned, a JSON value; None before that."""


def describe_step(step: Any, *, stage: StepStage = StepStage.PLANNED, result: Any = None) -> ClaimStep:
    """Return the step of a backend as a claim has it: for the claims that `inherit` returns, with stage `DONE`."""
    kind: Any = step.__class__
    tag = str(kind.__struct_config__.tag)
    holds = getattr(step, "holds", None)
    label = str(step) if kind.__str__ is not object.__str__ else tag
    key = getattr(step, "key", None)
    return ClaimStep(
        step=step,
        key=f"{tag}:{_build_key(step) if key is None else key}",
        label=label,
        holds=None if holds is None else tuple(holds),
        stage=stage,
        result=result,
    )


def _build_key(step: Any) -> str:
    """Return the fields that differ from their defaults, so that a field that a later version adds changes no key."""
    fields = msgspec.to_builtins(step, str_keys=True)
    for field in msgspec.structs.fields(step):
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if getattr(step, field.name) == default:
            fields.pop(field.encode_name, None)
    return msgspec.json.encode(fields, order="deterministic").decode()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan` of a backend with `STEP_TYPES` returns."""

    steps: Sequence[Any] = ()
    """The changes of the hardware that the claim needs, in order, each a value of one of the `STEP_TYPES`."""
    data: Any = None
    """What else `prepare`, or the `plan` of another claim, has to know: any JSON value, found in `claim.plan`."""


# Claims


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ResourceClaim with this driver's devices only."""

    uid: str
    """The claim's UID, which is never used again. It can be part of a file name."""
    namespace: str
    """The claim's namespace."""
    name: str
    """The claim's name."""
    devices: tuple[AllocatedDevice, ...]
    """Its devices of this driver, in the order of the allocation; at least one."""
    plan: Any = None
    """What the backend's `plan` returned, or the `data` of a `Plan`; None before that, and without `plan`."""
    steps: tuple[ClaimStep, ...] = ()
    """The steps of its `Plan`, with what `apply` has returned so far."""
    pod: PodRef | None = None
    """The pod that uses it, for a backend with `ONE_POD`; None for others."""

    def __str__(self) -> str:
        """For messages, after the word "claim"; only the UID is known of a held one whose record cannot be read."""
        return f"{self.namespace}/{self.name}" if self.name else f"with uid {self.uid}"


def answers_exactly(claim: Claim, prepared: Sequence[PreparedDevice]) -> bool:
    """Return whether each of the claim's devices has one entry, in order, without state, attributes and status."""
    if len(claim.devices) != len(prepared):
        return False
    for wanted, given in zip(claim.devices, prepared, strict=True):
        if (
            wanted.device != given.device
            or wanted.request != given.request
            or wanted.pool != given.pool
            or wanted.share_id != given.share_id
            or given.state is not None
            or given.attributes
            or given.status is not None
        ):
            return False
    return True


def restore_configs(claim: Claim) -> Claim:
    """Return a decoded claim with its configs as `OpaqueConfig`: they have the type `Any`, and are decoded as mappings.

    Raises msgspec.ValidationError.
    """
    if not any(device.configs for device in claim.devices):
        return claim
    devices = [
        msgspec.structs.replace(device, configs=msgspec.convert(device.configs, tuple[OpaqueConfig, ...]))
        for device in claim.devices
    ]
    return msgspec.structs.replace(claim, devices=tuple(devices))


class HeldClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim whose devices this node holds.

    Of a claim whose record cannot be read, neither plan nor prepared devices are known, and of its devices only what
    the record's bytes still say; it may be in use.
    """

    claim: Claim
    """The claim, with its plan."""
    prepared: tuple[PreparedDevice, ...] = ()
    """What `prepare` returned; empty while it has not ended."""
    completed: bool
    """Whether `prepare` has ended. If not, something may have been done, as its plan or its steps say."""
    left_over: bool = False
    """Whether the claim has ended, and its plan has the steps that could not be undone yet. `claim.uid` is then not the
    UID of a claim in the API."""

    @property
    def plan(self) -> Any:
        """What the backend's `plan` returned for the claim."""
        return self.claim.plan


# Between the kubelet plugin and the claims behind it


class ClaimRef(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str

    @classmethod
    def of(cls, claim: Claim) -> ClaimRef:
        """Return the name of this claim."""
        return cls(uid=claim.uid, namespace=claim.namespace, name=claim.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared device as reported to the kubelet; `requests` are base names, without `/sub`."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


PrepareOutcome: TypeAlias = tuple[ContainerDevice, ...] | PydraError
UnprepareOutcome: TypeAlias = PydraError | None
