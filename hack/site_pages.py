"""A hook of mkdocs: the site has the pages of the whole repository, each at its path, so that links hold in both.

Without it the site would have docs/ alone, and a page of a plugin would need a copy there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pydra

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "examples/*/*.md", "charts/**/*.md", "plugins/*/README.md", "plugins/*/docs/*.md")


def find_pages() -> list[Path]:
    """The pages of the repository, sorted."""
    return sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the header of each page."""
    config.site_name = f"pydra {pydra.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the pages and what they link to in the place of what mkdocs found in docs/; the theme's files stay."""
    from mkdocs.structure.files import File, Files  # noqa: PLC0415 - tests read the list of pages without mkdocs

    theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = find_pages()
    linked = {target for page in pages for target in find_files(page)} - set(pages)
    ours = [
        File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls)
        for path in (*pages, *sorted(linked), *sorted(ROOT.glob("docs/*.js")))
    ]
    return Files([*theme, *ours])


def find_files(page: Path) -> Iterator[Path]:
    """The pictures and sources that a page links to. What does not exist, mkdocs reports."""
    for target in re.findall(r"\]\(([^)#:]+)", page.read_text()):
        path = (page.parent / unquote(target)).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path
