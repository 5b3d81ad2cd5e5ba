"""Opens pages in the Chromium of the system, without a window, or says how to get one."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
HOW = "there is no Chromium to open pages with; on Debian: apt-get install chromium"


@contextmanager
def chromium():
    """A browser; skips the test where there is none."""
    if FOUND is None:
        pytest.skip(HOW)
    from playwright.sync_api import sync_playwright

    # Chromium refuses to run in its sandbox as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=FOUND, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, path, *, width=1280, height=900, scheme="light"):
    """A page with all its charts drawn; it must not ask for anything, nor complain."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined", timeout=60_000)
    try:
        yield page
        assert complaints == []
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    finally:
        context.close()
