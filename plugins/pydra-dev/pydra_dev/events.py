"""What the embedded controllers tell: Events in the API, refusals in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pydra_dev.kinds import EVENTS
from pydra_dev.metadata import build_suffix
from pydra_dev.status import JsonObject, StatusError
from pydra_dev.verbs import Api

log = logging.getLogger(__name__)
_COMPONENT = "pydra-embedded"


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Log what the API refuses inside the block: the next turn sees the object as it is then."""
    try:
        yield
    except StatusError as error:
        log.warning("could not %s: %s", what, error)


def emit_event(api: Api, about: JsonObject, type_: str, reason: str, message: str) -> None:
    """Write an Event about a namespaced object."""
    metadata, now = about["metadata"], api.now
    involved = {"kind": about["kind"], "apiVersion": about["apiVersion"]}
    involved |= {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    body = {
        "metadata": {"name": f"{metadata['name']}.{build_suffix(api.random)}{build_suffix(api.random)}"},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "type": type_,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    with attempt(f"write event {reason}"):
        api.create(EVENTS, body, namespace=metadata["namespace"])
