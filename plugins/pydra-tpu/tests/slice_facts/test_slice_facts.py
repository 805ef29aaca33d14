"""What is known of a slice, from what the sources tell."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_tpu import Settings
from pydra_tpu.geometry import Bounds
from pydra_tpu.hardware_types import Chip, SliceFacts
from pydra_tpu.slice_facts.merge import merge_facts
from pydra_tpu.slice_facts.parse import parse_attributes, parse_settings, parse_tpu_env
from tpu_values import chip_of

V4_POD = """
ACCELERATOR_TYPE: 'v4-256'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
CONSUMER_PROJECT_ID: 'x'
ENABLE_ICI_RESILIENCY: 'true'
HOST_BOUNDS: '2,2,8'
NODE_ID: 'my-tpu'
TOPOLOGY: '4x4x8'
TYPE: 'V4'
WORKER_ID: '5'
WRAP: 'true,true,true'
"""
GKE_V5E = "cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice,cloud.google.com/gke-tpu-topology={},x=y=z,,"


def merge(
    generation: str, count: int, served: Mapping[str, str], *, file: str = "", settings: Settings | None = None
) -> tuple[SliceFacts, tuple[str, ...]]:
    """Of chips, the attributes of the metadata server, the file tpu-env, and the settings."""
    told = (parse_settings(settings or Settings()), parse_tpu_env(file, "the file"), *parse_attributes(served))
    return merge_facts(told, [chip_of(generation, index) for index in range(count)])


def test_tpu_env_tells_all_of_a_worker_of_a_v4_pod() -> None:
    facts, problems = merge("v4", 4, {"tpu-env": V4_POD})
    assert problems == ()
    assert facts == SliceFacts(
        accelerator="tpu-v4-podslice",
        topology=Bounds(4, 4, 8),
        worker_id=5,
        host_chips=4,
        host_bounds=Bounds(2, 2, 8),
        wrap=(True, True, True),
        ici_resiliency=True,
        slice_name="my-tpu",
        sources=facts.sources,
    )
    assert {*facts.sources.values()} == {"the metadata server's tpu-env"}


def test_each_fact_is_taken_from_the_first_source_that_has_it() -> None:
    facts, problems = merge(
        "v5litepod",
        4,
        {
            "agent-worker-number": "0",
            "worker-network-endpoints": "a:1:10.0.0.7,b:2:10.0.0.9",
            "kube-labels": GKE_V5E.format("2x4") + "cloud.google.com/gke-nodepool=pool-1",
        },
        settings=Settings(worker_id=1),
        file="TOPOLOGY: '2x4'\nWORKER_ID: '0'\n",
    )
    assert problems == ()
    assert facts == SliceFacts(
        accelerator="tpu-v5-lite-podslice",
        topology=Bounds(2, 4),
        worker_id=1,
        worker_hostnames=("10.0.0.7", "10.0.0.9"),
        slice_name="pool-1",
        sources={
            "accelerator": "the metadata server's kube-labels",
            "topology": "the file",
            "worker_id": "the settings",
            "worker_hostnames": "the metadata server",
            "slice_name": "the metadata server's kube-labels",
        },
    )


@pytest.mark.parametrize(
    ("generation", "count", "served", "topology"),
    [
        ("v5litepod", 8, {}, Bounds(2, 4)),
        ("v6e", 1, {}, Bounds(1, 1)),
        ("v5p", 1, {}, Bounds(1, 1)),
        ("v5p", 2, {}, Bounds(2, 1)),
        ("v5p", 2, {"accelerator-type": "v5p-4"}, Bounds(2, 1)),
        ("v5p", 2, {"tpu-env": "TOPOLOGY: '1x2x1'"}, Bounds(1, 2)),
        ("tpu7x", 1, {}, Bounds(1, 1)),
        ("v6e", 4, {}, None),  # a slice by itself, or a worker of any
        ("v4", 4, {}, None),
        ("v4", 4, {"accelerator-type": "v4-8"}, Bounds(2, 2)),
        ("v4", 4, {"accelerator-type": "v4-16"}, None),
        ("tpu7x", 4, {"accelerator-type": "tpu7x-8"}, Bounds(2, 2)),
        ("v2", 4, {"tpu-env": "CHIPS_PER_HOST_BOUNDS: '2,2,1'\nHOST_BOUNDS: '4,2,1'"}, Bounds(8, 4)),
        ("v6e", 8, {"worker-network-endpoints": "a:1:10.0.0.7,b:2:10.0.0.9"}, None),
        ("v6e", 8, {"agent-worker-number": "3"}, None),
    ],
)
def test_the_topology_follows_from_the_chips_only_where_nothing_else_is_possible(
    generation: str, count: int, served: dict[str, str], topology: Bounds | None
) -> None:
    facts, problems = merge(generation, count, served)
    assert (facts.topology, problems) == (topology, ())


@pytest.mark.parametrize(
    ("generation", "count", "served", "missing", "words"),
    [
        (
            "v5litepod",
            8,
            {"tpu-env": "TOPOLOGY: '2x2x2'"},
            {"topology"},
            "2x2x2 by the metadata server's tpu-env cannot",
        ),
        (
            "v5litepod",
            8,
            {"tpu-env": "TOPOLOGY: '3x3'"},
            {"topology"},
            "cannot be formed by TPU v5e hosts (chips of each: 8)",
        ),
        ("v5litepod", 8, {"tpu-env": "TOPOLOGY: '0x4'"}, set(), "TOPOLOGY of the metadata server's tpu-env is ignored"),
        (
            *("v5litepod", 4, {"tpu-env": "TOPOLOGY: '2x4'", "kube-labels": GKE_V5E.format("4x4")}, {"topology"}),
            "topology is 2x4 by the metadata server's tpu-env and 4x4 by the metadata server's kube-labels: neither",
        ),
        (
            *("v4", 4, {"tpu-env": V4_POD.replace("4x4x8", "4x4x4")}, {"topology"}),
            "4x4x4 by the metadata server's tpu-env is a v4-128, but by the metadata server's tpu-env this is a v4-256",
        ),
        (
            *("v4", 4, {"tpu-env": V4_POD.replace("2,2,8", "1,1,8")}, {"topology", "host_bounds"}),
            "has 2,2,8 hosts (chips of each: 4), but by the metadata server's tpu-env it has 1,1,8",
        ),
        ("v4", 4, {"tpu-env": V4_POD.replace("'5'", "'32'")}, {"worker_id"}, "worker_id 32 by"),
        ("v4", 4, {"tpu-env": V4_POD, "agent-worker-number": "6"}, {"worker_id"}, "worker_id is 5 by"),
        (
            *("v6e", 8, {"accelerator-type": "v6e-8", "tpu-env": "ACCELERATOR_TYPE: 'v6e-16'"}, {"topology"}),
            "accelerator_type is v6e-16 by the metadata server's tpu-env and v6e-8 by the metadata server: neither",
        ),
        ("v4", 4, {"tpu-env": V4_POD, "agent-worker-number": "-1"}, set(), "'-1' is not a number"),
        (
            *("v4", 4, {"tpu-env": V4_POD, "worker-network-endpoints": "a:1:h1,b:2:h2"}, {"worker_hostnames"}),
            "worker_hostnames by the metadata server are ignored: their number is 2, that of hosts 32",
        ),
        ("v5litepod", 8, {"worker-network-endpoints": "a:1:h 1"}, {"worker_hostnames"}, "'h 1' is not a host name"),
        ("v5litepod", 8, {"tpu-env": "TYPE: 'V9'"}, set(), "'V9' is not a known generation"),
        # It was published: the strings that follow from it are too long for the API, and no device was left.
        ("v5litepod", 4, {"tpu-env": f"TOPOLOGY: '{'2' * 70}x2'"}, {"topology"}, "is not a topology"),
        ("v5litepod", 8, {"tpu-env": "WRAP: 'maybe'"}, {"wrap"}, "'maybe' is neither true nor false"),
        ("v5litepod", 8, {"tpu-env": "NODE_ID: 'a b'"}, {"slice_name"}, "'a b' is not a label's value"),
    ],
)
def test_what_contradicts_the_chips_or_another_source_is_left_out_and_told(
    generation: str, count: int, served: dict[str, str], missing: set[str], words: str
) -> None:
    facts, problems = merge(generation, count, served)
    assert [getattr(facts, name) or None for name in missing] == [None] * len(missing)
    assert not missing & facts.sources.keys()
    assert len(problems) == 1
    assert words in problems[0]


@pytest.mark.parametrize("told", ["tpu7x-8", "v7x-8", "v2-8"])
def test_a_source_that_tells_of_another_generation_is_not_believed_in_anything(told: str) -> None:
    facts, problems = merge(
        "v5litepod", 8, {"tpu-env": f"ACCELERATOR_TYPE: '{told}'\nTOPOLOGY: '4x4'\nWORKER_ID: '3'\n"}
    )
    assert (facts.topology, facts.worker_id, facts.accelerator) == (Bounds(2, 4), None, None)
    (problem,) = problems
    assert "but they are TPU v5e: nothing from there is used" in problem


@pytest.mark.parametrize(
    ("generation", "chips", "accelerator"),
    [("v4", 4, "tpu-v4-podslice"), ("v6e", 8, "tpu-v6e-slice"), ("tpu7x", 4, "tpu7x"), ("v5litepod", 8, None)],
)
def test_the_accelerator_follows_from_the_chips_where_their_generation_has_one_only(
    generation: str, chips: int, accelerator: str | None
) -> None:
    assert merge(generation, chips, {})[0].accelerator == accelerator


def test_a_topology_of_the_settings_that_cannot_be_is_to_be_corrected_there() -> None:
    facts, problems = merge("v5litepod", 8, {}, settings=Settings(topology="3x3"))
    assert facts.topology is None
    assert problems == (
        "topology 3x3 by the settings cannot be formed by TPU v5e hosts (chips of each: 8): it is ignored; correct it, "
        "or leave it out",
    )
    told = {"tpu-env": "HOST_BOUNDS: '1,1,1'"}
    facts, problems = merge("v5litepod", 8, told, settings=Settings(topology="4x4"))
    assert facts.topology == Bounds(4, 4)
    assert problems[0].endswith("by the metadata server's tpu-env it has 1,1,1: the settings are used")


def test_an_accelerator_that_is_not_a_labels_value_is_refused_in_the_settings() -> None:
    with pytest.raises(msgspec.ValidationError, match="matching regex"):
        msgspec.convert({"accelerator": "foo bar"}, Settings)


def test_the_settings_decide_between_sources_that_contradict_each_other() -> None:
    facts, problems = merge(
        "v5litepod",
        4,
        {"tpu-env": "TOPOLOGY: '2x4'", "kube-labels": GKE_V5E.format("8x8")},
        settings=Settings(topology="4x4"),
    )
    assert (facts.topology, problems) == (Bounds(4, 4), ())


@pytest.mark.fuzz
@given(st.dictionaries(st.sampled_from(["tpu-env", "accelerator-type", "kube-labels"]), st.text()), st.text())
def test_no_text_of_a_source_is_an_error(served: dict[str, str], value: str) -> None:
    keys = ("ACCELERATOR_TYPE", "TYPE", "TOPOLOGY", "HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS", "WRAP", "WORKER_ID")
    merge("v4", 4, served, file="\n".join(f"{key}: '{value}'" for key in keys))


def test_chips_that_are_no_mesh_have_no_slice() -> None:
    none: list[Chip] = []
    for chips in ([chip_of("v4", 0), chip_of("v5p", 1)], none):
        assert merge_facts([parse_tpu_env(V4_POD, "the file")], chips) == (SliceFacts(), ())
