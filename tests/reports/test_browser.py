"""Reports and the live page in a headless Chromium, if there is one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mixmo
from mixmo.reports.vega import COLOURS
from mixmo.reports.watch import serve
from mixmo.runs.directory import Run

Copy = Callable[..., Path]
WIDE = "return document.documentElement.scrollWidth - innerWidth"
STROKE = "return getComputedStyle(document.querySelector('.chart .mark-line path')).stroke"


@pytest.fixture(scope="module")
def pages(runs: list[Run], results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    many = [results / name for name in ("cutmix-b1", "cutmix-b1-seed1", "cut-mixmo-b4", "mimo-b4-ghost")]
    made = {"one": mixmo.report(runs[0]), "many": mixmo.report(*many), "bare": mixmo.report(results / "vanilla-b1")}
    return {name: page.save(folder / f"{name}.html").as_uri() for name, page in made.items()}


@pytest.mark.parametrize(("name", "charts"), [("one", 14), ("many", 10), ("bare", 6)])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_report_is_drawn_without_a_complaint_and_fits(
    browser: Any, pages: dict[str, str], name: str, charts: int, theme: str, width: int
) -> None:
    browser.open(pages[name], width, theme)
    assert browser.drawn() == charts
    assert browser.complaints() == []
    assert browser.run(WIDE) <= 0
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
        == 0
    )


def test_theme_follows_the_system_the_button_and_print(browser: Any, pages: dict[str, str]) -> None:
    browser.open(pages["one"])
    browser.drawn()
    light = browser.run(STROKE)
    browser.theme("dark")
    dark = browser.run(STROKE)
    assert light != dark
    browser.theme("dark", "print")
    assert browser.run(STROKE) == light
    browser.theme("dark")
    browser.run("document.getElementById('theme').click()")
    assert browser.run(STROKE) == light
    browser.run("localStorage.clear()")


def test_a_printed_page_is_black_on_white_and_cuts_no_table(browser: Any, pages: dict[str, str]) -> None:
    """At the width of A4 between its margins."""
    state = "return getComputedStyle(document.querySelector('.state')).backgroundColor"
    for name in pages:
        browser.open(pages[name], 717)
        browser.drawn()
        light = browser.run(state)
        browser.theme("dark")
        assert browser.run(state) != light
        browser.theme("dark", "print")
        assert browser.run(state) == light
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        cut = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
        assert browser.run(f"return {cut}.map(each => each.innerText)") == []


def contrast(one: list[float], two: list[float]) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: list[float]) -> float:
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_lines_have_enough_contrast(browser: Any, pages: dict[str, str], theme: str) -> None:
    browser.open(pages["one"], theme=theme)
    script = """const probe = document.createElement('p'); document.body.append(probe);
        const read = (name) => { probe.style.color = `var(${name})`;
            return getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number); };
        return Object.fromEntries(arguments[0].map((name) => [name, read(name)]));"""
    names = ["--card", "--back", "--text", "--soft", "--link", *(f"--c{i}" for i in range(COLOURS))]
    colours = browser.run(script, names)
    for back in ("--card", "--back"):
        for text in ("--text", "--soft", "--link"):
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
        for i in range(COLOURS):
            assert contrast(colours[f"--c{i}"], colours[back]) >= 3, (i, back)


def test_values_show_at_the_pointer_and_the_legend_picks(browser: Any, pages: dict[str, str], runs: list[Run]) -> None:
    from selenium.webdriver import ActionChains

    browser.open(pages["one"])
    browser.drawn()
    chart = browser.driver.find_element("css selector", ".chart svg")
    ActionChains(browser.driver).move_to_element(chart).perform()
    browser.wait("document.querySelector('#vg-tooltip-element.visible')")
    shown = browser.run("return document.getElementById('vg-tooltip-element').innerText")
    assert "epoch" in shown
    assert "Top1" in shown
    lines = "[...document.querySelectorAll('#chart0 .mark-line path')]"
    faint = f"return {lines}.filter(path => path.getAttribute('opacity') == 0.1).length"
    assert browser.run(faint) == 0
    browser.run("document.querySelector('.key').click()")
    assert browser.run(faint) == 2  # the members
    browser.run("document.querySelector('.key').click()")
    assert browser.run(faint) == 0


def test_every_chart_and_picture_has_an_alternative_text(browser: Any, pages: dict[str, str]) -> None:
    browser.open(pages["one"])
    labels = browser.run("return [...document.querySelectorAll('.chart')].map(c => c.getAttribute('aria-label'))")
    assert all(labels)
    assert browser.run("return [...document.images].filter(i => !i.alt).length") == 0
    assert browser.run("return document.documentElement.lang") == "en"


def test_hostile_names_run_nothing(browser: Any, copy: Copy) -> None:
    run = copy()
    about = json.loads((run / "dataset.json").read_text())
    about["classes"] = [
        "<img src=x onerror=window.hacked=1>",
        "</script><script>window.hacked=1</script>",
        "a.b[0]",
    ] + [f"{k}'\"`${{window.hacked=1}}" for k in range(7)]
    (run / "dataset.json").write_text(json.dumps(about))
    run = run.rename(run.with_name("<svg onload=window.hacked=1>"))
    other = copy("other")
    for page in (mixmo.report(run), mixmo.report(run, other)):
        browser.open(page.save(run / "report.html").as_uri())
        browser.drawn()
        assert browser.run("return window.hacked") is None
        assert browser.complaints() == []


def test_live_page_follows_the_folder(browser: Any, copy: Copy, tmp_path: Path) -> None:
    copy("runs/cut")
    hostile = tmp_path / "runs" / "<img src=x onerror=window.hacked=1>"
    shutil.copytree(tmp_path / "runs" / "cut", hostile)
    rows = "[...document.querySelectorAll('#rows tr:not([hidden]) a')].map(a => a.textContent)"
    with serve(tmp_path / "runs", every=0.1) as watching:
        for width in (1280, 390):
            browser.open(watching.address, width)
            browser.wait("document.body.dataset.ready")
            assert browser.run(WIDE) <= 0
            seen = "const box = arguments[0].getBoundingClientRect(); return box.width > 0 && box.right <= innerWidth"
            for top1 in browser.driver.find_elements("css selector", "#rows td.n:nth-child(5)"):
                assert browser.run(seen, top1)  # on a phone too, without scrolling
        assert sorted(browser.run(f"return {rows}")) == [hostile.name, "cut"]
        browser.run("document.querySelectorAll('#rows input').forEach(box => box.click())")
        browser.wait("document.querySelectorAll('#curves .chart svg').length === 3")
        shutil.rmtree(hostile)
        copy("runs/new", 1)
        browser.wait(f'JSON.stringify({rows}.sort()) === \'["cut","new"]\'')
        browser.run(
            "const f = document.getElementById('filter'); f.value = 'vanilla'; f.dispatchEvent(new Event('input'))"
        )
        browser.wait(f"JSON.stringify({rows}) === '[\"new\"]'")  # its recipe may be read after its name
        assert browser.run("return window.hacked") is None
        assert browser.complaints() == []


def test_200_runs_are_on_the_page_within_two_seconds(browser: Any, results: Path, tmp_path: Path) -> None:
    sources = sorted(results.iterdir())
    for place in range(200):
        shutil.copytree(sources[place % len(sources)], tmp_path / f"run{place:03}")
    with serve(tmp_path) as watching:
        browser.open(watching.address)
        browser.wait("document.querySelectorAll('#rows tr').length === 200")
        assert browser.run("return performance.now()") < 2000
