"""What the admin decides for the controller."""

from __future__ import annotations

import argparse

import msgspec

from pydra import SettingsError
from pydra.controllers import LeaseTimes
from pydra_nvidia.compute_domain.names import MAX_NODES

CONTROLLER = "pydra-compute-domain-controller"
"""Its name as a client, in Events, and that of its Lease."""


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that decisions depend on beside the objects."""

    namespace: str
    """Where DaemonSets, daemons and cliques are."""
    daemon_image: str = ""
    """The image of the daemons; needed unless `host_managed`."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str = "compute-domain-daemon-service-account"
    """Of the daemons' pods."""
    priority_class: str = ""
    max_nodes: int = MAX_NODES
    """How many nodes one clique of a domain may have."""
    host_managed: bool = False
    """The hosts run nvidia-imex: there are no daemons, and domains of a fabric are not isolated from each other."""
    tls_secret: str = ""
    """A Secret with tls.crt, tls.key and ca.crt, with which daemons encrypt and authenticate. Empty: they do not."""
    selinux_type: str = ""
    """Of the daemons' containers; empty for the default, which may not write in directories of the host."""
    daemon_log_level: str = "info"


def parse_controller_settings(given: argparse.Namespace) -> tuple[ControllerSettings, LeaseTimes | None]:
    """The settings, and the times of the leader election if there is one. Raises SettingsError with all problems."""
    problems = []
    if not given.namespace:
        problems.append("namespace: missing; name the namespace of the daemons with --namespace or NAMESPACE")
    if given.imex not in ("driverManaged", "hostManaged"):
        problems.append(f'imex: found "{given.imex}", allowed: driverManaged, hostManaged')
    host_managed = given.imex == "hostManaged"
    if not given.daemon_image and not host_managed:
        problems.append("daemonImage: missing; name the image of the daemons with --daemon-image or DAEMON_IMAGE")
    if not (given.max_nodes.isdecimal() and 1 <= int(given.max_nodes) <= 9999):
        problems.append(f'maxNodes: found "{given.max_nodes}", allowed: 1 to 9999')
    if given.leader_election not in ("true", "false"):
        problems.append(f'leaderElection: found "{given.leader_election}", allowed: true, false')
    times = _parse_lease(given.lease_seconds)
    if times is None:
        problems.append(f'leaseSeconds: found "{given.lease_seconds}", allowed: a number of at least 1')
    if problems:
        raise SettingsError(problems)
    settings = ControllerSettings(
        namespace=given.namespace,
        daemon_image=given.daemon_image,
        image_pull_policy=given.image_pull_policy,
        image_pull_secrets=tuple(name for name in given.image_pull_secrets.split(",") if name),
        service_account=given.service_account,
        priority_class=given.priority_class,
        max_nodes=int(given.max_nodes),
        host_managed=host_managed,
        tls_secret=given.tls_secret,
        selinux_type=given.selinux_type,
        daemon_log_level=given.log_level,
    )
    return settings, times if given.leader_election == "true" else None


def _parse_lease(text: str) -> LeaseTimes | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    if not 1 <= seconds <= 3600:
        return None
    return LeaseTimes(duration=seconds, renew_deadline=seconds * 2 / 3, retry_period=seconds * 2 / 15)
