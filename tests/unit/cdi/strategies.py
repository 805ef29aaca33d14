"""Valid container edits, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
paths = st.lists(st.sampled_from(["dev", "usr", "lib", "acme0", "a b", "é"]), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
ids = st.integers(0, 2**32 - 1)
variables = st.builds(lambda name, value: f"{name}={value}", names, texts)


def few(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=3).map(tuple)


nodes = st.builds(
    DeviceNode,
    path=paths,
    host_path=st.just("") | paths,
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.none() | st.integers(0, 2**31),
    minor=st.none() | st.integers(0, 2**31),
    file_mode=st.none() | st.integers(0, 0o7777),
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    uid=st.none() | ids,
    gid=st.none() | ids,
    optional=st.booleans(),
)
mounts = st.builds(
    Mount,
    host_path=paths,
    container_path=paths,
    options=few(st.sampled_from(["ro", "rbind", "nosuid"])),
    type=st.sampled_from(["", "bind", "tmpfs"]),
    optional=st.booleans(),
)
hooks = st.builds(
    Hook,
    hook_name=st.sampled_from(["prestart", "createRuntime", "createContainer", "startContainer", "poststop"]),
    path=paths,
    args=few(texts),
    env=few(variables),
    timeout=st.integers(0, 600),
)
net_devices = st.lists(st.tuples(names, names), max_size=3, unique_by=(lambda one: one[0], lambda one: one[1])).map(
    lambda pairs: tuple(NetDevice(host_interface_name=host, name=name) for host, name in pairs)
)
rdts = st.builds(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "gold"]),
    l3_cache_schema=texts,
    mem_bw_schema=texts,
    schemata=few(texts),
    enable_monitoring=st.booleans(),
)
edits = st.builds(
    ContainerEdits,
    env=st.dictionaries(names, texts, max_size=3),
    device_nodes=few(nodes),
    mounts=few(mounts),
    hooks=few(hooks),
    net_devices=net_devices,
    intel_rdt=st.none() | rdts,
    additional_gids=few(ids),
)
