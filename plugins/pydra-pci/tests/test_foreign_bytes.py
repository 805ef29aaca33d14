"""Whatever modules.alias and the kernel's list of regions hold, something is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_pci.functions import find_root, parse_regions
from pydra_pci.vfio_drivers import choose_driver, parse_aliases
from tests.fuzz.damage import damage

ALIASES = b"alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n"
MODALIAS = b"pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
REGIONS = b"0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n0x0 0x0 0x0\n"
LINK = b"../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"


@pytest.mark.fuzz
@given(st.tuples(damage(ALIASES), damage(MODALIAS), damage(REGIONS), damage(LINK)))
def test_whatever_the_kernel_writes_is_read(written: tuple[bytes, bytes, bytes, bytes]) -> None:
    aliases, modalias, regions, link = (one.decode(errors="replace") for one in written)
    assert choose_driver(modalias, parse_aliases(aliases))
    assert all(region.size > 0 for region in parse_regions(regions))
    find_root(link)
