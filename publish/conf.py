"""Sphinx's configuration of the web book. Pages: the stored notebooks, docs/*.md, docstrings (see build.py)."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

_about = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The one setting on which every address rests: where the course is on GitHub ("" leaves such buttons out).
book_repository = os.environ.get("BOOK_REPOSITORY", "").rstrip("/")

project = "Many GPUs"
html_title = "Many GPUs: a course you run"
version = release = _about["version"]
author = "The multi-gpu-course authors"
project_copyright = f"{author}, {_about['license']} licence"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "extension"]
root_doc = "index"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["README.md", "CONTRIBUTING.md"]  # pages include parts of them
templates_path = [str(HERE / "templates")]
html_static_path = [str(HERE / "static")]
locale_dirs = ["locale"]
gettext_compact = False
gettext_uuid = False
gettext_location = False
smartquotes = False

# Notebooks are shown as they are stored.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_render_error_lexer = "none"
nb_mime_priority_overrides = [("html", "text/html", 0), ("gettext", "text/html", 0)]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
# (A notebook's own levels are kept: labs go from a title to "### Exercise".)
suppress_warnings = ["myst.header"]


autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
copybutton_selector = "div.cell_input div.highlight pre, div.copy div.highlight pre"

html_theme = "pydata_sphinx_theme"
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_favicon = str(HERE / "static" / "favicon.svg")
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for files on a disk
html_domain_indices = False
html_use_index = False
html_sidebars = {"**": ["contents.html"]}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": project},
    "navbar_center": [],
    "navbar_end": ["languages", "theme-switcher"],
    "navbar_persistent": ["search-button-field"],
    "article_header_start": [],
    "article_header_end": ["open-in"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["cite"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

epub_show_urls = "no"
epub_basename = "many-gpus"
