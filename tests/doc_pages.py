# SPDX-License-Identifier: Apache-2.0
"""Checks the pages of the documentation in Chromium, at the width of a telephone and at that of a desktop.

    python -m tests.doc_pages [--images DIRECTORY] doc/build/html [PAGE...]

Prints what is wrong: elements that are cut off or outside of the window, boxes that scroll without a scroll bar, lists
that run together, pages that are listed twice. With --images, it also writes an image of each page at each width.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tests.installing import NotAvailable

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS: Final = (1300, 390)
HEIGHT: Final = 900
MAX_IMAGE_HEIGHT: Final = 16_000
GENERATED: Final = {"genindex", "search", "py-modindex"}
SCRIPT: Final = pathlib.Path(__file__).with_suffix(".js")


def chromium() -> str:
    """The path of the browser. Raises NotAvailable, which says how to install it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise NotAvailable("chromium is not installed (bindep.txt names the packages)")
    return found


def pages_of(html: pathlib.Path) -> list[str]:
    """The names of the pages, as in contributor/index, besides the generated index and the search."""
    names = (path.relative_to(html).with_suffix("").as_posix() for path in html.rglob("*.html"))
    return sorted(name for name in names if name not in GENERATED and not name.startswith("_static/"))


def check(html: pathlib.Path, names: Iterable[str], images: pathlib.Path | None = None) -> list[str]:
    """The problems of these pages: ``name (width): problem``. Raises NotAvailable.

    ``images``: a directory for an image of each page at each width.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NotAvailable("playwright is not installed (pip install cyborg_quota[test])") from error
    script, problems = SCRIPT.read_text(), []
    with sync_playwright() as playwright:
        # The sandbox does not work as root. Without the option that hides them, scroll bars are in the images.
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"], ignore_default_args=["--hide-scrollbars"]
        )
        # Offline, no other host is asked. (A route would send each request for a file through this process.)
        page = browser.new_page(offline=True)
        for name in names:
            page.goto((html / f"{name}.html").as_uri())
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": HEIGHT})
                problems += [f"{name} ({width} px): {problem}" for problem in page.evaluate(script)]
                if images is not None:
                    _write_image(page, images / f"{name.replace('/', '-')}-{width}.png")
        browser.close()
    return problems


def _write_image(page: Page, path: pathlib.Path) -> None:
    """Write the whole page. It is laid out again in a window of its height, which has no vertical scroll bar."""
    height = page.evaluate("document.documentElement.scrollHeight")
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": min(height, MAX_IMAGE_HEIGHT)})
    page.screenshot(path=str(path))
    page.set_viewport_size(size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=pathlib.Path, help="the directory for the images")
    parser.add_argument("html", type=pathlib.Path, help="the directory of the built pages")
    parser.add_argument("pages", nargs="*", help="only these pages, as in index or contributor/index")
    arguments = parser.parse_args()
    if arguments.images is not None:
        arguments.images.mkdir(parents=True, exist_ok=True)
    html = arguments.html.resolve()
    problems = check(html, arguments.pages or pages_of(html), arguments.images)
    for problem in problems:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
