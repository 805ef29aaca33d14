"""The pages become a site: no link, anchor or page is lost, and a browser needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; links or headings that do not exist, and pages that no menu has, fail it."""
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(built)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return built


def test_the_site_has_the_pages_of_all_distributions(site: Path) -> None:
    assert {"index.html", "docs/tutorial.html", "plugins/pydra-nvidia/docs/mig.html"} <= {
        str(path.relative_to(site)) for path in site.rglob("*.html")
    }


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*""")
    assert [found for path in site.rglob("*.html") for found in loading.findall(path.read_text())] == []
    styles = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//[^)]*""")
    assert [found for path in site.rglob("*.css") for found in styles.findall(path.read_text())] == []
