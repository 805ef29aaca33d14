"""The API server as users, the scheduler and the kubelet meet it: JSON over HTTP."""

from __future__ import annotations

import json
import uuid
from http.client import HTTPConnection
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from tests.behaviour.kubelet import Claim

Json: TypeAlias = dict[str, Any]
RESOURCE = "/apis/resource.k8s.io/v1"
EVENTS = "/apis/events.k8s.io/v1/events"


class Api:
    """A client of one server. `node` is the name of the node, and so of its pools."""

    def __init__(self, url: str, node: str) -> None:
        self._address = urlsplit(url).netloc
        self._node = node

    def request(self, method: str, path: str, body: Any = None) -> Json:
        """Send a request; raises AssertionError unless the answer is one of success."""
        connection = HTTPConnection(self._address, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        assert response.status < 300, f"{method} {path}: {response.status} {answer.decode(errors='replace')}"
        found: Json = json.loads(answer)
        return found

    def create_node(self) -> None:
        """The Node object of this node."""
        self.request("POST", "/api/v1/nodes", {"metadata": {"name": self._node}})

    def allow_admin_access(self) -> None:
        """Allow claims of the namespace admin access."""
        found = self.request("GET", "/api/v1/namespaces/default")
        found["metadata"]["labels"] = {"resource.kubernetes.io/admin-access": "true"}
        self.request("PUT", "/api/v1/namespaces/default", found)

    def create_claim(
        self,
        *results: str | Json,
        name: str = "",
        config: list[Json] | None = None,
        allocated: bool = True,
        **spec: Any,
    ) -> Claim:
        """A claim, allocated with a result for each device: its name, or fields of the result beside it.

        The first device is for request `r0`, the second for `r1`, and so on.
        """
        name = name or f"claim-{uuid.uuid4().hex[:8]}"
        fields = [{"device": one} if isinstance(one, str) else one for one in results]
        requests = [
            {
                "name": f"r{number}",
                "exactly": {
                    "deviceClassName": "board",
                    **({"adminAccess": True} if result.get("adminAccess") else {}),
                },
            }
            for number, result in enumerate(fields or [{}])
        ]
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}, **spec}}
        made = self.request("POST", f"{RESOURCE}/namespaces/default/resourceclaims", body)
        claim = Claim(uid=made["metadata"]["uid"], name=name)
        if allocated:
            self.allocate(claim, *fields, config=config)
        return claim

    def allocate(self, claim: Claim, *results: str | Json, config: list[Json] | None = None) -> None:
        """What the scheduler does: give the claim these devices."""
        fields = [{"device": one} if isinstance(one, str) else one for one in results]
        allocated = [
            {"request": f"r{number}", "driver": "board.example.com", "pool": self._node, **result}
            for number, result in enumerate(fields)
        ]
        self._write_status(claim, {"allocation": {"devices": {"results": allocated, "config": config or []}}})

    def deallocate(self, claim: Claim) -> None:
        """Take the allocation away."""
        self._write_status(claim, {})

    def annotate(self, claim: Claim, text: str, *, key: str = "note") -> None:
        """What any tenant may do: write an annotation on a claim."""
        found = self.read_claim(claim)
        found["metadata"]["annotations"] = {key: text}
        self.request("PUT", self._path(claim), found)

    def delete_claim(self, claim: Claim) -> None:
        """Delete a claim."""
        self.request("DELETE", self._path(claim))

    def read_claim(self, claim: Claim) -> Json:
        """The claim's object."""
        return self.request("GET", self._path(claim))

    def slices(self, driver: str = "board.example.com") -> list[Json]:
        """The driver's ResourceSlices."""
        found = self.request("GET", f"{RESOURCE}/resourceslices")["items"]
        return [one for one in found if one["spec"]["driver"] == driver]

    def delete_slice(self, found: Json) -> None:
        """Delete a ResourceSlice."""
        self.request("DELETE", f"{RESOURCE}/resourceslices/{found['metadata']['name']}")

    def replace_slice(self, changed: Json) -> None:
        """Write a changed ResourceSlice."""
        self.request("PUT", f"{RESOURCE}/resourceslices/{changed['metadata']['name']}", changed)

    def devices(self) -> dict[str, Json]:
        """The published devices by name."""
        return {device["name"]: device for one in self.slices() for device in one["spec"].get("devices") or ()}

    def taints(self) -> dict[str, list[Json]]:
        """The taints of the published devices that have any, by name."""
        return {name: device["taints"] for name, device in self.devices().items() if device.get("taints")}

    def events(self, about: Claim | None = None) -> list[Json]:
        """The Events, or those that regard a claim."""
        found: list[Json] = self.request("GET", EVENTS)["items"]
        return [one for one in found if about is None or (one.get("regarding") or {}).get("uid") == about.uid]

    def add_device_status(self, claim: Claim, entry: Json) -> None:
        """What another driver may do: say something of its device in the claim."""
        status = self.read_claim(claim)["status"]
        self._write_status(claim, {**status, "devices": [entry]})

    def _write_status(self, claim: Claim, status: Json) -> None:
        found = self.read_claim(claim)
        self.request("PUT", f"{self._path(claim)}/status", {**found, "status": status})

    def _path(self, claim: Claim) -> str:
        return f"{RESOURCE}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
