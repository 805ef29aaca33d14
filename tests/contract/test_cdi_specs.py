"""What pydra writes, a runtime reads: two readings of the specification, written apart, held against each other."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.document import build_document
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.merge import find_conflicts, normal_edits
from pydra.cdi.spec import build_spec, parse_spec
from pydra.claim import PreparedDevice
from pydra.errors import CdiError
from pydra_dev import cdi_specs
from tests.unit.cdi import strategies


def _prepared(edits: ContainerEdits, device: str = "gpu-0") -> PreparedDevice:
    return PreparedDevice(request="gpu", pool="node-a", device=device, edits=edits)


usable = strategies.edits.filter(lambda edits: not find_conflicts([("a", normal_edits(edits))]))


@given(edits=usable, uid=st.sampled_from(["1-a", "a-1"]))
def test_a_runtime_reads_every_spec_that_is_written(edits: ContainerEdits, uid: str) -> None:
    twice = [_prepared(edits), _prepared(edits.with_env("OWN", "1"), "gpu-1")]
    for prepared in (twice[:1], twice):
        spec = build_spec("gpu.example.com", uid, prepared)
        if spec is None:
            assert all(one.edits.is_empty for one in prepared)
            continue
        seen = cdi_specs.parse_spec(build_document(spec), "claim.json")
        assert seen.kind == spec.kind
        assert [device.name for device in seen.devices] == [device.name for device in spec.devices]
        assert cdi_specs.minimum_version(seen) == spec.version == seen.cdi_version


@pytest.mark.parametrize(
    "broken",
    [
        b"{}",
        b'{"cdiVersion":"0.3.0","kind":"a","devices":[{"name":"d","containerEdits":{"env":["A=1"]}}]}',
        b'{"cdiVersion":"0.9.0","kind":"a/b","devices":[{"name":"d","containerEdits":{"env":["A=1"]}}]}',
        b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[]}',
        b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":"d","containerEdits":{}}]}',
        b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":"1","containerEdits":{"env":["A=1"]}}]}',
        b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":"d","containerEdits":{"env":["A=1"]}}],"more":1}',
        b'{"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"d","containerEdits":{"additionalGids":[1]}}]}',
    ],
)
def test_both_refuse_what_breaks_the_rules(broken: bytes) -> None:
    with pytest.raises(CdiError):
        parse_spec(broken)
    with pytest.raises(msgspec.DecodeError):
        cdi_specs.parse_spec(broken, "claim.json")


@given(edits=usable.filter(lambda edits: not edits.is_empty), damage=st.sampled_from(["9.9.9", "", "0.1.0"]))
def test_both_refuse_a_version_that_is_unknown_or_too_low(edits: ContainerEdits, damage: str) -> None:
    spec = build_spec("gpu.example.com", "1-a", [_prepared(edits)])
    assert spec is not None
    content = build_document(replace(spec, version=damage))
    with pytest.raises(CdiError):
        parse_spec(content)
    with pytest.raises(msgspec.DecodeError):
        cdi_specs.parse_spec(content, "claim.json")
