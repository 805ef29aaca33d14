"""The Events that the kubelet writes about pods. Pure."""

from __future__ import annotations

from datetime import datetime

from pydra.kube.resources import EVENTS
from pydra_dev.kubelet.podlife import JsonObject

NOTE_LIMIT = 1024
"""Bytes of an Event's note that the API accepts."""


def build_event(pod: JsonObject, reason: str, message: str, node: str, now: datetime) -> dict[str, object]:
    """A warning on a pod, for events.k8s.io; what is too long of the message is cut."""
    metadata = pod["metadata"]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning",
        "reason": reason,
        "action": "Starting",
        "note": message.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "reportingController": "kubelet",
        "reportingInstance": node,
    }
