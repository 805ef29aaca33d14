"""What claims may configure."""

from __future__ import annotations

import msgspec
import pytest

from pydra_sim.config import Sharing, SimConfig


def test_a_full_configuration_is_read() -> None:
    config = msgspec.convert(
        {"sharing": {"strategy": "TimeSliced", "interval": 5}, "clockMHz": 1200, "env": {"A": "b"}}, SimConfig
    )
    assert config == SimConfig(sharing=Sharing(strategy="TimeSliced", interval=5), clock=1200, env={"A": "b"})


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"clockMhz": 1200}, "clockMhz"),
        ({"clockMHz": 100}, "$.clockMHz"),
        ({"clockMHz": "fast"}, "$.clockMHz"),
        ({"sharing": {"strategy": "Fair"}}, "$.sharing.strategy"),
        ({"sharing": {"interval": 5}}, "$.sharing"),
        ({"env": {"1A": "b"}}, "$.env"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_path(wrong: object, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(wrong, SimConfig)
    assert path in str(caught.value)
