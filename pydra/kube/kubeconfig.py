"""Loads a kubeconfig through kubernetes-asyncio, keeping the key material that it carries in memory.

The loader of its own would write every certificate and key that stands in the file to the shared temporary
directory, where they outlive a process that is killed. OpenSSL and the loader want paths: those of memfds, which go
with the process, whatever ends it.
"""

from __future__ import annotations

import base64
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from pydra.kube import lazy

lazy.install()

from kubernetes_asyncio.client.configuration import Configuration  # noqa: E402
from kubernetes_asyncio.config.config_exception import ConfigException  # noqa: E402

INLINE = ("certificate-authority", "client-certificate", "client-key")
"""Fields that name a file, or with `-data` behind carry it in base64."""


def kubeconfig_loader(path: str, context: str) -> Callable[[Configuration], Awaitable[None]]:
    """A coroutine function that fills in a Configuration; called again, it gets fresh tokens.

    It raises ConfigException, and whatever the loader raises for a file that it does not expect.
    """
    loader: Any = None

    async def load(configuration: Configuration) -> None:
        nonlocal loader
        if loader is None:
            loader = _build_loader(path, context, load)
        # Again, an exec plugin's token is kept until it expires, and a token file is read anew.
        await loader.load_and_set(configuration)

    return load


def _build_loader(path: str, context: str, owner: object) -> Any:
    import yaml  # noqa: PLC0415 - as the next import, 5 MiB that a pod does not need
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger  # noqa: PLC0415

    for part in filter(None, path.split(os.pathsep)):
        if not os.path.isfile(os.path.expanduser(part)):
            raise ConfigException(f"there is no file {part}")
    try:
        config = KubeConfigMerger(path).config
    except yaml.YAMLError as error:
        raise ConfigException(str(error)) from error
    if config is None:
        raise ConfigException("it is empty")
    entries = [entry.value.get(kind[:-1]) for kind in ("clusters", "users") for entry in config.value.get(kind) or ()]
    inline = [entry for entry in entries if isinstance(entry, dict) and any(f"{name}-data" in entry for name in INLINE)]
    descriptors: list[int] = []
    weakref.finalize(owner, _close_all, descriptors)
    for entry in inline:
        descriptors += _move_to_memory(entry)
    return KubeConfigLoader(config_dict=config, active_context=context or None, config_base_path=None)


def _move_to_memory(entry: dict[str, Any]) -> Iterator[int]:
    for name in INLINE:
        if data := entry.pop(f"{name}-data", None):  # preferred to a file of the same name
            content = base64.b64decode(data)
            descriptor = os.memfd_create(f"pydra-{name}")  # not inherited: an exec plugin has no use for it
            yield descriptor
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            entry[name] = f"/proc/self/fd/{descriptor}"


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
