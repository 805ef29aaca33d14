"""An API server that real Helm can look into: it knows its version, its kinds, a few objects. Nothing is written."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import helm_python

Kinds: TypeAlias = Mapping[str, Mapping[str, tuple[str, bool]]]

KINDS: Kinds = {
    "api/v1": {
        "Namespace": ("namespaces", False),
        "Node": ("nodes", False),
        "Secret": ("secrets", True),
        "ConfigMap": ("configmaps", True),
        "ServiceAccount": ("serviceaccounts", True),
        "ResourceQuota": ("resourcequotas", True),
        "Service": ("services", True),
    },
    "apis/apps/v1": {"DaemonSet": ("daemonsets", True), "Deployment": ("deployments", True)},
    "apis/networking.k8s.io/v1": {"NetworkPolicy": ("networkpolicies", True)},
    "apis/policy/v1": {"PodDisruptionBudget": ("poddisruptionbudgets", True)},
    "apis/rbac.authorization.k8s.io/v1": {
        "ClusterRole": ("clusterroles", False),
        "ClusterRoleBinding": ("clusterrolebindings", False),
        "Role": ("roles", True),
        "RoleBinding": ("rolebindings", True),
    },
    "apis/admissionregistration.k8s.io/v1": {
        "ValidatingAdmissionPolicy": ("validatingadmissionpolicies", False),
        "ValidatingAdmissionPolicyBinding": ("validatingadmissionpolicybindings", False),
        "ValidatingWebhookConfiguration": ("validatingwebhookconfigurations", False),
    },
    "apis/resource.k8s.io/v1": {
        "DeviceClass": ("deviceclasses", False),
        "ResourceSlice": ("resourceslices", False),
    },
}
"""Path of a group's version to kind to plural, and whether it is in namespaces: of a cluster with nothing added."""

ADDED: Kinds = {
    "apis/monitoring.coreos.com/v1": {
        "PodMonitor": ("podmonitors", True),
        "ServiceMonitor": ("servicemonitors", True),
        "PrometheusRule": ("prometheusrules", True),
    },
    "apis/cert-manager.io/v1": {"Certificate": ("certificates", True), "Issuer": ("issuers", True)},
    "apis/security.openshift.io/v1": {"SecurityContextConstraints": ("securitycontextconstraints", False)},
}
"""What others add."""

OPENAPI = b"\x0a\x032.0"
"""A description of the API without schemas, as protobuf: field 1 is the version of Swagger."""


@contextmanager
def open_cluster(
    *objects: Mapping[str, Any], version: str = "v1.36.2", kinds: Kinds = KINDS, forbidden: Collection[str] = ()
) -> Iterator[helm_python.Config]:
    """Helm's way into a cluster of this version with these objects, which serves these kinds and no forbidden path."""

    class Handler(_Handler):
        known = objects
        kubernetes = version
        served = kinds
        refused = forbidden

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            with helm_python.Config(
                kubeconfig_content=_kubeconfig(address), namespace="pydra-system", storage_driver="memory"
            ) as config:
                yield config
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    known: tuple[Mapping[str, Any], ...]
    kubernetes: str
    served: Kinds
    refused: Collection[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        found = None if path in self.refused else self._find(path)
        reason, code = ("Forbidden", 403) if path in self.refused else ("NotFound", 404)
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "reason": reason, "code": code}).encode()
        if path == "openapi/v2":
            found, body = {}, OPENAPI
        self.send_response(code if found is None else 200)
        self.send_header("Content-Type", "application/octet-stream" if body is OPENAPI else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _find(self, path: str) -> Mapping[str, Any] | None:
        if path == "version":
            major, minor, _ = self.kubernetes.lstrip("v").split(".", 2)
            return {"major": major, "minor": minor, "gitVersion": self.kubernetes}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*_groups(self.served)]}
        if path in self.served:
            resources = [
                {"name": plural, "kind": kind, "namespaced": inside, "singularName": "", "verbs": ["get", "list"]}
                for kind, (plural, inside) in self.served[path].items()
            ]
            group = path.removeprefix("api/").removeprefix("apis/")
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
        return self._find_object(path)

    def _find_object(self, path: str) -> Mapping[str, Any] | None:
        for group, kinds in self.served.items():
            for kind, (plural, inside) in kinds.items():
                version = group.removeprefix("api/").removeprefix("apis/")
                ours = [one for one in self.known if (one["kind"], one["apiVersion"]) == (kind, version)]
                if path == f"{group}/{plural}":
                    return {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": ours}
                for one in ours:
                    where = f"namespaces/{one['metadata']['namespace']}/" if inside else ""
                    if path == f"{group}/{where}{plural}/{one['metadata']['name']}":
                        return one
                    if path == f"{group}/{where}{plural}":
                        return {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": [one]}
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _groups(kinds: Kinds) -> Iterator[Mapping[str, Any]]:
    for path in kinds:
        if path.startswith("apis/"):
            _, name, version = path.split("/")
            one = {"groupVersion": f"{name}/{version}", "version": version}
            yield {"name": name, "versions": [one], "preferredVersion": one}


def _kubeconfig(address: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "stub", "cluster": {"server": address}}],
            "users": [{"name": "stub", "user": {"token": "none"}}],
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
            "current-context": "stub",
        }
    )
