"""Command-line flags, environment variables and YAML keys: which there are, and reading them.

A flag beats a variable, a variable beats the file. Imports nothing heavy, so `--help` is quick.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pydra.backends.backend_settings import service_prefixes
from pydra.backends.discovery import UNNAMED, variable_prefix
from pydra.errors import SettingsError
from pydra.message_text import suggest
from pydra.settings import Settings, WebhookSettings, find_value_problems, parse_settings


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, which a later flag could make ambiguous, and names the flag that may be meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; unknown arguments are an error here already, with the usage of the subcommand that got them."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            listed = ", ".join(f"{one}{suggest(one.partition('=')[0], flags)}" for one in unknown)
            self.error(f"unrecognized arguments: {listed}")
        return parsed, unknown


class Option(NamedTuple):
    """One setting: its field in Settings, its group in `--help`, the placeholder and the text."""

    field: str
    group: str
    metavar: str
    help: str

    @property
    def repeated(self) -> bool:
        """Whether the flag, which is in the singular, may be repeated; the variable holds a list with commas."""
        return self.field in ("backends", "drivers")


BACKENDS, KUBERNETES, PLACES = "what to serve", "Kubernetes", "directories and files"
TIMES, HEALTH, OBSERVE = "periods and deadlines, in seconds", "health", "logs and metrics"

OPTIONS: tuple[Option, ...] = (
    Option("backends", BACKENDS, "NAME", "a backend to serve; repeat it for several (`pydra backends` lists them)"),
    Option("drivers", BACKENDS, "NAME=DRIVER", "serve backend NAME under this driver name instead of its own"),
    Option("node_name", KUBERNETES, "NAME", "the name of this node in Kubernetes (spec.nodeName in a DaemonSet)"),
    Option("kubeconfig", KUBERNETES, "FILE", "kubeconfig file for the API server; default: the pod's service account"),
    Option("verify_x509_strict", KUBERNETES, "BOOL", "refuse API server certificates that violate RFC 5280 (some do)"),
    Option(
        "device_metadata",
        KUBERNETES,
        "BOOL",
        "give containers the attributes of their devices as files (KEP-5304), as KubeVirt needs",
    ),
    Option(
        "device_status",
        KUBERNETES,
        "BOOL",
        "write the health of claims' devices, and what backends say of them, into the claims (status.devices)",
    ),
    Option(
        "numa_node_lists",
        KUBERNETES,
        "BOOL",
        "publish numaNode as a list: the NUMA node, and those near it; needs the feature gate DRAListTypeAttributes",
    ),
    Option("pod_uid", KUBERNETES, "UID", "the UID of this pod; lets two instances overlap during a rolling update"),
    Option("kubelet_root", PLACES, "DIR", "the kubelet's directory; must have the same path here as on the host"),
    Option(
        "registry_dir", PLACES, "DIR", "where the kubelet looks for plugins (default: KUBELET_ROOT/plugins_registry)"
    ),
    Option(
        "plugins_dir", PLACES, "DIR", "sockets and durable records are in DIR/DRIVER (default: KUBELET_ROOT/plugins)"
    ),
    Option("records_dir", PLACES, "DIR", "records of prepared claims are in DIR/DRIVER; should be on a tmpfs"),
    Option("cdi_dir", PLACES, "DIR", "the directory where the container runtime reads CDI specs"),
    Option("host_root", PLACES, "DIR", "where the host's / is mounted, to check device nodes and mounts"),
    Option("boot_id_file", PLACES, "FILE", "a file whose content changes with each boot"),
    Option("prepare_deadline", TIMES, "S", "how long a backend may take to prepare a claim (the kubelet waits 45 s)"),
    Option("unprepare_deadline", TIMES, "S", "how long a backend may take to unprepare a claim"),
    Option("discover_deadline", TIMES, "S", "how long a backend may take to discover devices"),
    Option("connect_deadline", TIMES, "S", "how long a backend may take to start"),
    Option("fetch_deadline", TIMES, "S", "how long to wait for the API server during a prepare"),
    Option(
        "drain_grace",
        TIMES,
        "S",
        "how long calls in flight may continue after SIGTERM; at least 5 s less than the pod's grace period",
    ),
    Option("rescan_period", TIMES, "S", "how often to discover devices without a hint"),
    Option("sweep_period", TIMES, "S", "how often to run garbage collection of claims that are gone"),
    Option("measure_period", TIMES, "S", "how often to read the backends' measurements"),
    Option(
        "health_period",
        TIMES,
        "S",
        "how often to repeat the devices' health to the kubelet (which forgets it after 30 s)",
    ),
    Option("health_taint", HEALTH, "EFFECT", "the taint of an unhealthy device: none, NoSchedule or NoExecute"),
    Option("unhealthy_after", HEALTH, "S", "how long a device must be unhealthy before it is tainted"),
    Option("healthy_after", HEALTH, "S", "how long a device must be healthy again before its taint is removed"),
    Option(
        "stale_taint",
        HEALTH,
        "EFFECT",
        "the taint of all devices of a backend whose discover fails: none, NoSchedule or NoExecute",
    ),
    Option("stale_after", HEALTH, "S", "how long discover must fail before the devices are tainted as stale"),
    Option("http_address", OBSERVE, "HOST:PORT", "address of /metrics, /healthz and /readyz; empty to disable"),
    Option("log_format", OBSERVE, "FORMAT", "text, json, or auto (text on a terminal, json otherwise)"),
    Option("log_level", OBSERVE, "LEVEL", "debug, info, warning or error; reloaded on SIGHUP"),
    Option("log_file", OBSERVE, "FILE", "log to this file instead of stderr; reopened on SIGHUP"),
)


class OptionTable(NamedTuple):
    """The options of one command: its settings type, and the prefix of its variables."""

    options: tuple[Option, ...]
    settings: type[msgspec.Struct]
    prefix: str
    program: str


AGENT = OptionTable(OPTIONS, Settings, "PYDRA_", "pydra-agent")

_NODE_FIELDS = (
    *("backends", "drivers", "node_name", "kubeconfig", "pod_uid", "kubelet_root", "registry_dir", "plugins_dir"),
    *("records_dir", "cdi_dir", "host_root", "boot_id_file", "http_address"),
)
NODE_TOOL = AGENT._replace(options=tuple(option for option in OPTIONS if option.field in _NODE_FIELDS))
"""The flags of a tool that looks at what the agent of a node does: it reads the agent's variables and file."""

