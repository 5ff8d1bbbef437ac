"""The web book: it builds without a warning, and a reader with any screen, any theme or a keyboard alone can use it.

Pictures of pages go into the folder that the environment variable SCREENSHOTS names: look at them now and then.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from course import outline

pytest.importorskip("myst_nb", reason="the book's tests need what `make book` installs")
pytest.importorskip("axe_playwright_python", reason="the book's tests need what `make book` installs")

import axe_playwright_python
from browser_support import find_browser, start_browser
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

pytestmark = pytest.mark.extras

ROOT = outline.ROOT

REPOSITORY = "https://github.com/someone/course"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
SERIOUS = ("serious", "critical")
# Code and rows of tables are thousands of pieces that look the same everywhere.
WITHOUT_CODE = {"exclude": [["div.highlight pre"], ["tbody"]]}
OWN_COLOURS = ".cell_output .text_html table"
LECTURES = {one.slug: one.name for one in outline.lectures()}
SHOWN = ("index", f"notebooks/{LECTURES[outline.FIRST]}", f"labs/{LECTURES['model_parallelism']}", "ranks", "published")


def _build(what: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "publish" / "book.py", what, "--out", out, *options]
    environment = os.environ | {"BOOK_REPOSITORY": REPOSITORY}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the book was built."""
    out = tmp_path_factory.mktemp("book")
    done = _build("html", out)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    return out / "html"


@pytest.fixture(scope="module")
def address(book: Path) -> Iterator[str]:
    """The book on a loopback port."""
    handler = functools.partial(_Quiet, directory=str(book))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if (executable := find_browser()) is None:
        pytest.skip("no Chromium or Chrome is installed here, so the book was not opened in a browser")
    with sync_playwright() as playwright:
        running = start_browser(playwright, executable)
        yield running
        running.close()


@pytest.fixture
def reader(browser: Any, address: str) -> Iterator[tuple[Page, list[str]]]:
    """A page, and what went wrong in it: errors of scripts, warnings, requests that leave this machine."""
    context: BrowserContext = browser.new_context(viewport=WIDE, permissions=["clipboard-read", "clipboard-write"])
    page, problems = context.new_page(), []
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda one: problems.append(one.url) if not one.url.startswith((address, "data:", "file:")) else None
    )
    yield page, problems
    context.close()


def _pages(book: Path, language: str = "") -> list[str]:
    folder = book / language
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(name for name in found if not name.startswith(("_static/", "ko/")))


def _barriers(page: Page, where: dict[str, Any], rules: list[str] | None = None) -> list[str]:
    """What axe-core calls serious or critical."""
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": rules} if rules else {})}
    found = page.evaluate(
        "async ([where, options]) => (await axe.run(where, options)).violations"
        ".map(v => [v.impact, v.id + ': ' + v.nodes[0].html.slice(0, 200)])",
        [where, options],
    )
    return [text for impact, text in found if impact in SERIOUS]


def _open(page: Page, address: str, size: dict[str, int] = WIDE, theme: str = "light") -> None:
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=theme)
    page.goto(address)
    page.add_style_tag(content="* { transition: none !important; animation: none !important; }")  # colours as they stay
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.evaluate(AXE)


def test_every_lecture_and_lab_is_a_page_and_solutions_are_not(book: Path) -> None:
    pages = _pages(book)
    for lecture in outline.lectures():
        assert f"notebooks/{lecture.name}.html" in pages
        assert (f"labs/{lecture.name}.html" in pages) == lecture.lab
    assert not [name for name in pages if name.startswith("solutions/")]


def test_no_text_is_left_as_markup(book: Path) -> None:
    """Folds are closed, tables are tables, emphasis is emphasis, and stored pictures have their words."""
    for name in [*_pages(book), *(f"ko/{name}" for name in _pages(book, "ko"))]:
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", (book / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert text.count("<details") == text.count("</details>") and "&lt;details" not in text, name
        assert not re.search(r"<p>\|.*\|---", text), name
        assert not re.search(r"\*\*[^*<>]+\*\*", text), name
        assert [image for image in re.findall(r"<img[^>]*>", text) if not re.search(r'alt="[^"]', image)] == [], name


