"""A browser without a window, in which tests look at pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
INSTALLED = CHROMIUM.is_file() and DRIVER.is_file()
MISSING = f"there is no {CHROMIUM} with its driver"
PHONE, DESK = (390, 844, True), (1280, 900, False)
"""Width, height, and whether it is a phone."""
QUIET = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
    *("disable-background-networking", "disable-component-update"),
)


class Browser(webdriver.Chrome):
    """Chromium on a screen of any size."""

    def opened(self, page: Path, screen: tuple[int, int, bool], theme: str = "light") -> None:
        """Shows a page."""
        size = {**dict(zip(("width", "height", "mobile"), screen, strict=True)), "deviceScaleFactor": 1}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        self.get(page.as_uri())

    def told(self, script: str) -> Any:  # Any: what the script gives
        """Returns what a script gives."""
        return self.execute_script(script)


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Starts a browser that keeps its profile in a folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in (*QUIET, f"user-data-dir={folder}"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Browser(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()
