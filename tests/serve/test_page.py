"""The page in a real browser: Debian's chromium with chromedriver (apt-get install chromium chromium-driver)."""

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

import mixmo
from mixmo.data.decode import decode, to_square
from mixmo.models.network import Ensemble
from mixmo.serve.app import HERE
from mixmo.serve.backends import Backend, OnnxBackend
from mixmo.serve.mixing import Mixing, mix

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium here; apt-get install chromium chromium-driver"
)
TOKEN = "0123456789-secret-token"
DESKTOP, PHONE = (1200, 900), (390, 844)
Draw = Callable[..., bytes]


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


class Page:
    """The open page, and what tests ask of it."""

    def __init__(self, driver: WebDriver, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get(self.url)
        self.js("localStorage.clear(); sessionStorage.clear()")
        self.driver.get(self.url)
        self.until("return document.querySelectorAll('#members .card').length > 0")
        self.driver.get_log("browser")

    def js(self, code: str, *values: object) -> Any:
        return self.driver.execute_script(code, *values)

    def until(self, code: str, *values: object) -> Any:
        return WebDriverWait(self.driver, 10, 0.02).until(lambda _: self.js(code, *values))

    def by_id(self, name: str) -> Any:
        return self.driver.find_element(By.ID, name)

    def text(self, name: str) -> str:
        return str(self.js("return document.getElementById(arguments[0]).textContent", name))

    def upload(self, path: Path, into: str = "file") -> None:
        """Choose a file and wait for what it changes."""
        before = self.js(
            "return document.getElementById('seen-image').src + document.getElementById('error').textContent"
        )
        self.by_id(into).send_keys(str(path))
        self.until(
            "return document.getElementById('seen-image').src + document.getElementById('error').textContent "
            "!== arguments[0] && !document.querySelector('.busy')",
            before,
        )

    def cards(self, where: str) -> list[dict[str, float]]:
        """The probabilities of each card, by label, in full precision."""
        rows = self.js(
            "return [...document.querySelectorAll(arguments[0] + ' .card')].map(card => "
            "[...card.querySelectorAll('li')].map(row => [row.dataset.label, Number(row.dataset.value)]))",
            where,
        )
        return [dict(card) for card in rows]

    def open_mixing(self) -> None:
        self.by_id("tab-mix").click()
        self.until("return document.querySelectorAll('.heads .card').length === 2")
        self.settled()

    def settled(self) -> None:
        """Wait until the last change of the mixture is shown."""
        self.until("return document.getElementById('mixable').getAttribute('aria-busy') === 'false'")

    def severe(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]


@pytest.fixture
def page(browser: WebDriver, client: httpx.Client) -> Iterator[Page]:
    page = Page(browser, f"{client.base_url}")
    page.open()
    yield page
    assert page.severe() == []


def file(folder: Path, content: bytes, name: str = "image.png") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def near(probs: Any, names: tuple[str, ...], top: int = 5) -> Any:
    best = sorted(zip(probs.tolist(), names, strict=True), reverse=True)[:top]
    return pytest.approx({name: probability for probability, name in best}, abs=1e-5)


def test_an_uploaded_image_shows_the_numbers_of_predict(
    page: Page, net: Ensemble, draw_file: Draw, tmp_path: Path
) -> None:
    for seed in range(3):
        content = draw_file(seed, size=(70, 50))
        page.upload(file(tmp_path, content, f"{seed}.png"))
        prediction = mixmo.predict(net, to_square(Image.open(io.BytesIO(content)), 32)[None])
        names = net.about.classes
        assert page.js("return document.getElementById('label').dataset.label") == names[prediction.labels[0]]
        for name, value in (
            ("probability", prediction.confidence),
            ("calibrated", prediction.calibrated.amax(1)),
        ):
            shown = page.js("return Number(document.getElementById(arguments[0]).dataset.value)", name)
            assert shown == pytest.approx(value.item(), abs=1e-5)
        for name in ("information", "entropy"):
            value = prediction.mutual_information if name == "information" else prediction.entropy
            shown = page.js(
                "return Number(document.querySelector(`#${arguments[0]} [data-value]`).dataset.value)", name
            )
            assert shown == pytest.approx(value.item(), abs=1e-5)
        expected = [near(prediction.probs[0], names), *(near(member, names) for member in prediction.members[:, 0])]
        assert page.cards("#members") == expected
        inside = page.js("return [...document.querySelectorAll('#set li[data-label]')].map(item => item.dataset.label)")
        assert sorted(inside) == sorted(name for name, kept in zip(names, prediction.sets[0], strict=True) if kept)
        assert page.text("decision").startswith("Abstains" if prediction.abstain[0] else "Predicts")
        agree = prediction.disagreement[0] == 0
        assert page.text("agreement").startswith("Yes" if agree else "No")


def test_class_names_are_text_and_never_html(page: Page, net: Ensemble) -> None:
    """The largest probabilities of five of seven classes: names that inject are among them in one of the samples."""
    shown = set()
    for sample in page.driver.find_elements(By.CSS_SELECTOR, "#samples button"):
        before = page.js("return document.getElementById('seen-image').src")
        if sample.get_attribute("aria-pressed") == "false":
            sample.click()
            page.until("return document.getElementById('seen-image').src !== arguments[0]", before)
        shown |= {label for card in page.cards("#members") for label in card}
    assert "<img src=x onerror=alert(1)>" in shown
    assert page.js("return document.querySelectorAll('img[src=\"x\"]').length") == 0


def test_a_sample_is_predicted_by_the_keyboard_alone(page: Page, net: Ensemble) -> None:
    sample = page.driver.find_element(By.CSS_SELECTOR, "[data-sample=rocket]")
    page.js("arguments[0].focus()", sample)
    sample.send_keys(Keys.ENTER)
    page.until("return arguments[0].getAttribute('aria-pressed') === 'true'", sample)
    prediction = mixmo.predict(net, decode(str(HERE / "samples" / "rocket.jpg"), 32)[None])
    assert page.cards("#members")[0] == near(prediction.probs[0], net.about.classes)


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_an_image_that_is_dropped_or_pasted_is_predicted(how: str, page: Page) -> None:
    page.js(
        """
        const canvas = document.createElement('canvas');
        canvas.width = canvas.height = 40;
        canvas.getContext('2d').fillRect(5, 5, 20, 20);
        canvas.toBlob((blob) => {
          const data = new DataTransfer();
          data.items.add(new File([blob], 'drawn.png', { type: 'image/png' }));
          const drop = document.getElementById('drop');
          if (arguments[0] === 'drop') drop.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }));
          else document.body.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }));
        });
        """,
        how,
    )
    page.until("return !document.querySelector('#samples [aria-pressed=true]')")


def test_a_text_file_shows_the_error_and_the_next_image_clears_it(page: Page, draw_file: Draw, tmp_path: Path) -> None:
    label = page.text("label")
    page.upload(file(tmp_path, b"<b>no image</b>", "<b>.txt"))
    assert "is not an image of a supported format" in page.text("error")
    assert page.by_id("error").is_displayed()
    assert page.text("label") == label
    logged = page.severe()  # the browser logs every answer of status 415
    assert len(logged) == 1
    assert "415" in logged[0]
    page.upload(file(tmp_path, draw_file(7)))
    assert not page.by_id("error").is_displayed()


def expected_heads(page: Page, net: Ensemble, **options: Any) -> list[Any]:
    samples = [decode(str(HERE / "samples" / f"{name}.jpg"), 32) for name in ("flower", "rocket")]
    mixed = mix(net, net.about, torch.from_numpy(np.stack(samples)), Mixing(**options), top=5)
    return [
        pytest.approx({row["label"]: row["probability"] for row in head["classes"]}, abs=1e-5)
        for head in mixed["heads"]
    ]


def test_sliders_change_the_mixture_and_what_the_heads_read(page: Page, net: Ensemble) -> None:
    page.open_mixing()
    assert page.cards(".heads") == expected_heads(page, net, ratio=0.5, x=0.7, y=0.6)
    before = page.js("return document.getElementById('mixture').src")
    page.js("document.getElementById('ratio').focus()")
    page.by_id("ratio").send_keys(Keys.ARROW_LEFT * 20)
    assert page.text("ratio-out") == "30 %"
    page.settled()
    assert page.js("return document.getElementById('mixture').src") != before
    assert page.cards(".heads") == expected_heads(page, net, ratio=0.3, x=0.7, y=0.6)


def test_each_mask_has_its_own_controls(page: Page, net: Ensemble) -> None:
    page.open_mixing()

    def visible(*names: str) -> list[bool]:
        return [page.by_id(name).is_displayed() for name in names]

    assert visible("x", "y", "redraw") == [True, True, False]
    for mask, shown in (("horizontal", [True, False, False]), ("linear", [False] * 3), ("fmix", [False, False, True])):
        before = page.js("return document.getElementById('mixture').src")
        page.js("arguments[0].value = arguments[1]", page.by_id("mask"), mask)
        page.js("arguments[0].dispatchEvent(new Event('input'))", page.by_id("mask"))
        assert visible("x", "y", "redraw") == shown
        page.settled()
        assert page.js("return document.getElementById('mixture').src") != before
    assert page.cards(".heads") == expected_heads(page, net, mask="fmix", seed=0)
    before = page.js("return document.getElementById('mixture').src")
    page.by_id("redraw").click()
    page.settled()
    assert page.js("return document.getElementById('mixture').src") != before
    assert page.cards(".heads") == expected_heads(page, net, mask="fmix", seed=1)


def test_the_picture_can_be_dragged_and_images_swapped(page: Page) -> None:
    page.open_mixing()
    picture = page.by_id("mixture")
    webdriver.ActionChains(page.driver).move_to_element_with_offset(picture, -100, -100).click().perform()
    page.until("return document.getElementById('x').value < 0.4 && document.getElementById('y').value < 0.4")
    first = page.js("return document.querySelector('.slot[data-slot=A] img.pixels').src")
    page.by_id("swap").click()
    page.until("return document.querySelector('.slot[data-slot=B] img.pixels').src === arguments[0]", first)


def test_the_theme_follows_the_system_and_the_button(page: Page) -> None:
    def ground() -> int:
        colour = page.js("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    assert ground() > 600
    page.by_id("theme").click()
    assert ground() < 150
    page.open(scheme="dark")
    assert ground() < 150
    page.by_id("theme").click()
    page.driver.refresh()
    assert ground() > 600  # the choice is kept


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off_and_buttons_are_large(scheme: str, page: Page) -> None:
    page.open(PHONE, scheme)
    for panel in ("predict", "mix"):
        if panel == "mix":
            page.open_mixing()
        assert page.js("return document.documentElement.scrollWidth") <= PHONE[0]
        small = page.js(
            "return [...document.querySelectorAll('button, .button, select, input[type=range]')]"
            ".filter(one => one.offsetParent).map(one => [one.outerHTML, one.getBoundingClientRect()])"
            ".filter(([, box]) => box.height < 24 || box.width < 24 || box.right > innerWidth).map(([name]) => name)"
        )
        assert small == []


def test_every_control_and_picture_has_a_name(page: Page) -> None:
    page.open_mixing()
    unnamed = page.js(
        "return [...document.querySelectorAll('button, a, input, select, img, [role=meter]')].filter(one => "
        "!(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length || one.hasAttribute('alt')))"
        ".map(one => one.outerHTML)"
    )
    assert unnamed == []
    page.by_id("tab-mix").send_keys(Keys.ARROW_LEFT)
    assert page.by_id("predict").is_displayed()
    assert page.js("return document.activeElement.id") == "tab-predict"


def test_with_a_token_the_page_asks_for_it(browser: WebDriver, backend: Backend, serve: Any) -> None:
    with serve(backend, token=TOKEN) as client:
        page = Page(browser, f"{client.base_url}")
        browser.get(page.url)
        page.until("return document.getElementById('ask').open")
        page.by_id("token").send_keys(TOKEN + Keys.ENTER)
        page.until("return document.querySelectorAll('#members .card').length === 3")
        page.js("sessionStorage.clear()")
        browser.get("about:blank")
        browser.get(f"{page.url}/#token={TOKEN}")
        page.until("return document.querySelectorAll('#members .card').length === 3")
        assert TOKEN not in browser.current_url
    browser.get_log("browser")


def test_an_onnx_file_predicts_and_the_page_says_why_it_cannot_mix(
    browser: WebDriver, exported: Path, serve: Any
) -> None:
    with serve(OnnxBackend(exported)) as client:
        page = Page(browser, f"{client.base_url}")
        page.open()
        page.by_id("tab-mix").click()
        assert "one image per pass" in page.by_id("not-mixable").text
        assert page.severe() == []