SERVING = "where to listen"

WEBHOOK = OptionTable(
    (
        Option("backends", BACKENDS, "NAME", "a backend whose configuration to check; repeat it for several"),
        Option("drivers", BACKENDS, "NAME=DRIVER", "the driver name of backend NAME, if it is not its own"),
        Option("address", SERVING, "HOST:PORT", "address for reviews from the API server, with TLS"),
        Option("tls_cert", SERVING, "FILE", "the certificate and its chain, PEM; without it, plain HTTP is served"),
        Option("tls_key", SERVING, "FILE", "the certificate's private key, PEM, without a passphrase"),
        Option(
            "http_address", SERVING, "HOST:PORT", "additional address of /metrics, /healthz and /readyz, without TLS"
        ),
        Option("tls_period", TIMES, "S", "how often to check whether the certificate has changed"),
        Option("read_deadline", TIMES, "S", "how long a client may take for the handshake, and to send a review"),
        Option("drain_grace", TIMES, "S", "how long to continue after SIGTERM, until API servers use another instance"),
        *(option for option in OPTIONS if option.field in ("log_format", "log_level")),
    ),
    WebhookSettings,
    "PYDRA_WEBHOOK_",
    "pydra webhook",
)


def add_options(parser: argparse.ArgumentParser, table: OptionTable = AGENT) -> None:
    """Add one flag for each setting, grouped, with its default and variable in the help text."""
    text = f"a YAML file of settings, keys in camelCase ({table.prefix}CONFIG)"
    parser.add_argument("--config", metavar="FILE", help=text)
    defaults = {field.name: field for field in msgspec.structs.fields(table.settings)}
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in table.options:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        default = default_text(defaults[option.field])
        group.add_argument(
            flag_of(option),
            dest=option.field,
            metavar=option.metavar,
            action="append" if option.repeated else "store",
            help=option.help.replace("%", "%%") + (f" [{default}]" if default else ""),
        )


def flag_of(option: Option) -> str:
    """`--node-name` for node_name, `--backend` for backends."""
    return "--" + (option.field.removesuffix("s") if option.repeated else option.field.replace("_", "-"))


def variable_of(option: Option, table: OptionTable = AGENT) -> str:
    """`PYDRA_NODE_NAME` for `--node-name`."""
    return table.prefix + flag_of(option).removeprefix("--").replace("-", "_").upper()


