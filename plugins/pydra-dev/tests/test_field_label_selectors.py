"""Field and label selectors."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.api.errors import StatusError
from pydra_dev.api.kinds import EVENTS, NODES, PODS, Kind
from pydra_dev.apiserver.field_label_selectors import build_matcher, read_field

GOLD = {"metadata": {"name": "a", "namespace": "n", "labels": {"tier": "gold"}}, "spec": {"nodeName": "n1"}}


@pytest.mark.parametrize(
    ("fields", "labels", "matches"),
    [
        ("", "", True),
        ("metadata.name=a,spec.nodeName==n1", "tier=gold", True),
        ("spec.nodeName!=n1", "", False),
        ("spec.nodeName=", "", False),
        ("status.phase=", "", True),
        ("", "tier in (gold,iron),!colour", True),
        ("", "tier notin (gold)", False),
        ("", "colour notin (red)", True),
        ("", "colour!=red", True),
        ("", "colour", False),
    ],
)
def test_all_requirements_must_hold(fields: str, labels: str, matches: bool) -> None:
    assert build_matcher(PODS, fields, labels)(GOLD) is matches


@pytest.mark.parametrize(("fields", "labels"), [("colour=red", ""), ("nonsense", ""), ("", "a in b"), ("", "a b")])
def test_a_selector_that_makes_no_sense_is_refused(fields: str, labels: str) -> None:
    with pytest.raises(StatusError) as caught:
        build_matcher(PODS, fields, labels)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("kind", "obj", "path", "value"),
    [
        (NODES, {"spec": {}}, "spec.unschedulable", "false"),
        (NODES, {"spec": {"unschedulable": True}}, "spec.unschedulable", "true"),
        (EVENTS, {"source": {"component": "x"}}, "source", "x"),
        (EVENTS, {"involvedObject": {"name": "p"}}, "involvedObject.name", "p"),
    ],
)
def test_a_field_is_read_as_the_registry_names_it(kind: Kind, obj: dict[str, Any], path: str, value: str) -> None:
    assert read_field(kind, obj, path) == value
