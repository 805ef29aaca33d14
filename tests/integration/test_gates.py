"""The marker `gates`: a probe that is wrong would skip its tests for ever."""

from __future__ import annotations

import pytest

from pydra_dev.api.feature_gates import build_gates
from tests.integration.api_handle import open_api
from tests.integration.gates import PROBES


@pytest.mark.parametrize("gate", [gate for gate in PROBES if gate in build_gates(36)])
async def test_a_test_is_skipped_where_a_gate_that_it_needs_is_off_and_nowhere_else(
    gate: str, request: pytest.FixtureRequest
) -> None:
    request.node.add_marker(pytest.mark.gates(gate))
    async with open_api(gates={gate: True}) as api:
        await api.require(request.node)
    async with open_api(gates={gate: False}) as api:
        with pytest.raises(pytest.skip.Exception, match=f"feature gate {gate}"):
            await api.require(request.node)


async def test_on_1_34_partitions_are_skipped_though_their_gate_is_on(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.gates("DRAPartitionableDevices"))
    async with open_api(version="1.34.9", gates={"DRAPartitionableDevices": True}) as api:
        with pytest.raises(pytest.skip.Exception, match="must reference a counterSet"):
            await api.require(request.node)
