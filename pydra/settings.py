"""Settings types of the agent and webhook, with validation.

`Settings` and `WebhookSettings` are built from a mapping with the keys of the YAML file. `pydra.cli.options` makes that
mapping from the file, the environment and flags, and has the texts of `--help`. Periods and deadlines are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pydra.api_name_formats import DRIVER_RULE, SUBDOMAIN, is_driver_name
from pydra.errors import SettingsError
from pydra.json_encodable import find_json_problems
from pydra.message_text import cut, suggest

KUBELET_ROOT = "/var/lib/kubelet"
RECORDS_DIRECTORY = "/run/pydra"

KUBELET_CALL_DEADLINE = 45.0
"""The kubelet's timeout for a NodePrepareResources or NodeUnprepareResources call, in seconds."""

CLAIM_DEADLINE = 40.0
"""The default deadline for a prepare or unprepare, in seconds."""

CONNECT_DEADLINE = 60.0
DISCOVER_DEADLINE = 60.0
"""The defaults for a backend's start and for `discover`, in seconds."""

KUBELET_HEALTH_LEASE = 30.0
"""The kubelet's timeout for a device's health report, in seconds."""

_POD_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?")


class HealthTaint(Enum):
    """The taint in the ResourceSlice of a device that is unhealthy, or stale."""

    NONE = "none"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class LogFormat(Enum):
    """How log lines look; `auto` is text on a terminal, JSON otherwise."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(Enum):
    """The least severe lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_YEAR = 31_536_000

Seconds = Annotated[float, Meta(gt=0, le=_YEAR)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=_YEAR)]
AbsolutePath = Annotated[str, Meta(pattern="^/")]
UserId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Memory = Annotated[str, Meta(pattern="^[1-9][0-9]{0,5}(Mi|Gi)$")]
Cpu = Annotated[str, Meta(pattern="^([1-9][0-9]{0,2}|[1-9][0-9]{1,5}m)$")]
PidsLimit = Annotated[int, Meta(ge=16, le=2**22)]
Amount = (
    Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern="^[0-9]{1,9}([.][0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
)
NodeResource = Annotated[str, Meta(pattern="^(cpu|memory|ephemeral-storage)$")]
RelativePath = Annotated[str, Meta(pattern="^(?!/)(?!(.*/)?[.][.](/|$)).+$")]


class SeccompType(Enum):
    """Where a seccomp profile is from: the agent itself, or the directory of profiles on the node."""

    RUNTIME_DEFAULT = "RuntimeDefault"
    LOCALHOST = "Localhost"


class SeccompProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A seccomp profile; `localhost_profile` is a path below the kubelet's directory `seccomp`, as for pods."""

    type: SeccompType
    localhost_profile: RelativePath | None = None


class ProcessRights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Who a backend's process is, and what it may do and use, in the words of a pod's security context and resources.

    Without `run_as_user` it has the agent's user and capabilities; with it, no capability at all, and a group of the
    same number unless `run_as_group` says otherwise. Without a profile it has the pod's. `memory_limit` is `512Mi` or
    `2Gi`, `cpu_limit` `500m` or `2`, `pids_limit` a number of threads; None means that there is no limit.
    """

    run_as_user: UserId | None = None
    run_as_group: UserId | None = None
    supplemental_groups: tuple[UserId, ...] = ()
    seccomp_profile: SeccompProfile | None = None
    memory_limit: Memory | None = None
    cpu_limit: Cpu | None = None
    pids_limit: PidsLimit | None = None


class Overhead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How much of one of the node's resources each pod with a device of a backend needs, and each container with it."""

    per_pod: Amount | None = None
    per_container: Amount | None = None