def test_cells_on_ranks_are_coloured_as_python(book: Path) -> None:
    text = (book / f"notebooks/{LECTURES['checkpointing']}.html").read_text(encoding="utf-8")
    cells = re.findall(r"%%ranks\b.*?</pre>", text, flags=re.DOTALL)
    assert len(cells) > 5 and [cell for cell in cells if '<span class="n' not in cell] == []


@pytest.mark.parametrize("which", ["lectures", pytest.param("others", marks=pytest.mark.nightly)])
def test_every_page_has_no_barriers_and_fits_on_a_phone(which: str, book: Path, address: str, reader: Any) -> None:
    """On a wide screen what differs there is looked at on one page of each kind."""
    page, problems = reader
    barriers: dict[str, list[str]] = {}
    first = {name for name in _pages(book) if name.startswith("notebooks/") or name.removesuffix(".html") in SHOWN}
    for name in sorted(first if which == "lectures" else {*_pages(book)} - first):
        found = []
        if name.removesuffix(".html") in SHOWN:
            _open(page, address + name)
            found += _barriers(page, WITHOUT_CODE)
        _open(page, address + name, PHONE, "dark")
        found += _barriers(page, WITHOUT_CODE)
        if page.locator(OWN_COLOURS).count():
            found += _barriers(page, {"include": [[OWN_COLOURS]]}, ["color-contrast"])
        if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE["width"]:
            found.append(f"on a phone it is {width} pixels wide")
        if found:
            barriers[name] = found
    assert barriers == {}
    assert problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told(address: str, reader: Any, theme: str) -> None:
    """Of code and tracebacks too, on one page of each kind: they come from one style sheet."""
    page, _ = reader
    for name in SHOWN:
        _open(page, f"{address}{name}.html", WIDE, theme)
        assert _barriers(page, {"exclude": [["table"]]}, ["color-contrast"]) == [], name


