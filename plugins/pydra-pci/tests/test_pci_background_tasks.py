"""Work beside a block ends with it, and errors keep their types."""

from __future__ import annotations

import asyncio

import pytest

from pydra_pci import run_beside


async def fail() -> None:
    raise KeyError("work")


async def test_the_error_of_a_block_and_that_of_its_work_come_alone() -> None:
    with pytest.raises(ValueError, match="block"):
        async with run_beside({"work": asyncio.sleep(100)}):
            raise ValueError("block")
    with pytest.raises(KeyError, match="work"):
        async with run_beside({"work": fail()}):
            await asyncio.sleep(100)
