"""A headless Chromium for tests: what it logged, what it asked for, and where the cells of the map are."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def need_chromium() -> str:
    """Where it is; without it a test is skipped, except in continuous integration, which must have it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and not os.environ.get("CI"):
        pytest.skip("needs Chromium")
    assert found, "no Chromium here"
    return found


@contextmanager
def chromium(profile: Path) -> Iterator["Browser"]:
    """A browser with a fresh profile; closed at the end."""
    binary = need_chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """One window, and the few things that tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.page = ""

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens a file at a size, in a theme; forgets what was logged before."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command(
            "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
        )
        self.driver.get("about:blank")
        self.complaints()
        self.requests()
        self.page = file.resolve().as_uri()
        self.driver.get(self.page)

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """As it is shown; nothing for what is hidden."""
        script = (
            "const found = document.querySelector(arguments[0]); return found?.checkVisibility() ? found.innerText : ''"
        )
        return str(self.run(script, selector))

    def complaints(self) -> list[str]:
        """Errors, warnings and violations of the policy since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """What was asked for since the last time, but the page itself and what it brought along."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        found = [part["params"]["request"]["url"] for part in messages if part["method"] == "Network.requestWillBeSent"]
        return [url for url in found if url != self.page and not url.startswith("data:")]

    def cell(self, column: int, row: int) -> tuple[float, float]:
        """The middle of a cell of the map in the window, which is scrolled to it."""
        return tuple(
            self.run(
                """
                const plot = document.getElementById("map-plot");
                plot.scrollIntoView({ block: "center" });
                const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
                const [column, row] = [xaxis.d2p(arguments[0]), yaxis.d2p(arguments[1])];
                return [box.x + xaxis._offset + column, box.y + yaxis._offset + row];
                """,
                column,
                row,
            )
        )

    def point(self, column: int, row: int, *, click: bool = False) -> None:
        """Moves the pointer to a cell of the map, and clicks."""
        x, y = self.cell(column, row)
        for step in (3, 0):  # a pointer arrives, it does not appear
            self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def until(self, script: str, *arguments: Any) -> Any:
        """What the script returns, once that is something."""
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, 20).until(lambda _: self.run(script, *arguments))
