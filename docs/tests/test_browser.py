"""The built site in a browser: nothing is missing, too wide or loaded from elsewhere.

`make docs` builds the site into site/ first. Screenshots go to the folder of the run.
"""

import contextlib
import functools
import http.server
import json
import os
import pathlib
import shutil
import threading
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = pathlib.Path(os.environ.get("GRADXFORM_SITE", ROOT / "site"))
PAGES = {
    "home": "",
    "gallery": "gallery/",
    "adamw": "optimizers/adamw/",
    "shampoo": "optimizers/shampoo/",
    "sgd": "optimizers/sgd/",
    "race": "race/",
    "first_training": "guides/first_training/",
    "schedules": "guides/schedules/",
}
WITH_MATH = ("adamw", "shampoo", "sgd")
WIDTHS = (1440, 390)

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one server


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    if not (SITE / "index.html").is_file():
        pytest.skip(f"the site is not built in {SITE}: run `make docs` first")
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("selenium", reason="selenium is not installed; the extra `docs` has it")
    from selenium import webdriver

    chrome = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chrome and driver):
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chrome
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    found.set_page_load_timeout(60)
    yield found
    found.quit()


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    return tmp_path_factory.mktemp("screenshots")


def wait(browser, script, *arguments, seconds=20):
    """Wait until a script returns something true, and return it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds).until(lambda b: b.execute_script(script, *arguments))


def open_page(browser, url, width, scheme="light"):
    """Open a page in a window of some width, with all its pictures loaded."""
    browser.get("about:blank")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get_log("browser"), browser.get_log("performance")
    # The choice between light and dark of an earlier page is forgotten, by the new page itself:
    # what the earlier page still writes may arrive after a command that clears the storage.
    forget = {"source": "localStorage.clear()"}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", forget)
    browser.get(url)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    browser.execute_script("document.querySelectorAll('img').forEach(i => { i.loading = 'eager' })")
    wait(browser, "return [...document.images].every(i => i.complete)")


def requests(browser):
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page(browser, address, shots, name, width, scheme):
    open_page(browser, address + PAGES[name], width, scheme)
    errors = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert errors == []
    hosts = {urllib.parse.urlsplit(url).netloc for url in requests(browser)}
    assert hosts - {""} == {urllib.parse.urlsplit(address).netloc}
    missing = "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
    assert browser.execute_script(missing) == []
    wide = browser.execute_script(
        "const most = document.documentElement.clientWidth;"
        "return [document.documentElement.scrollWidth, most]"
    )
    assert wide[0] <= wide[1] <= width
    wait(
        browser,
        "return document.body.getAttribute('data-md-color-scheme') === arguments[0]",
        {"light": "default", "dark": "slate"}[scheme],
    )
    if name in WITH_MATH:
        heights = browser.execute_script(
            "return [...document.querySelectorAll('.gx-tex')]"
            ".map(e => e.querySelector('.katex-html').getBoundingClientRect().height)"
        )
        assert heights and min(heights) > 5
        assert browser.execute_script(
            "return document.fonts.check('16px KaTeX_Math')"
            " && !document.querySelector('.katex-error')"
        )
    with contextlib.suppress(KeyError):
        metrics = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})
        height = min(metrics["cssContentSize"]["height"], 4000)
        size = {"width": width, "height": int(height), "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.save_screenshot(str(shots / f"{name}-{width}-{scheme}.png"))


# A name on two lines, a table beside the page, or a page that scrolls sideways.
FAULTS = """
const wide = document.documentElement.clientWidth;
const names = [...document.querySelectorAll('table code')].filter(
  c => /^[\\w.]+$/.test(c.textContent) && c.getClientRects().length > 1);
const beside = [...document.querySelectorAll('.md-typeset table')].filter(
  t => t.getBoundingClientRect().right > wide && !t.closest('.md-typeset__scrollwrap'));
