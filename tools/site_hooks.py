"""What MkDocs does to the pages of docs/, so that the same files read well on a code host.

A link that leaves docs/ (`../benchmarks/…`, `../tests/…`) becomes a page of the site: Markdown as
it is, code as a listing. The mark `<!-- needs: gpu -->` before a command becomes a visible line.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
NEEDS = re.compile(r"^<!-- needs: ([^>]+?) -->$", flags=re.MULTILINE)
FRONT_PAGE = {"README.md": "readme.md"}
"""MkDocs would take a README for an index page, and docs/ has one."""
COPIED = {".json", ".png", ".svg"}
"""Files that the site holds as they are."""
LISTING = "---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n````{language}\n{text}\n````\n"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what these pages link to in turn."""
    root = _root(config)
    pages = [Path(str(page.abs_src_path)) for page in files.documentation_pages()]
    in_nav = str(config.nav)
    while pages:
        for path in _linked(pages.pop(), root):
            uri = _uri(path, root)
            if files.get_file_from_path(uri) is not None:
                continue
            file = _file(path, root, config)
            if file.src_uri not in in_nav:
                file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
            if path.suffix == ".md":
                pages.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has the file, and show the marks of commands."""
    root = _root(config)
    here = _source(page.file, root).parent

    def moved(link: re.Match[str]) -> str:
        path = (here / link[0]).resolve()
        if "://" in link[0] or not path.is_file() or not path.is_relative_to(root):
            return link[0]
        return os.path.relpath(_uri(path, root), Path(page.file.src_uri).parent)

    return NEEDS.sub(_shown, LINK.sub(moved, markdown))


def _shown(mark: re.Match[str]) -> str:
    needs = " and ".join(mark[1].split(", "))
    return f'<p class="needs">No test runs this: it needs {needs}.</p>'


def _root(config: MkDocsConfig) -> Path:
    """The repository."""
    return Path(str(config.config_file_path)).parent


def _source(file: File, root: Path) -> Path:
    """Where a page lies in the repository."""
    if file.abs_src_path is not None:
        return Path(file.abs_src_path)
    return root / file.src_uri.removesuffix(".md")


def _uri(path: Path, root: Path) -> str:
    """The name of a file of the repository among those of the site."""
    docs = root / "docs"
    if path.is_relative_to(docs):
        return path.relative_to(docs).as_posix()
    name = path.relative_to(root).as_posix()
    name = FRONT_PAGE.get(name, name)
    return name if path.suffix in COPIED | {".md"} else f"{name}.md"


def _file(path: Path, root: Path, config: MkDocsConfig) -> File:
    uri = _uri(path, root)
    if path.suffix in COPIED | {".md"}:
        return File.generated(config, uri, abs_src_path=str(path))
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8").rstrip()
    language = LANGUAGES.get(path.suffix, "text")
    content = LISTING.format(name=name, language=language, text=text)
    return File.generated(config, uri, content=content)


def _linked(page: Path, root: Path) -> Iterator[Path]:
    """The files of the repository outside docs/ that a page links to."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / link).resolve()
        if path.is_file() and path.is_relative_to(root) and not path.is_relative_to(root / "docs"):
            yield path
