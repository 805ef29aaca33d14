"""The version of Kubernetes that a server reports."""

from __future__ import annotations

import pytest

from pydra.errors import Unsupported
from pydra.kube.version import parse_version


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"major": "1", "minor": "36", "gitVersion": "v1.36.1"}, (1, 36)),
        ({"major": "1", "minor": "34+", "gitVersion": "v1.34.2-gke.100+abc"}, (1, 34)),
        ({"major": "1", "minor": "35+"}, (1, 35)),
        ({"gitVersion": "v2.0.0-alpha.1"}, (2, 0)),
    ],
    ids=["plain", "a vendor's", "without a text", "a later major"],
)
def test_a_version_is_read_in_all_its_spellings(document: dict[str, str], expected: tuple[int, int]) -> None:
    version = parse_version(document)
    assert (version.major, version.minor) == expected
    assert str(version)


@pytest.mark.parametrize(
    "document", [{}, {"gitVersion": "unknown"}, {"major": "", "minor": ""}, {"gitVersion": 5}], ids=str
)
def test_a_server_without_a_version_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="does not report its Kubernetes version"):
        parse_version(document)