EVENT_CONTROLLER = "pydra-agent"
"""The `reportingController` of the agent's Events."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The settings of `pydra-agent`."""

    backends: tuple[str, ...]
    node_name: str
    drivers: Mapping[str, str] = {}
    backend_settings: Mapping[str, Mapping[str, Any]] = {}
    backend_processes: Mapping[str, ProcessRights] = {}
    backend_overheads: Mapping[str, Mapping[NodeResource, Overhead]] = {}
    kubeconfig: str = ""
    verify_x509_strict: bool = False
    pod_uid: str = ""

    kubelet_root: AbsolutePath = KUBELET_ROOT
    registry_dir: AbsolutePath | None = None
    plugins_dir: AbsolutePath | None = None
    records_dir: AbsolutePath = RECORDS_DIRECTORY
    cdi_dir: AbsolutePath = "/var/run/cdi"
    host_root: AbsolutePath = "/"
    boot_id_file: AbsolutePath = "/proc/sys/kernel/random/boot_id"

    prepare_deadline: Seconds = CLAIM_DEADLINE
    unprepare_deadline: Seconds = CLAIM_DEADLINE
    discover_deadline: Seconds = DISCOVER_DEADLINE
    connect_deadline: Seconds = CONNECT_DEADLINE
    fetch_deadline: Seconds = 10.0
    drain_grace: Seconds = 20.0
    rescan_period: Seconds = 60.0
    sweep_period: Seconds = 600.0
    measure_period: Seconds = 30.0
    health_period: Seconds = 10.0

    device_metadata: bool = False
    device_status: bool = False
    numa_node_lists: bool = False

    health_taint: HealthTaint = HealthTaint.NO_SCHEDULE
    unhealthy_after: SecondsOrNone = 0.0
    healthy_after: SecondsOrNone = 30.0
    stale_taint: HealthTaint = HealthTaint.NO_SCHEDULE
    stale_after: SecondsOrNone = 60.0

    http_address: str = "0.0.0.0:9464"
    log_format: LogFormat = LogFormat.AUTO
    log_level: LogLevel = LogLevel.INFO
    log_file: str = ""

    def __post_init__(self) -> None:
        if problems := (*_name_problems(self), *_time_problems(self), *_place_problems(self)):
            raise SettingsError(problems)

    @property
    def registry_directory(self) -> str:
        """The kubelet's directory for registration sockets."""
        return self.registry_dir or f"{self.kubelet_root}/plugins_registry"

    @property
    def event_instance(self) -> str:
        """The `reportingInstance` of the agent's Events; the chart's policy lets a pod write those of its own only."""
        return f"{EVENT_CONTROLLER}-{self.pod_uid or self.node_name}"

    @property
    def kubelet_claims(self) -> str:
        """The kubelet's checkpoint of claims, as visible to the agent."""
        return f"{self.host_root.rstrip('/')}{self.kubelet_root}/dra_manager_state"

    def plugin_directory(self, driver: str) -> str:
        """Return the directory of the driver's service socket and of records that survive a reboot."""
        return f"{self.plugins_dir or f'{self.kubelet_root}/plugins'}/{driver}"

    def records_directory(self, driver: str) -> str:
        """Return the directory of the driver's lock and records; a reboot empties it, as it resets the hardware."""
        return f"{self.records_dir}/{driver}"

    def claim_directories(self, driver: str) -> tuple[str, str]:
        """Return where the driver's records are: of hardware that forgets at a reboot, and of that which does not."""
        return f"{self.records_directory(driver)}/claims", f"{self.plugin_directory(driver)}/claims"

    def process_rights(self, backend: str) -> ProcessRights:
        """Return the rights of this backend's process, with the path of its profile as visible to the agent."""
        rights = self.backend_processes.get(backend, ProcessRights())
        profile = rights.seccomp_profile
        if profile is None or profile.localhost_profile is None:
            return rights
        path = f"{self.host_root.rstrip('/')}{self.kubelet_root}/seccomp/{profile.localhost_profile}"
        return msgspec.structs.replace(rights, seccomp_profile=msgspec.structs.replace(profile, localhost_profile=path))

    @property
    def http_endpoint(self) -> tuple[str, int] | None:
        """Host and port of the HTTP endpoint, or None if it is off."""
        return split_address(self.http_address) if self.http_address else None


def parse_settings(values: Mapping[str, Any]) -> Settings:
    """Build settings from the YAML file's camelCase keys.

    Raises:
        SettingsError: an unknown key, a wrong type, a value out of range; all problems at once.
    """
    problems = [*find_value_problems(values, Settings, program="pydra-agent")]
    if not values.get("nodeName"):
        problems.append("nodeName: must name this node, as in --node-name; in a DaemonSet from spec.nodeName")
    if problems:
        raise SettingsError(problems)
    return msgspec.convert(values, Settings, strict=False)


