"""What the kubelet counts of claims: the failures that it repeats until they are none, and tells nobody else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import Cluster
from tests.integration.api_handle import ApiHandle

OPERATIONS = "dra_operations_duration_seconds_count"
CALLS = "dra_grpc_operations_duration_seconds_count"
LABELS_RIGHTLY = 36
"""The first minor version whose label `is_error` of an operation is not the opposite of what it says."""


async def count_failures(cluster: Cluster) -> Mapping[tuple[str, ...], float]:
    """Failed operations for pods, and calls of the test's driver that ended without an answer, since it started.

    An operation for a pod whose driver is not registered at that moment counts, as does one that the driver refuses.
    """
    api = ApiHandle(Path(os.environ["KUBECONFIG"]), None)
    async with api.connect() as client:
        node = (await client.get(f"/api/v1/nodes/{cluster.node}")).body["status"]
        answer = await client.get(f"/api/v1/nodes/{cluster.node}/proxy/metrics")
        if answer.status == 400 and "address not allowed" in answer.text:  # API servers connect to no loopback address
            address = next(one["address"] for one in node["addresses"] if one["type"] == "InternalIP")
            port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            async with api.connect(f"https://{address}:{port}") as kubelet:
                answer = await kubelet.get("/metrics")
    assert answer.status == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    samples = [one for family in families for one in family.samples if one.name in (OPERATIONS, CALLS)]
    failed = "true" if int(node["nodeInfo"]["kubeletVersion"].split(".")[1]) >= LABELS_RIGHTLY else "false"
    assert any(one.name == OPERATIONS for one in samples), "the kubelet counts what it does for claims"
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for one in samples
        if one.labels.get("is_error") == failed
        or (one.labels.get("driver_name") == cluster.driver and one.labels["grpc_status_code"] != "OK")
    }
