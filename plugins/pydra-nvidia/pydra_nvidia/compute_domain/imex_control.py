"""Asks the IMEX daemon of a directory whether it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pydra_nvidia.compute_domain.imex_directories import DomainNotReady
from pydra_nvidia.container_written_files import hold_clients_file
from pydra_nvidia.host.driver_programs import ProgramFailed, find_environment, find_program, run_program
from pydra_nvidia.host.driver_root import DriverRoot

_CONTROL = "nvidia-imex-ctl"
_READY = "READY"
_QUERY_DEADLINE = 5.0


class ImexControl:
    """NVIDIA's program that asks an IMEX daemon. `find_root` finds the driver's installation; it may raise."""

    def __init__(self, find_root: Callable[[], DriverRoot]) -> None:
        self._find_root = find_root

    async def check_daemon(self, config: str) -> None:
        """The daemon with this file of configuration is ready. Raises DomainNotReady, ProgramMissing, DriverMissing."""
        whose = "the IMEX daemon of the ComputeDomain"
        try:
            with hold_clients_file(config) as file:
                await self._check(lambda _root: ("-c", f"/proc/self/fd/{file}"), whose, (file,))
        except OSError as error:
            raise DomainNotReady(f"{whose} has a configuration that cannot be read: {error}") from error

    async def check_host(self, socket: str) -> None:
        """The daemon that answers at `socket`, inside the driver's root, is ready. Raises as `check_daemon` does."""
        await self._check(lambda root: (f"--u={root.path_here(socket)}",), f"the host's IMEX daemon at {socket}")

    async def _check(
        self, address: Callable[[DriverRoot], tuple[str, ...]], whose: str, files: Sequence[int] = ()
    ) -> None:
        root = await asyncio.to_thread(self._find_root)
        program = await asyncio.to_thread(find_program, root, _CONTROL, "nvidia-imex")
        environment = find_environment(root, program, root.path_here)
        command = [program.here, "-q", *address(root)]
        try:
            said = await run_program(
                f"{_CONTROL} -q", command, environment=environment, deadline=_QUERY_DEADLINE, files=files
            )
        except ProgramFailed as error:
            raise DomainNotReady(f"{whose} does not answer yet: {error}") from error
        if said != _READY:
            raise DomainNotReady(f'{whose} is not ready yet: {_CONTROL} says "{said}"')