def find_value_problems(values: Mapping[str, Any], kind: type[msgspec.Struct], *, program: str) -> Iterator[str]:
    """Yield what is wrong with single values for this Struct of settings; `backends` must not be empty."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in values:
        if key not in fields:
            yield f"{key}: no such setting{suggest(str(key), fields)}; see {program} --help"
    for key, field in fields.items():
        if key not in values:
            continue
        found = values[key]
        try:
            msgspec.convert(found, field.type, strict=False)
        except msgspec.ValidationError as error:
            yield f"{key}: {_explain(field.type, error)} (found {cut(repr(found), 100)})"
        except UnicodeEncodeError:
            yield from find_json_problems(found, key)
        else:
            if isinstance(found, str) and not found.isprintable():  # NUL and unpaired surrogates are invalid in names
                yield f"{key}: must not contain control characters (found {cut(repr(found), 100)})"
            yield from find_json_problems(found, key)  # of backends' settings: they are sent to a process
    if not values.get("backends"):
        yield "backends: must name at least one backend, as in --backend sim"


def find_backend_problems(backends: Sequence[str], drivers: Mapping[str, str]) -> Iterator[str]:
    """Yield duplicate backends, and driver names that are invalid or of a backend that is not served."""
    for name in sorted({name for name in backends if backends.count(name) > 1}):
        yield f"backends: {name!r} is named twice"
    for backend, driver in drivers.items():
        if backend not in backends:
            yield f"drivers: {backend!r} is not among the backends {', '.join(backends)}"
        if not is_driver_name(driver):
            yield f"drivers: {driver!r} is not a driver name; it must be {DRIVER_RULE}"


def is_address(text: str) -> bool:
    """Return whether the text is HOST:PORT; the host may be empty."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) < 65536


