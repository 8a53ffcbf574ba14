"""The page in a real browser: it shows the figures, asks the network for nothing and has no error to report."""

import shutil

import pytest

from latemask import compare
from tests.reporting.conftest import CONTROL, write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(runs, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("page")
    scores = {run: {"sst2": [0.7, 0.8]} for run in (*runs.all, CONTROL)}
    results = write_results(tmp_path / "results.json", scores)
    odd = shutil.copytree(runs.late, tmp_path / "a-very-long-name-of-a-run-<b>that&nbsp;breaks</b>-" / ("x" * 60))
    return compare([*runs.all, odd], glue=[results], out=tmp_path / "out")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_opens_and_shows_everything(browser, page_file, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.resolve().as_uri())
    assert wrong == []
    assert asked == [page_file.resolve().as_uri()]
    figures = page.locator("figure svg")
    assert figures.count() == 8
    for number in range(figures.count()):
        box = figures.nth(number).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 80
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nobody scrolls sideways
    assert page.locator("#verdict").inner_text()
    page.close()


def test_the_figures_take_the_colours_of_the_scheme(browser, page_file):
    found = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(page_file.resolve().as_uri())
        found.append(
            page.evaluate(
                """() => {
                    const style = (selector) => getComputedStyle(document.querySelector(selector));
                    const line = style('#figure-loss-steps path[style*="series-0"]');
                    return [style('body').backgroundColor, style('figure svg text').fill, line.stroke];
                }"""
            )
        )
        page.close()
    light, dark = found
    assert all(one != other for one, other in zip(light, dark, strict=True))
