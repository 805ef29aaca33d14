"""The objects of a domain: two claim templates and a DaemonSet. Names, labels and finalizers are NVIDIA's. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydra.controllers import JsonObject
from pydra_nvidia.compute_domain.controller.object_fields import get_uid
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.names import (
    API_VERSION,
    CHANNEL_CLASS,
    CHANNEL_KIND,
    CONTAINER,
    DAEMON_CLASS,
    DAEMON_KIND,
    DAEMON_TARGET,
    DOMAIN_LABEL,
    DRIVER,
    FINALIZER,
    READY_PORT,
    TARGET_LABEL,
    WORKLOAD_TARGET,
    daemon_name,
)

HASH_ANNOTATION = "resource.nvidia.com/pydra-daemonset-hash"
"""Of the DaemonSet as it was last written: another one is there to be written when this differs."""
TLS_DIRECTORY = "/imexd-tls"
_EVERY_TAINT = [{"operator": "Exists", "effect": effect} for effect in ("NoSchedule", "NoExecute", "PreferNoSchedule")]


def build_daemon_template(domain: JsonObject, settings: ControllerSettings) -> JsonObject:
    """For the claims of the domain's daemons: `daemon-0` of their node."""
    uid = get_uid(domain)
    return _build_template(
        name=daemon_name(uid),
        namespace=settings.namespace,
        uid=uid,
        target=DAEMON_TARGET,
        request="daemon",
        device_class=DAEMON_CLASS,
        parameters={"kind": DAEMON_KIND, "domainID": uid},
    )


def build_workload_template(domain: JsonObject) -> JsonObject:
    """For the claims of the domain's pods: `channel-0` of their node."""
    uid, channel = get_uid(domain), domain["spec"]["channel"]
    mode = channel.get("allocationMode") or "Single"
    return _build_template(
        name=channel["resourceClaimTemplate"]["name"],
        namespace=domain["metadata"]["namespace"],
        uid=uid,
        target=WORKLOAD_TARGET,
        request="channel",
        device_class=CHANNEL_CLASS,
        parameters={"kind": CHANNEL_KIND, "domainID": uid, "allocationMode": mode},
    )


def _build_template(
    *, name: str, namespace: str, uid: str, target: str, request: str, device_class: str, parameters: JsonObject
) -> JsonObject:
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": API_VERSION, **parameters}}
    devices = {
        "requests": [{"name": request, "exactly": {"deviceClassName": device_class}}],
        "config": [{"requests": [request], "opaque": opaque}],
    }
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {DOMAIN_LABEL: uid, TARGET_LABEL: target},
            "finalizers": [FINALIZER],
        },
        "spec": {"metadata": {"labels": {DOMAIN_LABEL: uid}}, "spec": {"devices": devices}},
    }


def build_daemon_set(domain: JsonObject, settings: ControllerSettings) -> JsonObject:
    """The daemons of the domain, on all nodes with its label."""
    uid = get_uid(domain)
    labels = {DOMAIN_LABEL: uid}
    spec = {
        "selector": {"matchLabels": labels},
        # It is written again only while no pod uses the domain, so all daemons may restart at once.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {"metadata": {"labels": labels}, "spec": _build_pod(domain, settings)},
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]
    return {
        "metadata": {
            "name": daemon_name(uid),
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": {HASH_ANNOTATION: digest},
            "finalizers": [FINALIZER],
        },
        "spec": spec,
    }


def _build_pod(domain: JsonObject, settings: ControllerSettings) -> JsonObject:
    uid, metadata = get_uid(domain), domain["metadata"]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.daemon_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["pydra-compute-domain", "daemon"],
        "env": [
            *(
                _field(name, path)
                for name, path in (
                    ("NODE_NAME", "spec.nodeName"),
                    ("POD_IP", "status.podIP"),
                    ("POD_NAME", "metadata.name"),
                    ("POD_NAMESPACE", "metadata.namespace"),
                )
            ),
            {"name": "COMPUTE_DOMAIN_NAME", "value": metadata["name"]},
            {"name": "COMPUTE_DOMAIN_NAMESPACE", "value": metadata["namespace"]},
            {"name": "MAX_NODES_PER_IMEX_DOMAIN", "value": str(settings.max_nodes)},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "PYDRA_LOG_LEVEL", "value": settings.daemon_log_level},
            *([{"name": "IMEX_TLS_DIRECTORY", "value": TLS_DIRECTORY}] if settings.tls_secret else []),
        ],
        "ports": [{"name": "ready", "containerPort": READY_PORT}],
        "startupProbe": _probe("/healthz", period=1, failures=120),
        "livenessProbe": _probe("/healthz", period=20, failures=3),
        "readinessProbe": _probe("/readyz", period=2, failures=1),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "claims": [{"name": CONTAINER}]},
        "securityContext": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod: JsonObject = {
        "serviceAccountName": settings.service_account,
        "nodeSelector": {DOMAIN_LABEL: uid},
        "tolerations": _EVERY_TAINT,
        "terminationGracePeriodSeconds": 30,
        # The image has another user; /imexd, /etc/hosts and the capability for IMEX belong to root.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "containers": [container],
        "resourceClaims": [{"name": CONTAINER, "resourceClaimTemplateName": daemon_name(uid)}],
    }
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.priority_class:
        pod["priorityClassName"] = settings.priority_class
    if settings.selinux_type:
        container["securityContext"]["seLinuxOptions"] = {"type": settings.selinux_type}
    if settings.tls_secret:
        container["volumeMounts"] = [{"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True}]
        pod["volumes"] = [{"name": "tls", "secret": {"secretName": settings.tls_secret, "defaultMode": 0o400}}]
    return pod


def _field(name: str, path: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> JsonObject:
    return {
        "httpGet": {"path": path, "port": "ready"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
