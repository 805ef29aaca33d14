"""The pages become a site: no link, anchor, page or list is lost, and a browser needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

from tests.house.pages import PAGES, ROOT, read


def test_the_site_is_whole_reads_as_on_a_forge_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """One test, since the site is built once. Links to nothing and pages that the menu lacks fail the build."""
    build(tmp_path)
    assert list(find_differences(tmp_path)) == []
    assert list(find_loads(tmp_path)) == []


def build(site: Path) -> None:
    """Build the site as `make docs` does."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def find_differences(site: Path) -> Iterator[str]:
    """Where a forge sees a list, a table or code and mkdocs none: it wants them indented deeper, after empty lines."""
    forge = MarkdownIt("commonmark").enable("table")
    for page in PAGES:
        name = "index" if page.endswith("README.md") else Path(page).stem
        html = (site / Path(page).parent / f"{name}.html").read_text()
        article = html.partition("<article")[2].partition("</article>")[0]
        expected = forge.render(read(page))
        for tag in ("h2", "li", "pre", "tr"):
            found = len(re.findall(f"<{tag}[ >]", article))
            if found != expected.count(f"<{tag}>"):
                yield f"{page}: {found} {tag} instead of {expected.count(f'<{tag}>')}"


def find_loads(site: Path) -> Iterator[str]:
    """What a browser would fetch from another host."""
    loading = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*""")
    styles = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//[^)]*""")
    for pattern, form in ((loading, "*.html"), (styles, "*.css")):
        for path in site.rglob(form):
            yield from (f"{path.relative_to(site)}: {found}" for found in pattern.findall(path.read_text()))
