"""The parts of the soak that need no cluster: what comes when, what counts as a finding, and who may not begin."""

from __future__ import annotations

import pytest

from tests.soak.__main__ import main
from tests.soak.results import compare, judge
from tests.soak.schedule import plan_faults

KINDS = ("backend crash", "CA rotation", "disk full")


def test_the_seed_decides_which_fault_comes_when() -> None:
    first, again, other = (plan_faults(seed, KINDS, begin=10, end=1000, period=30) for seed in (1, 1, 2))
    assert first == again != other
    kinds = [one.kind for one in first]
    assert all(10 <= one.seconds < 1000 for one in first)
    for begin in range(0, len(first) - len(KINDS) + 1, len(KINDS)):
        assert sorted(kinds[begin : begin + len(KINDS)]) == sorted(KINDS), "each comes before any comes again"


@pytest.mark.parametrize(
    ("name", "after", "found"),
    [
        ("agent descriptors", 20, []),
        ("agent descriptors", 21, ["agent descriptors grew from 20 to 21"]),
        ("agent memory", 22.9, []),
        ("agent memory", 23.1, ["agent memory grew from 20 to 23.1"]),
    ],
)
def test_a_figure_above_its_limit_is_a_finding(name: str, after: float, found: list[str]) -> None:
    assert judge(compare({name: 20}, {name: after}), ["a pod did not start"]) == ("a pod did not start", *found)


def test_without_a_cluster_it_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("sys.argv", ["soak"])
    assert main() == 2
    assert "KUBECONFIG names no cluster" in capsys.readouterr().err
