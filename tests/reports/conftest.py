"""Runs to report on, and a headless Chromium to look at reports with."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mixmo.runs.directory import Run

Copy = Callable[..., Path]


@pytest.fixture
def copy(runs: list[Run], tmp_path: Path) -> Copy:
    """Return a function that copies a small finished run into a folder of the test, without checksums."""

    def copy(name: str = "run", place: int = 0, without: tuple[str, ...] = ()) -> Path:
        path = tmp_path / name
        shutil.copytree(runs[place].path, path)
        for file in ("SHA256SUMS", *without):
            (path / file).unlink(missing_ok=True)
        return path

    return copy


@pytest.fixture(scope="session")
def results() -> Path:
    """The published runs: recipes, curves and scores, without weights and logits."""
    return Path(__file__).resolve().parents[2] / "results" / "cifar100-wrn28-4"


class Browser:
    """A headless Chromium that remembers what a page logged."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, theme: str = "light") -> None:
        mobile = width < 600
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.theme(theme)
        self.driver.get_log("browser")
        self.driver.get(url)

    def theme(self, theme: str, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: self.run(f"return {condition}"))

    def drawn(self) -> int:
        """Wait until all charts are drawn, and return how many there are."""
        self.wait("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn)")
        return int(self.run("return document.querySelectorAll('.chart svg').length"))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    selenium = pytest.importorskip("selenium.webdriver")
    paths = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    chromium, chromedriver = next(filter(None, paths), None), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no chromium with chromedriver here: apt-get install -y chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    os.environ.setdefault("SE_OFFLINE", "true")  # selenium looks for no driver elsewhere
    service = selenium.ChromeService(chromedriver)
    driver = selenium.Chrome(options=options, service=service)
    yield Browser(driver)
    driver.quit()
