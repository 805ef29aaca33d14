"""A backend that breaks its contract in three ways."""

DRIVER = "Not A Driver"


def discover() -> None:
    """No coroutine, and the other two are missing."""
