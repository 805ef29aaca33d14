"""The claims that an agent has prepared on this node with the backend that is checked, and what they leave free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import iglob
from typing import Any

from msgspec.structs import replace

from pydra.backends.discovery import BackendSource
from pydra.checkpoint.record_files import StoredRecord, list_stored
from pydra.claim import Claim
from pydra.claims.device_use import PublishedPool, may_meet
from pydra.devices import Inventory
from pydra.errors import CheckpointError
from pydra.settings import parse_settings


class AgentRecords:
    """Where an agent on this node has records, by its settings file and its variables."""

    def __init__(self, source: BackendSource, environ: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """Raises SettingsError."""
        names = {
            "kubeletRoot": "PYDRA_KUBELET_ROOT",
            "pluginsDir": "PYDRA_PLUGINS_DIR",
            "recordsDir": "PYDRA_RECORDS_DIR",
        }
        given = {key: environ.get(variable) or config.get(key) for key, variable in names.items()}
        places = {key: path for key, path in given.items() if path}
        self._settings = parse_settings({"backends": [source.name], "nodeName": "unknown", **places})
        renamed = dict(one.split("=", 1) for one in environ.get("PYDRA_DRIVER", "").split(",") if "=" in one)
        self._renamed = {**config.get("drivers", {}), **renamed}.get(source.configured_name, "")

    def list(self, driver: str) -> tuple[StoredRecord, ...]:
        """List the records of a driver, or of any if no name is known.

        A directory that cannot be read is a record of an unknown claim.
        """
        names = {driver, self._renamed} - {""} or {"*"}
        patterns = [pattern for name in names for pattern in self._settings.claim_directories(name)]
        return tuple(one for pattern in patterns for path in sorted(iglob(pattern)) for one in _read(path))


def take_free(inventory: Inventory, records: Sequence[StoredRecord]) -> Inventory:
    """Return the inventory without what the claims of the records use, or may use."""
    pool = PublishedPool(devices={one.name: one for one in inventory.devices}, counter_sets=inventory.counter_sets)
    held = [one.claim for one in records]
    free = [one for one in inventory.devices if not any(may_meet({one.name}, claim, {"": pool}) for claim in held)]
    return replace(inventory, devices=tuple(free))


def _read(path: str) -> tuple[StoredRecord, ...]:
    try:
        return list_stored(path)
    except CheckpointError as error:
        unknown = Claim(uid="", namespace="", name="", devices=())
        return (StoredRecord(claim=unknown, path=path, problem=str(error)),)