const moves = document.documentElement.scrollWidth > wide ? ['the page scrolls sideways'] : [];
return [...names.map(c => c.textContent), ...beside.map(t => t.outerHTML.slice(0, 80)), ...moves];
"""


def test_names_in_tables_stay_whole_and_wide_tables_scroll(browser, address):
    # All pages that somebody wrote, and some of those that are generated alike.
    alike = [
        p
        for n in ("optimizers", "wrappers", "reference")
        for p in sorted(SITE.glob(f"{n}/*/*.html"))
    ]
    pages = [path for path in sorted(SITE.rglob("*.html")) if path not in alike] + alike[::8]
    pages = [path for path in pages if "<table" in path.read_text("utf-8")]
    assert len(pages) > 50
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*.svg"]})  # only the text counts
    faults = {}
    for path in pages:
        browser.get(address + str(path.relative_to(SITE)))
        for width in WIDTHS:
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            if found := browser.execute_script(FAULTS):
                faults[f"{path.relative_to(SITE)} at {width}"] = found
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    assert faults == {}


def shown_cards(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('.gx-card')].filter(c => !c.hidden)"
        ".map(c => c.dataset.name)"
    )


def choose(browser, name, value):
    browser.execute_script(
        "const field = document.querySelector('.gx-filters').elements[arguments[0]];"
        "field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}));",
        name,
        value,
    )


@pytest.mark.parametrize(
    "filters, there, gone",
    [
        ({"kind": "wrappers"}, {"lookahead", "chain"}, {"adam"}),
        ({"slots": "0", "kind": "optimizers"}, {"sgd", "sign_sgd"}, {"adam", "lion"}),
        ({"slots": "1"}, {"lion", "signum"}, {"sgd", "adam"}),
        ({"slots": "2"}, {"adam", "adamw"}, {"sgd", "lion", "adafactor"}),
        ({"slots": "factored"}, {"adafactor", "sm3"}, {"adam"}),
        ({"looks": "row"}, {"rowwise_adagrad"}, {"adam", "lars"}),
        ({"looks": "tree"}, {"prodigy", "momo"}, {"adam"}),
        ({"needs": "loss value"}, {"momo", "polyak_sgd"}, {"adam"}),
        ({"needs": "loss function"}, {"sophia"}, {"adam", "momo"}),
        ({"needs": "parameters"}, {"adamw", "lars"}, {"adam"}),
        ({"family": "signs"}, {"lion", "rprop"}, {"adam"}),
        ({"text": "AdamW"}, {"adamw", "nadamw"}, {"adam"}),
    ],
)
def test_the_filters_of_the_gallery(browser, address, filters, there, gone):
    open_page(browser, address + "gallery/", 1280)
    everything = shown_cards(browser)
    assert len(everything) >= 100
    for name, value in filters.items():
        choose(browser, name, value)
    shown = set(shown_cards(browser))
    assert there <= shown and not gone & shown
    count = browser.execute_script(
        "return document.querySelector('.gx-filters output').textContent"
    )
    assert count == f"{len(shown)} of {len(everything)}"
    # The address keeps the filters.
    browser.get(browser.current_url)
    assert set(shown_cards(browser)) == shown


def test_a_table_is_sorted_by_a_column(browser, address):
    open_page(browser, address + "race/", 1280)

    def sorted_by(column):
        browser.execute_script(
            "document.querySelectorAll('.gx-sorted table')[0]"
            ".tHead.rows[0].cells[arguments[0]].querySelector('button').click()",
            column,
        )
        return browser.execute_script(
            "return [...document.querySelectorAll('.gx-sorted table')[0].tBodies[0].rows]"
            ".map(row => row.cells[arguments[0]].textContent)",
            column,
        )

    names = sorted_by(0)
    assert names == sorted(names) and len(names) > 3
    assert sorted_by(0) == names[::-1]
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.gx-sorted table')[0].tHead.rows[0].cells]"
        ".map(cell => cell.textContent.trim())"
    )
    for title in ("score", "bytes"):  # which have commas
        numbers = [float(text.replace(",", "")) for text in sorted_by(titles.index(title))]
        assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize(
    "words, path",
    [
        ("adamw", "optimizers/adamw/"),
        ("migrate_state", "reference/migration/"),
        ("RowSparse", "sparse/"),
        ("PyTorch", "guides/from_pytorch/"),
    ],
)
def test_the_search(browser, address, words, path):
    open_page(browser, address, 1280)
    box = browser.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys(words)
    links = wait(
        browser,
        "const found = [...document.querySelectorAll('.md-search-result__link')].map(a => a.href);"
        "return found.some(a => a.includes(arguments[0])) && found",
        path,
    )
    assert any(path in link for link in links[:10])
