"""What the templates know of a page: its file, where it can be opened and edited, and its other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx

from course import anywhere

LANGUAGES = {"en": "English", "ko": "한국어"}
"""The first one is that of the notebooks; each other has its folder of .po files in locale/."""
JUPYTERLAB = "http://localhost:8888"
BRANCH = "main"
PLACEHOLDER = "https://github.com/OWNER/NAME"
NOT_TRANSLATED = {"ko": "아직 번역되지 않았습니다. 아래는 영어 원문입니다."}
"""What a page says in a language into which nobody has translated it yet."""
ROOT = Path(__file__).parents[2]


def source(page: str) -> str:
    """The file of a page in the repository; "" for pages that have none, such as the search."""
    for name in (f"{page}.ipynb", f"docs/{page}.md", f"docs/{page}.ipynb"):
        if (ROOT / name).is_file():
            return name
    return ""


def notebook_addresses(file: str, repository: str) -> dict[str, str]:
    """Where a notebook can be opened, by the name on the button."""
    found = {"JupyterLab": f"{JUPYTERLAB}/lab/tree/{file}"}
    owner_and_name = repository.partition("github.com/")[2]
    if owner_and_name:
        # Colab and Kaggle open a notebook alone, so they get one with a cell in front that fetches the course.
        there = f"{owner_and_name}/blob/{anywhere.BRANCH}/{file}"
        found["Colab"] = f"https://colab.research.google.com/github/{there}"
        found["Kaggle"] = f"https://kaggle.com/kernels/welcome?src=https://github.com/{there}"
        found["Binder"] = f"https://mybinder.org/v2/gh/{owner_and_name}/{BRANCH}?urlpath=lab/tree/{file}"
    return found


def _tell(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    repository, file = app.config.book_repository, source(page)
    here = app.config.language or "en"
    to_root = context["pathto"]("", 1) + ("" if here == "en" else "../")
    context["book_open"] = notebook_addresses(file, repository) if file.endswith(".ipynb") else {}
    context["book_edit"] = f"{repository}/edit/{BRANCH}/{file}" if repository and file else ""
    context["book_repository"] = repository
    context["book_languages"] = [
        (code, name, f"{to_root}{'' if code == 'en' else code + '/'}{page}.html", code == here)
        for code, name in LANGUAGES.items()
    ]
    context["book_citation"] = app.config.book_citation
    if file and here != "en" and not Path(app.srcdir, "locale", here, "LC_MESSAGES", f"{page}.po").is_file():
        context["body"] = f'<p class="not-translated">{NOT_TRANSLATED[here]}</p><div lang="en">{context["body"]}</div>'


def _name(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages name the repository's address by a placeholder, as pyproject.toml does."""
    if app.config.book_repository:
        source[0] = source[0].replace(PLACEHOLDER, app.config.book_repository)


def _cite(app: Sphinx, config: Any) -> None:
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = ", ".join(one["name"] for one in said["authors"])
    config.book_citation = f"{authors}. {said['title']}. Version {said['version']}. {config.book_repository}".strip()


def setup(app: Sphinx) -> None:
    app.add_config_value("book_repository", "", "html")
    app.add_config_value("book_citation", "", "html")
    app.connect("config-inited", _cite)
    app.connect("source-read", _name)
    app.connect("html-page-context", _tell)