def split_address(text: str) -> tuple[str, int]:
    """Split into host, without the brackets of IPv6, and port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)


def _explain(kind: Any, error: msgspec.ValidationError) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"must be one of {', '.join(member.value for member in kind)}"
    if str(error).startswith("Object contains"):
        return str(error).removeprefix("Object ")
    expected = str(error).removeprefix("Expected ")
    for said, meant in _PLAIN_WORDS.items():
        if expected.startswith(said):
            return f"must be {meant}{expected.removeprefix(said).partition(', got')[0]}"
    return f"must be {expected}"


# Texts for admins, instead of msgspec's types and patterns.
_PLAIN_WORDS = {
    "`float`": "a number of seconds",
    "`bool`": "true or false",
    "`str` matching regex '^/'": "an absolute path",
    "`str` matching regex '^[1-9][0-9]{0,5}(Mi|Gi)$'": "an amount of memory such as 512Mi or 2Gi",
    "`str` matching regex '^([1-9][0-9]{0,2}|[1-9][0-9]{1,5}m)$'": "an amount of CPU such as 500m or 2",
    "`str` matching regex '^[0-9]{1,9}([.][0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$'": "an amount such as 500m or 256Mi",
    "`str` matching regex '^(cpu|memory|ephemeral-storage)$'": "cpu, memory or ephemeral-storage",
    "`str` matching regex '^(?!/)(?!(.*/)?[.][.](/|$)).+$'": "a path below the directory, without '..'",
    "Invalid enum value": f"{' or '.join(one.value for one in SeccompType)}, not",
    "`int` >=": "a number >=",
    "`int` <=": "a number <=",
    "`str`": "text",
    "`array`": "a list",
    "`object`": "a mapping",
    "Number out of range": "a smaller number",
}


def _name_problems(settings: Settings) -> Iterator[str]:
    yield from find_backend_problems(settings.backends, settings.drivers)
    yield from _find_unknown_backends("backendSettings", settings.backend_settings, settings.backends)
    yield from _process_problems(settings)
    if settings.pod_uid and not _POD_UID.fullmatch(settings.pod_uid):
        yield f"podUid: {settings.pod_uid!r} is not a pod uid: letters, digits and '-', at most 64 bytes"
    if len(settings.node_name) > 253 or not SUBDOMAIN.fullmatch(settings.node_name):
        yield f"nodeName: {settings.node_name!r} is not a node name: a lower-case DNS subdomain of at most 253 bytes"


def _find_unknown_backends(key: str, named: Iterable[str], backends: Sequence[str]) -> Iterator[str]:
    for backend in named:
        if backend not in backends:
            yield f"{key}: {backend!r} is not among the backends {', '.join(backends)}"


def _process_problems(settings: Settings) -> Iterator[str]:
    yield from _find_unknown_backends("backendProcesses", settings.backend_processes, settings.backends)
    yield from _find_unknown_backends("backendOverheads", settings.backend_overheads, settings.backends)
    for backend, overheads in settings.backend_overheads.items():
        for resource, one in overheads.items():
            if one.per_pod is None and one.per_container is None:
                yield f"backendOverheads.{backend}.{resource}: set perPod or perContainer"
    for backend, rights in settings.backend_processes.items():
        if rights.run_as_user is None and (rights.run_as_group is not None or rights.supplemental_groups):
            yield f"backendProcesses.{backend}: groups have no effect without runAsUser; set it, or leave them out"
        if (profile := rights.seccomp_profile) is None:
            continue
        if (profile.type is SeccompType.LOCALHOST) != (profile.localhost_profile is not None):
            yield f"backendProcesses.{backend}.seccompProfile: set localhostProfile if type is Localhost, and only then"


def _time_problems(settings: Settings) -> Iterator[str]:
    deadlines = {"prepareDeadline": settings.prepare_deadline, "unprepareDeadline": settings.unprepare_deadline}
    for key, seconds in deadlines.items():
        if seconds >= KUBELET_CALL_DEADLINE:
            yield f"{key}: {seconds:g} s is too long: the kubelet gives up after {KUBELET_CALL_DEADLINE:g} s"
    if settings.health_period >= KUBELET_HEALTH_LEASE:
        yield (
            f"healthPeriod: {settings.health_period:g} s is too long: "
            f"the kubelet forgets health after {KUBELET_HEALTH_LEASE:g} s"
        )


def _place_problems(settings: Settings) -> Iterator[str]:
    if settings.http_address and not is_address(settings.http_address):
        yield f"httpAddress: {settings.http_address!r} is not HOST:PORT; leave it empty to serve no HTTP"
    places = {
        "kubeletRoot": settings.kubelet_root,
        "recordsDir": settings.records_dir,
        "cdiDir": settings.cdi_dir,
        "hostRoot": settings.host_root,
    }
    for key, path in places.items():
        if ".." in PurePosixPath(path).parts:
            yield f"{key}: {path!r} must not contain '..'"


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The settings of `pydra webhook`. Without a certificate it serves plain HTTP, for a proxy in front of it.

    `backend_settings` are those of the agents: what they switch off is refused.
    """

    backends: tuple[str, ...]
    drivers: Mapping[str, str] = {}
    backend_settings: Mapping[str, Mapping[str, Any]] = {}

    address: str = "0.0.0.0:8443"
    http_address: str = ""
    tls_cert: AbsolutePath | None = None
    tls_key: AbsolutePath | None = None
    tls_period: Seconds = 10.0

    read_deadline: Seconds = 10.0
    drain_grace: SecondsOrNone = 5.0

    log_format: LogFormat = LogFormat.AUTO
    log_level: LogLevel = LogLevel.INFO

    def __post_init__(self) -> None:
        if problems := tuple(_webhook_problems(self)):
            raise SettingsError(problems)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port for the API server."""
        return split_address(self.address)

    @property
    def http_endpoint(self) -> tuple[str, int] | None:
        """Host and port of the plain endpoint for metrics and probes, or None."""
        return split_address(self.http_address) if self.http_address else None


def parse_webhook_settings(values: Mapping[str, Any]) -> WebhookSettings:
    """Build settings from camelCase keys. Raises SettingsError with all problems at once."""
    if problems := tuple(find_value_problems(values, WebhookSettings, program="pydra webhook")):
        raise SettingsError(problems)
    return msgspec.convert(values, WebhookSettings, strict=False)


def _webhook_problems(settings: WebhookSettings) -> Iterator[str]:
    yield from find_backend_problems(settings.backends, settings.drivers)
    yield from _find_unknown_backends("backendSettings", settings.backend_settings, settings.backends)
    if not is_address(settings.address):
        yield f"address: {settings.address!r} is not HOST:PORT"
    if settings.http_address and not is_address(settings.http_address):
        yield f"httpAddress: {settings.http_address!r} is not HOST:PORT; leave it empty for none"
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given, lacks = ("tlsCert", "tlsKey") if settings.tls_cert else ("tlsKey", "tlsCert")
        yield f"{lacks}: missing, {given} is given; both are needed, or neither to speak plain HTTP"
