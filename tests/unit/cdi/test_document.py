"""CDI specs as JSON, both ways."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.document import Spec, SpecDevice, build_document, parse_document
from pydra.cdi.edits import ContainerEdits
from pydra.errors import CdiError
from tests.unit.cdi import strategies

SPEC = Spec(
    version="1.1.0",
    kind="acme.example/claim",
    devices=(
        SpecDevice(
            name="u:r:d",
            edits=ContainerEdits()
            .with_env("B", "2")
            .with_env("A", "1=1")
            .with_device_node("/dev/a", host_path="/dev/b", major=0, file_mode=0o660, permissions="rw")
            .with_mount("/m", options=())
            .with_hook("poststop", "/h", args=["h"], timeout=3)
            .with_net_device("eth0", "net0")
            .with_intel_rdt(
                clos_id="c", l3_cache_schema="L3", mem_bw_schema="MB", schemata=["s"], enable_monitoring=True
            )
            .with_additional_gids(5),
            annotations={"acme.example/b": "2", "acme.example/a": "1"},
        ),
    ),
)


def test_the_file_has_the_names_of_the_specification() -> None:
    assert json.loads(build_document(SPEC)) == {
        "cdiVersion": "1.1.0",
        "kind": "acme.example/claim",
        "devices": [
            {
                "name": "u:r:d",
                "containerEdits": {
                    "env": ["A=1=1", "B=2"],
                    "deviceNodes": [
                        {"path": "/dev/a", "hostPath": "/dev/b", "major": 0, "fileMode": 432, "permissions": "rw"}
                    ],
                    "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
                    "hooks": [{"hookName": "poststop", "path": "/h", "args": ["h"], "timeout": 3}],
                    "mounts": [{"hostPath": "/m", "containerPath": "/m"}],
                    "intelRdt": {
                        "closID": "c",
                        "l3CacheSchema": "L3",
                        "memBwSchema": "MB",
                        "schemata": ["s"],
                        "enableMonitoring": True,
                    },
                    "additionalGids": [5],
                },
                "annotations": {"acme.example/a": "1", "acme.example/b": "2"},
            }
        ],
    }


@settings(max_examples=40)
@given(edits=strategies.edits, shared=strategies.edits, annotations=st.dictionaries(strategies.names, strategies.texts))
def test_what_is_written_is_read_back(
    edits: ContainerEdits, shared: ContainerEdits, annotations: dict[str, str]
) -> None:
    device = SpecDevice(name="d", edits=_decided(edits), annotations=annotations)
    spec = Spec(version="1.1.0", kind="a/b", devices=(device,), edits=_decided(shared), annotations=annotations)
    assert parse_document(build_document(spec)) == spec


@given(edits=strategies.edits)
def test_the_order_of_variables_does_not_change_the_bytes(edits: ContainerEdits) -> None:
    turned = replace(edits, env=dict(reversed(list(edits.env.items()))))
    first, second = (
        Spec(version="1.1.0", kind="a/b", devices=(SpecDevice(name="d", edits=e),)) for e in (edits, turned)
    )
    assert build_document(first) == build_document(second)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"", "Input data was truncated", id="empty"),
        pytest.param(b"[]", "Expected `object`", id="no object"),
        pytest.param(b'{"cdiVersion":"1.0.0","kind":"a/b"}', "missing required field `devices`", id="no devices"),
        pytest.param(
            b'{"cdiVersion":"1.0.0","kind":"a/b","devices":[],"x":1}', "unknown field `x`", id="unknown field"
        ),
        pytest.param(
            b'{"cdiVersion":"1.0.0","kind":"a/b","devices":[{"name":"d","containerEdits":{"mounts":[{"hostPath":"/a"}]}}]}',
            r"missing required field `containerPath` - at `$.devices[0].containerEdits.mounts[0]`",
            id="a mount without its other end",
        ),
        pytest.param(
            b'{"cdiVersion":"1.0.0","kind":"a/b","devices":[{"name":"d","containerEdits":{"env":["A"]}}]}',
            "devices[0]: containerEdits.env[0] is 'A', not NAME=VALUE",
            id="a variable without a value",
        ),
        pytest.param(
            b'{"cdiVersion":"1.0.0","kind":"a/b","devices":[],"containerEdits":{"env":["=A"]}}',
            "spec: containerEdits.env[0] is '=A', not NAME=VALUE",
            id="a variable without a name",
        ),
        pytest.param(b'{"kind":"\xff"}', "utf-8", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "not a CDI spec", id="nested without end"),
        pytest.param(b" " * (16 * 1024 * 1024 + 1), "at most 16777216", id="too long"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_with_the_place(content: bytes, found: str) -> None:
    with pytest.raises(CdiError) as caught:
        parse_document(content)
    assert found in str(caught.value)


def _decided(edits: ContainerEdits) -> ContainerEdits:
    """Without `optional`, which CDI does not know, and group 0, which counts as nothing."""
    return replace(
        edits,
        additional_gids=tuple(gid for gid in edits.additional_gids if gid),
        device_nodes=tuple(replace(node, optional=False) for node in edits.device_nodes),
        mounts=tuple(replace(mount, optional=False) for mount in edits.mounts),
    )
