"""Claims and records, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from pydra.checkpoint.record import Record, Stage
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig, PreparedDevice
from tests.unit.cdi import strategies as cdi

words = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
uids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | cdi.texts,
    lambda items: st.lists(items, max_size=2) | st.dictionaries(cdi.texts, items, max_size=2),
    max_leaves=4,
)
configs = st.builds(
    OpaqueConfig,
    source=st.sampled_from(["FromClass", "FromClaim"]),
    position=words,
    parameters=st.dictionaries(words, values, max_size=2),
)
devices = st.builds(
    AllocatedDevice,
    request=words,
    pool=words,
    device=words,
    share_id=st.none() | words,
    consumed_capacity=st.dictionaries(words, st.just("1Gi"), max_size=2),
    admin_access=st.booleans(),
    configs=st.lists(configs, max_size=2).map(tuple),
)
claims = st.builds(
    Claim,
    uid=uids,
    namespace=words,
    name=words,
    devices=st.lists(devices, min_size=1, max_size=2).map(tuple),
)
prepared_devices = st.builds(
    PreparedDevice,
    request=words,
    pool=words,
    device=words,
    share_id=st.none() | words,
    edits=cdi.edits,
    state=values,
)
records = st.builds(
    Record,
    claim=claims,
    driver=words,
    stage=st.sampled_from(Stage),
    boot_id=words,
    prepared=st.lists(prepared_devices, max_size=2).map(tuple),
    created=st.integers(0, 2**40).map(float),
)