def test_what_is_copied_is_the_code_without_what_it_shows(address: str, reader: Any) -> None:
    page, _ = reader
    page.goto(address + "notebooks/00_start_here.html")
    cell = page.locator("div.cell", has_text="I am rank {rank}").first
    expect(cell.locator("button.copybtn")).to_have_count(1)
    cell.locator(".cell_input").hover()
    cell.locator("button.copybtn").click()
    expect(cell.locator("button.copybtn.success")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == '%%ranks -n 4\nprint(f"I am rank {rank} of {world_size}.")'


def test_answers_and_sliders_work_with_the_keyboard_and_without_a_kernel(address: str, reader: Any) -> None:
    page, problems = reader
    page.goto(address + "notebooks/00_start_here.html")
    fold = page.locator("details.fold").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(fold.locator("p").first).to_be_visible()
    figure = page.locator(".picture-series").first
    expect(figure.locator("img:visible")).to_have_count(1)
    before = figure.locator("img:visible").get_attribute("alt")
    figure.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    expect(figure.locator("img:visible")).to_have_count(1)
    after = figure.locator("img:visible").get_attribute("alt")
    assert before.startswith("The same start") and before != after
    assert problems == []


@pytest.mark.parametrize(
    "slug", ["model_parallelism", "data_parallel_internals", "parameter_server_and_all_reduce", "ddp_and_bucketing"]
)
def test_figures_in_steps_are_played_from_the_first_picture_to_the_last(slug: str, address: str, reader: Any) -> None:
    page, problems = reader
    page.goto(f"{address}notebooks/{LECTURES[slug]}.html")
    figures = page.locator(".picture-series").all()
    assert figures, "the lecture has no figure with a slider"
    for figure in figures:
        slider = figure.locator("input[type=range]").last
        slider.focus()
        page.keyboard.press("Home")
        positions, seen = int(slider.get_attribute("max")) + 1, set()
        for _ in range(positions):
            shown = figure.locator("img:visible")
            expect(shown).to_have_count(1)
            seen.add(shown.get_attribute("src"))
            page.keyboard.press("ArrowRight")
        assert len(seen) == positions
    assert problems == []


def test_the_search_works_from_a_disk(book: Path, reader: Any) -> None:
    page, problems = reader
    page.goto((book / "search.html").as_uri() + "?q=bucket")
    expect(page.locator("#search-results li a").first).to_be_visible()
    assert page.locator("#search-results").get_by_text("DDP and bucketing").count() > 0
    assert problems == []


def test_addresses_come_from_one_setting(book: Path) -> None:
    name = LECTURES["model_parallelism"]
    text = (book / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    for wanted in (
        f"http://localhost:8888/lab/tree/notebooks/{name}.ipynb",
        f"https://mybinder.org/v2/gh/someone/course/main?urlpath=lab/tree/notebooks/{name}.ipynb",
        f"https://colab.research.google.com/github/someone/course/blob/anywhere/notebooks/{name}.ipynb",
        f"https://kaggle.com/kernels/welcome?src={REPOSITORY}/blob/anywhere/notebooks/{name}.ipynb",
        f"{REPOSITORY}/edit/main/notebooks/{name}.ipynb",
    ):
        assert f'href="{wanted}"' in text
    page = re.sub(r"<[^>]+>", "", (book / "anywhere.html").read_text(encoding="utf-8"))
    assert f"git clone -q --depth 1 {REPOSITORY} many-gpus" in page and "OWNER" not in page
    assert f"git clone {REPOSITORY}" in re.sub(r"<[^>]+>", "", (book / "index.html").read_text(encoding="utf-8"))
    assert 'rel="next"' in text and 'rel="prev"' in text and REPOSITORY in text.split('class="cite"')[1]


@pytest.mark.parametrize("language", ["", "ko/"])
def test_a_card_of_the_map_leads_to_its_lecture(address: str, reader: Any, language: str) -> None:
    page, problems = reader
    page.goto(f"{address}{language}index.html")
    expect(page.locator(".course-map a")).to_have_count(len(LECTURES))
    page.locator(".course-map a").nth(1).click()
    expect(page).to_have_url(f"{address}{language}notebooks/{list(LECTURES.values())[1]}.html")
    assert problems == []


def test_pages_in_another_language_say_so(book: Path, address: str, reader: Any) -> None:
    page, problems = reader
    page.goto(address + "notebooks/00_start_here.html")
    page.locator(".languages a:visible").click()
    expect(page.locator("h1")).to_contain_text("여기서 시작")
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.locator("details.fold summary").first.inner_text() == "답"
    page.locator(".languages a:visible").click()
    expect(page.locator("h1")).to_contain_text("Start here")
    page.goto(address + "ko/glossary.html")
    assert page.locator("article > [lang]").get_attribute("lang") == "en", "what is not translated is English"
    expect(page.locator("article .not-translated")).to_contain_text("아직 번역되지 않았습니다")
    page.goto(address + "ko/notebooks/00_start_here.html")
    expect(page.locator("article .not-translated")).to_have_count(0)
    assert "On this page" not in page.content()
    assert problems == []


def test_translations_are_those_of_the_texts_as_they_are(tmp_path: Path) -> None:
    """`make book-strings` shows a translator what changed."""
    done = _build("strings", tmp_path, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_texts_that_changed_after_they_were_translated_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "publish"))
    import catalogues

    def write(path: Path, **texts: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('msgid ""\nmsgstr ""\n\n' + "".join(f'msgid "{a}"\nmsgstr "{b}"\n\n' for a, b in texts.items()))

    monkeypatch.setattr(catalogues, "STORED", tmp_path / "locale")
    stored, strings = tmp_path / "locale/ko/notebooks" / f"{outline.FIRST}.po", tmp_path / "strings"
    write(stored, same="같은", the_old_words_of_a_text="옛말")
    page = f"notebooks/{LECTURES[outline.FIRST]}"
    write(strings / f"{page}.pot", same="", the_new_words_of_a_text="")
    before = catalogues.stale(strings)
    assert [one.split(": ")[1:] for one in before] == [
        ["not translated", "the_new_words_of_a_text"],
        ["no longer there", "the_old_words_of_a_text"],
    ]
    assert catalogues.update(strings) == [f"ko {page}: was changed: the_new_words_of_a_text"]
    write(stored, same="같은", the_new_words_of_a_text="새말")
    assert catalogues.update(strings) == []
    assert catalogues.places(tmp_path / "there") == {tmp_path / f"there/ko/LC_MESSAGES/{page}.po": stored}
