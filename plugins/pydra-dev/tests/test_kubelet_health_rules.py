"""What the kubelet knows of health, and how long."""

from __future__ import annotations

import pytest

from pydra_dev.kubelet.device_health import DeviceHealth, HealthCache, build_health, choose_streams
from pydra_dev.kubelet.plugin_acceptance import HealthService, Plugin


def well(expires: float = 30) -> DeviceHealth:
    return DeviceHealth(health="Healthy", expires=expires)


def test_health_counts_until_it_expires() -> None:
    cache = HealthCache()
    assert cache.store("drv", "p", "d", well(30))
    assert cache.read("drv", "p", "d", now=29.9).health == "Healthy"
    assert cache.read("drv", "p", "d", now=30).health == "Unknown"
    assert cache.read("drv", "p", "other", now=0).health == "Unknown"


def test_a_repeated_report_is_no_news_and_lasts_longer() -> None:
    cache = HealthCache()
    cache.store("drv", "p", "d", well(30))
    assert not cache.store("drv", "p", "d", well(60))
    assert cache.read("drv", "p", "d", now=45).health == "Healthy"
    assert cache.store("drv", "p", "d", DeviceHealth(health="Healthy", message="hot", expires=60))


def test_only_the_devices_of_one_driver_are_forgotten() -> None:
    cache = HealthCache()
    cache.store("one", "p", "d", well())
    cache.store("two", "p", "d", well())
    assert cache.clear("one")
    assert not cache.clear("one")
    assert cache.read("one", "p", "d", now=0).health == "Unknown"
    assert cache.read("two", "p", "d", now=0).health == "Healthy"


def test_the_next_expiry_is_the_earliest_to_come() -> None:
    cache = HealthCache()
    assert cache.next_expiry(0) is None
    cache.store("drv", "p", "a", well(10))
    cache.store("drv", "p", "b", well(20))
    assert cache.next_expiry(0) == 10
    assert cache.next_expiry(10) == 20
    assert cache.next_expiry(20) is None


@pytest.mark.parametrize(("value", "word"), [(0, "Unknown"), (1, "Healthy"), (2, "Unhealthy"), (7, "Unknown")])
def test_the_wires_numbers_become_words(value: int, word: str) -> None:
    assert build_health(health=value, message="", timeout=0, now=0, lease=30).health == word


@pytest.mark.parametrize(("timeout", "expires"), [(0, 130), (-1, 130), (5, 105)])
def test_a_report_counts_for_the_time_it_says_or_the_default(timeout: int, expires: float) -> None:
    assert build_health(health=1, message="", timeout=timeout, now=100, lease=30).expires == expires


@pytest.mark.parametrize(
    ("message", "length"), [("a" * 1024, 1024), ("a" * 1025, 1024), ("é" * 1000, 1023)], ids=["fits", "long", "cut"]
)
def test_a_long_message_is_cut_to_1024_bytes(message: str, length: int) -> None:
    shown = build_health(health=1, message=message, timeout=0, now=0, lease=30).message
    assert len(shown.encode()) == length
    assert shown.endswith("...") is (shown != message)


def plugin(name: str, *, health: bool = True) -> Plugin:
    return Plugin(
        driver="drv",
        socket=name,
        endpoint=name,
        health=HealthService.V1 if health else None,
    )


@pytest.mark.parametrize(
    ("minor", "plugins", "watched"),
    [
        (36, [plugin("old"), plugin("new")], ["old", "new"]),
        (37, [plugin("old"), plugin("new")], ["new"]),
        (37, [plugin("old"), plugin("new", health=False)], []),
        (35, [plugin("old", health=False)], []),
        (37, [], []),
    ],
    ids=["all up to 1.36", "the newest", "no fallback", "none", "nobody"],
)
def test_which_instances_are_watched_depends_on_the_release(
    minor: int, plugins: list[Plugin], watched: list[str]
) -> None:
    assert [one.socket for one in choose_streams(plugins, minor)] == watched
