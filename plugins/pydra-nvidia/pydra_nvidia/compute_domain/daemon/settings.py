"""The variables of a daemon's container: those set by CDI, those of the DaemonSet, and those for tests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra import SettingsError
from pydra_nvidia.compute_domain.names import MAX_NODES

CDI = "COMPUTE_DOMAIN_UUID"
REPORT_SECONDS = 5.0


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`clique` is empty on a node outside a fabric, where no IMEX runs."""

    domain: str
    clique: str
    node: str
    address: str
    pod: str
    namespace: str
    domain_name: str = ""
    domain_namespace: str = ""
    max_nodes: int = MAX_NODES
    tls_directory: str = ""
    directory: str = "/imexd"
    hosts_file: str = "/etc/hosts"
    program: str = "nvidia-imex"
    control: str = "nvidia-imex-ctl"
    report_seconds: float = REPORT_SECONDS
    """How long the node is not ready before its pod's condition says why."""
    scale: float = 1.0
    """Factor of the periods and pauses between what the daemon does."""


def parse_settings(environ: Mapping[str, str]) -> DaemonSettings:
    """From the variables of the container. Raises SettingsError with all problems."""
    problems = []
    if not environ.get(CDI):
        problems.append(
            f"{CDI}: not set; the container has no edits of CDI: check that the runtime has CDI enabled, and that this "
            "container has the claim of the DaemonSet"
        )
    required = {name: environ.get(name, "") for name in ("NODE_NAME", "POD_IP", "POD_NAME", "POD_NAMESPACE")}
    problems += [f"{name}: not set; the DaemonSet's template sets it" for name, value in required.items() if not value]
    most = environ.get("MAX_NODES_PER_IMEX_DOMAIN") or str(MAX_NODES)
    if not (most.isdecimal() and 1 <= int(most) <= 9999):
        problems.append(f'MAX_NODES_PER_IMEX_DOMAIN: found "{most}", allowed: 1 to 9999')
    report = environ.get("IMEX_REPORT_SECONDS") or str(REPORT_SECONDS)
    scale = environ.get("IMEX_PERIOD_SCALE") or "1"
    for name, text, what in (("REPORT_SECONDS", report, "a number of seconds"), ("PERIOD_SCALE", scale, "a number")):
        if not text.replace(".", "", 1).isdecimal():
            problems.append(f'IMEX_{name}: found "{text}", allowed: {what}')
    if problems:
        raise SettingsError(problems)
    optional = {
        "directory": "IMEX_DIRECTORY",
        "hosts_file": "IMEX_HOSTS_FILE",
        "program": "IMEX_PROGRAM",
        "control": "IMEX_CONTROL_PROGRAM",
        "tls_directory": "IMEX_TLS_DIRECTORY",
        "domain_name": "COMPUTE_DOMAIN_NAME",
        "domain_namespace": "COMPUTE_DOMAIN_NAMESPACE",
    }
    return DaemonSettings(
        domain=environ[CDI],
        clique=environ.get("CLIQUE_ID", ""),
        node=required["NODE_NAME"],
        address=required["POD_IP"],
        pod=required["POD_NAME"],
        namespace=required["POD_NAMESPACE"],
        max_nodes=int(most),
        report_seconds=float(report),
        scale=float(scale),
        **{field: environ[name] for field, name in optional.items() if environ.get(name)},
    )
