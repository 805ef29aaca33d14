"""What the admin decides for the controller."""

from __future__ import annotations

import msgspec

from pydra_nvidia.compute_domain.names import MAX_NODES


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
