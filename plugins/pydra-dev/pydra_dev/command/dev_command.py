"""The command `pydra dev`: one run, or one after each change if changes are watched, until a signal, and their page."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from pydra.backends.discovery import find_backend, locate_file
from pydra.errors import SettingsError
from pydra_dev.apiserver.discovery import FIRST_DRA_MINOR, LAST_KNOWN_MINOR, parse_release
from pydra_dev.command.options import Options
from pydra_dev.command.real_containers import find_runtime
from pydra_dev.command.several_nodes import NodesRun
from pydra_dev.command.signals import INTERRUPTED, run_with_signals
from pydra_dev.command.single_node import SingleNodeRun
from pydra_dev.manifests import read_manifests
from pydra_dev.node import free_port, make_root, scenario_environment
from pydra_dev.output.descriptions import Paragraph
from pydra_dev.output.terminal import Output, Printer
from pydra_dev.page.server import Page, parse_address, serve_page


def run(options: Options) -> int:
    """Run the command on standard output; the exit code. Without `once` it runs until a signal.

    Raises SettingsError for what is wrong before anything starts, BrokenPipeError when nobody reads the output.
    """
    find_backend(locate_file(options.backend)[0])
    scenario_environment(options.backend, options.scenario, "")
    _check_release(options.kubernetes)
    if options.run is not None:
        find_runtime(options.run)
    if options.manifests and options.nodes == 1:
        read_manifests(options.manifests)
    return anyio.run(_run_on_output, options)


def _check_release(text: str) -> None:
    try:
        release = parse_release(text)
    except ValueError as error:
        raise SettingsError([f"--kubernetes: {error}"]) from error
    known = range(FIRST_DRA_MINOR, LAST_KNOWN_MINOR + 1)
    if release.major != 1 or release.minor not in known:
        allowed = ", ".join(f"1.{minor}" for minor in known)
        raise SettingsError([f"--kubernetes: {text} is a release that pydra-dev does not know, allowed: {allowed}"])


async def _run_on_output(options: Options) -> int:
    output = Output()
    command = DevCommand(options, write=output.write)
    output.when_closed = command.stop
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.watch, name="reader of the output")
        code = await run_until_signal(command)
        tasks.cancel_scope.cancel()
    if output.closed:
        raise BrokenPipeError
    return code


async def run_until_signal(command: DevCommand) -> int:
    """Run until the command or a signal ends it; the exit code."""
    return await run_with_signals(command.run, command.hear, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DevCommand:
    """Runs on one directory and one address; `write` gets a paragraph at a time.

    Raises SettingsError for an address of the page that cannot be one.
    """

    def __init__(self, options: Options, *, write: Callable[[str], None]) -> None:
        self._options = options
        self._page = Page()
        self._address = parse_address(options.web) if options.web is not None else None
        self._printer = Printer(write, time.monotonic, self._page.tell, quiet=options.quiet)
        self._scope = anyio.CancelScope()
        self._run: SingleNodeRun | NodesRun | None = None
        self._stopped = False
        self._interrupted = False

    def hear(self, number: int) -> None:
        """Stop at a signal; at a second Ctrl-C without waiting. A terminal that is closed sends SIGHUP twice."""
        if self._interrupted and number == signal.SIGINT:
            self._scope.cancel()
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.stop()

    def stop(self) -> None:
        """Stop in order: the pods first, then the agent."""
        self._stopped = True
        if self._run is not None:
            self._run.stop()

    async def run(self) -> int:
        """From an empty node to the end, again after each change if changes are watched; the exit code."""
        code = 1
        with self._scope, make_root() as root:
            async with self._serve_page():
                code = await self._repeat(root)
            self._printer.summarize()
        return code

    async def _repeat(self, root: str) -> int:
        port = free_port()  # the same for every run, as the kubeconfig's path is
        changed = ""
        while not self._stopped:
            if changed:
                self._printer.restart()
                self._printer.say(Paragraph(headline=f"changed: {changed}; everything starts again"))
                for entry in os.scandir(root):
                    shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
            kind = NodesRun if self._options.nodes > 1 else SingleNodeRun
            explain = not (changed or self._options.quiet)
            run = self._run = kind(self._options, self._printer, self._page, explain=explain)
            code = await run.run(root, port)
            if code is not None:
                return code
            changed = run.changed
        return INTERRUPTED if self._options.once else 0

    @asynccontextmanager
    async def _serve_page(self) -> AsyncIterator[None]:
        """Serve the page inside the block, for all runs, if that is asked for."""
        if self._address is None:
            yield
            return
        options = self._options
        title = f"--backend {options.backend}{f' --scenario {options.scenario}' if options.scenario else ''}"
        async with serve_page(self._page, self._address, title):
            self._printer.say(Paragraph(headline=f"ready: page {self._address.url}/?token={self._page.token}"))
            yield
