"""What `pydra dev` is asked for."""

from __future__ import annotations

import msgspec

from pydra_dev.apiserver.discovery import DEFAULT_VERSION

STEP_DEADLINE = 30.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to show. `manifests` are files to apply instead of the sample, `config` the agent's settings file."""

    backend: str = "sim"
    scenario: str | None = None
    manifests: tuple[str, ...] = ()
    config: str | None = None
    once: bool = False
    watch: bool = False
    web: str | None = None
    """Serve the page at this address, or at a free port if empty; after a failure the node stays up."""
    kubernetes: str = DEFAULT_VERSION
    """The Kubernetes release whose rules and feature gates the embedded node has."""
    run: str | None = None
    """Run containers with this runtime, or with any that is installed if empty."""
    deadline: float = STEP_DEADLINE
    quiet: bool = False
    """Of what goes well, print only the headlines."""
    nodes: int = 1

    @property
    def agent_flags(self) -> tuple[str, ...]:
        """Those of each node's agent.

        Nobody waits here for what might end by itself; and the interfaces that pods get are in the claims only.
        """
        quick = ("--stale-after", "0", "--healthy-after", "0", "--drain-grace", "0.5", "--device-status", "true")
        return (*quick, *(("--config", self.config) if self.config else ()))
