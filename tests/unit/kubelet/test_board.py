"""The health board: told once for each change."""

from __future__ import annotations

from pydra.devices import DeviceHealth, Health, HealthStatus
from pydra.kubelet.board import HealthBoard

SICK = Health(status=HealthStatus.UNHEALTHY, message="lost")


def device(health: Health = Health(), updated: int = 0) -> DeviceHealth:  # noqa: B008 - frozen
    return DeviceHealth(pool="p", device="d", status=health.status, message=health.message, updated=updated)


def test_listeners_hear_of_changes_only() -> None:
    board, heard = HealthBoard(), []
    unsubscribe = board.subscribe(lambda: heard.append(board.current()))
    board.publish((device(),))
    board.publish((device(updated=5),))
    board.publish((device(SICK),))
    unsubscribe()
    board.publish(())
    assert heard == [(device(),), (device(SICK),)]
    assert board.current() == ()


def test_the_time_of_the_last_look_is_kept_without_a_word() -> None:
    board = HealthBoard()
    board.publish((device(updated=1),))
    board.publish((device(updated=2),))
    assert board.current() == (device(updated=2),)
