"""Chromium without a window, driven by Selenium."""

import shutil

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="not installed: python3-selenium")
from selenium.webdriver.chrome.service import Service  # noqa: E402


def chromium():
    """Starts a browser, in the network namespace of the calling thread; ends it when resumed. For `yield from` in fixtures."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("not installed: chromium, chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1300,1200"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


def emulate_scheme(browser, scheme: str):
    """Prefers `light` or `dark` pages from now on."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def lightness(browser) -> int:
    """Of the page's background: 0 (black) to 765 (white)."""
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(map(int, background[4:-1].split(", ")))


def inked(browser, figure: str) -> dict:
    """How many pixels of a plot are coloured (not grey), and how many are drawn at all."""
    return browser.execute_script(
        """
        const canvas = document.querySelector(`#${arguments[0]} canvas`);
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = {drawn: 0, coloured: 0};
        for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] === 0) continue;
            found.drawn += 1;
            const colours = data.slice(at, at + 3);
            if (Math.max(...colours) - Math.min(...colours) > 80) found.coloured += 1;
        }
        return found;
        """,
        figure,
    )
