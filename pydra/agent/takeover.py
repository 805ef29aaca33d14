"""Takes over claims that another driver of the same name had prepared.

The claims get CDI files and records first, then the other driver's files are renamed. If the agent is killed in
between, the next start asks the backend again, and claims that already have a record are left as they are. Of two
instances at once, the one that is later writes nothing more. The CDI files of the other driver stay for the running
containers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from pydra import atomic_files
from pydra.backends.contract import Inheritance
from pydra.checkpoint.record import Record, Stage
from pydra.checkpoint.store import RecordStore
from pydra.claim import Claim, ClaimRef
from pydra.claims.claim_files import ClaimFiles
from pydra.errors import CheckpointError, KubeError, PydraError

SUFFIX = ".inherited"

Names: TypeAlias = Mapping[str, tuple[str, str]]
"""Namespace and name of every claim in the cluster, by uid."""

_log = logging.getLogger(__name__)


async def take_over_claims(
    inherit: Callable[[str], Awaitable[Inheritance]],
    store: RecordStore,
    files: ClaimFiles,
    *,
    find_names: Callable[[], Awaitable[Names]],
    driver: str,
    directory: str,
    boot_id: str,
) -> int:
    """Record what `inherit` finds in the plugin directory; return the number of claims.

    `find_names` is called only if a name is missing. Raises PydraError: of the backend, the disk or the API server.
    """
    before = frozenset(os.listdir(directory))
    inheritance = await inherit(directory)
    theirs = [file for file in inheritance.files if os.path.basename(file) in before]
    new = [one for one in inheritance.claims if store.records.get(one.claim.uid) is None]
    names = await _find_names(find_names) if any(not one.claim.name for one in new) else {}
    for inherited in new:
        record = Record(
            claim=_name(inherited.claim, names),
            driver=driver,
            stage=Stage.COMPLETED,
            boot_id=boot_id,
            prepared=inherited.prepared,
            created=time.time(),
        )
        try:
            record, _ = await files.write(record)
        except PydraError as error:  # the claim holds its devices all the same
            _log.warning("claim %s is taken over, but has no CDI file yet: %s", record.claim.uid, error)
        async with store:
            if not all(map(os.path.exists, theirs)):
                # Renamed by another instance, which serves by now, and may have ended claims since.
                _log.info("another instance of the agent has taken over the claims of the driver before")
                if store.find_held(record.claim.uid) is None:
                    files.remove(ClaimRef.of(record.claim))
                return 0
            await store.write(record)
    _rename_old_files(directory, inheritance.files)
    return len(new)


async def _find_names(find_names: Callable[[], Awaitable[Names]]) -> Names:
    try:
        return await find_names()
    except KubeError as error:
        advice = "; allow it for the time of the migration, in the chart with rbac.listClaims=true"
        raise KubeError(
            "the files of the other driver lack the names of its claims, so all claims must be listed: "
            f"{error}{advice if error.status == 403 else ''}",
            status=error.status,
        ) from error


def _name(claim: Claim, names: Names) -> Claim:
    """Add the claim's name; a claim that no longer exists gets an unused name, and garbage collection removes it."""
    if claim.name:
        return claim
    namespace, name = names.get(claim.uid, ("default", f"gone-{claim.uid}"))
    return replace(claim, namespace=namespace, name=name)


def _rename_old_files(directory: str, files: Iterable[str]) -> None:
    for file in files:
        if "\0" in file or os.path.dirname(os.path.abspath(file)) != os.path.abspath(directory):
            raise CheckpointError(f"the backend names {file!r}, which is not in {directory}; it is left alone")
        try:
            os.replace(file, file + SUFFIX)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(atomic_files.explain(error, f"renaming {file}")) from error
        _log.info("%s is taken over, and was renamed to %s", file, os.path.basename(file) + SUFFIX)
