"""The objects that `pydra dev` applies, as an admin and an application developer would write them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

NAMESPACE, POD = "default", "sample"
"""The pod in every sample."""


def read_sample(backend: str, driver: str) -> tuple[dict[str, Any], ...]:
    """The objects for a backend: its own sample, or the one that suits every driver."""
    folder = files(__package__)
    own = folder.joinpath(f"{backend}.yaml")
    # Its own sample speaks of its own driver name; under another name only the general one is right.
    if own.is_file() and f"name: {driver}\n" in (text := own.read_text()):
        return tuple(yaml.safe_load_all(text))
    general = folder.joinpath("any.yaml").read_text().replace("DRIVER", driver)
    return tuple(yaml.safe_load_all(general))