def key_of(option: Option, table: OptionTable = AGENT) -> str:
    """`nodeName` for node_name."""
    return next(field.encode_name for field in msgspec.structs.fields(table.settings) if field.name == option.field)


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """Format the default for people; empty if there is none."""
    value = getattr(field.default, "value", field.default)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value in (None, msgspec.NODEFAULT) else str(value)


# Reading


def read_values(
    arguments: argparse.Namespace, environ: Mapping[str, str], table: OptionTable = AGENT
) -> dict[str, Any]:
    """Merge raw settings by YAML key, the strongest source first.

    Raises:
        SettingsError: the file cannot be read or is not a YAML mapping, or a variable is unknown or malformed.
    """
    path = arguments.config or environ.get(f"{table.prefix}CONFIG")
    values = _read_file(path) if path else {}
    for option in table.options:
        variable = environ.get(variable_of(option, table))
        if variable is not None:
            values[key_of(option, table)] = _parse_text(option, variable.split(",") if option.repeated else variable)
        given = getattr(arguments, option.field, None)  # a tool of the node has flags for some settings only
        if given is not None:
            values[key_of(option, table)] = _parse_text(option, given)
    backends = values.get("backends", ())
    if isinstance(backends, list | tuple):  # anything else is refused by the settings
        unknown = _unknown_variables(environ, table, backends)
        if unknown:
            known = [variable_of(option, table) for option in table.options]
            meant = {name: suggest(name, known, prefix=table.prefix) for name in unknown}
            raise SettingsError(
                [f"{name}: no such variable{similar}; see {table.program} --help" for name, similar in meant.items()]
            )
    return values


def read_node_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Read the agent's settings for a tool, which needs neither backends nor, where the host has its name, a node.

    Variables that the agent would refuse are left alone: they may be those of backends, which are not named here.

    Raises:
        SettingsError: as for the agent.
    """
    known = {f"{AGENT.prefix}CONFIG", *(variable_of(option) for option in AGENT.options)}
    values = read_values(arguments, {name: text for name, text in environ.items() if name in known})
    if not values.get("backends"):
        values = {
            **values,
            "backends": (UNNAMED,),
            "backendSettings": {},
            "backendProcesses": {},
            "backendOverheads": {},
        }
    return parse_settings({"nodeName": os.uname().nodename.lower(), **values})


def read_config(path: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the agent's settings file, from `path` or PYDRA_CONFIG; empty without one.

    Raises:
        SettingsError: the file cannot be read, or has a key or a value that the agent would refuse.
    """
    path = path or environ.get(f"{AGENT.prefix}CONFIG")
    values = _read_file(path) if path else {}
    # `--backend` may name the backends instead of the file.
    if problems := tuple(find_value_problems({"backends": ["any"], **values}, Settings, program=AGENT.program)):
        raise SettingsError([f"{path}: {problem}" for problem in problems])
    return values


def _unknown_variables(environ: Mapping[str, str], table: OptionTable, backends: Sequence[object]) -> list[str]:
    # PYDRA_SIM_SCENARIO and the like belong to the backend named in them, and are passed to its process.
    known = {variable_of(option, table) for option in table.options} | {f"{table.prefix}CONFIG"}
    theirs = (*(f"{variable_prefix(str(name))}_" for name in backends), *service_prefixes(environ))
    return sorted(
        name for name in environ if name.startswith(table.prefix) and name not in known and not name.startswith(theirs)
    )


def _parse_text(option: Option, given: Any) -> Any:
    if option.field != "drivers":
        return given
    pairs = [str(text).partition("=") for text in given if text]
    if wrong := [name + equals + driver for name, equals, driver in pairs if not (name and equals and driver)]:
        raise SettingsError([f"{flag_of(option)}: {text!r} is not NAME=DRIVER" for text in wrong])
    return {name: driver for name, _, driver in pairs}


def _read_file(path: str) -> dict[str, Any]:
    from pydra.yaml_documents import NotYaml, decode_yaml  # noqa: PLC0415 - only a node configured by file needs it

    try:
        document = decode_yaml(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from error
    except NotYaml as error:
        raise SettingsError([f"{path}: is not valid YAML: {error}"]) from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise SettingsError([f"{path}: must be a mapping of settings"])
    return dict(document)
