"""What pydra writes, a runtime reads: two readings of the specification, written apart, held against each other."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pydra.cdi.edits import ContainerEdits
from pydra.cdi.spec import build_spec
from pydra.claim import PreparedDevice
from pydra.diagnosis.cdi_validation import find_spec_problems
from pydra.errors import EditConflict
from pydra_dev.container_runtime import cdi_specs
from tests.unit.cdi import strategies


@given(edits=strategies.edits, uid=st.sampled_from(["1-a", "a-1"]))
def test_a_runtime_reads_every_spec_that_is_written(edits: ContainerEdits, uid: str) -> None:
    first = PreparedDevice(request="gpu", pool="node-a", device="gpu-0", edits=edits)
    second = PreparedDevice(request="gpu", pool="node-a", device="gpu-1", edits=edits.with_env("OWN", "1"))
    for prepared in ([first], [first, second]):
        try:
            built = build_spec("gpu.example.com", uid, prepared)
        except EditConflict:
            return
        content, ids = built.content, [one for of_device in built.ids for one in of_device]
        if content is None:
            assert ids == []
            continue
        assert find_spec_problems(json.loads(content)) == ()
        seen = cdi_specs.parse_spec(content, "claim.json")
        assert [f"{seen.kind}={device.name}" for device in seen.devices] == ids
        assert seen.cdi_version == cdi_specs.minimum_version(seen)
