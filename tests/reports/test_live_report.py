"""A training keeps its report fresh, seldom enough, and is not disturbed by it."""

import time
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.reports import live_report
from mixmo.reports.live_report import LiveReport

SMALL = ["--epochs", "2", "--width", "1", "--batch-size", "256", "--device", "cpu"]


def test_train_leaves_a_report_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "digits/cut-mixmo", *SMALL, "--out", str(out)]) == 0
    assert f"report   {out / 'report.html'}" in capsys.readouterr().err
    text = (out / "report.html").read_text()
    assert ">finished<" in text
    assert "Reliability after temperature" in text


def test_train_without_a_report_leaves_none(tmp_path: Path) -> None:
    assert main(["train", "digits/vanilla", *SMALL, "--quiet", "--no-report", "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "report.html").exists()


def test_reports_are_written_at_most_every_half_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(LiveReport, "_write", lambda self, state="training": written.append(state))
    logger = LiveReport(tmp_path, every=0.2)
    for _ in range(5):
        logger.log_metrics({}, 1)
    assert written == ["training"]
    time.sleep(0.25)
    logger.log_metrics({}, 2)
    logger.finalize("success")
    assert written == ["training", "training"]
    logger.finalize("interrupted")
    assert written[-1] == "stopped"


def test_while_it_trains_the_page_reads_itself_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    finalize = LiveReport.finalize
    monkeypatch.setattr(
        LiveReport, "finalize", lambda self, status: (finalize(self, status), pages.append(self.file.read_text()))
    )
    assert main(["train", "digits/cut-mixmo", *SMALL, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert 'data-reload="30"' in pages[0]
    assert ">training<" in pages[0]
    assert "of 2" in pages[0]  # epochs
    assert (
        "data-reload" not in (tmp_path / "run" / "report.html").read_text().partition("<style>")[2].partition("main")[0]
    )


@pytest.mark.filterwarnings("ignore:.*cannot be written")
def test_a_report_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_report, "one_run", fail)
    monkeypatch.setattr("mixmo.cli.train.report", fail)
    assert main(["train", "digits/vanilla", *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "scores.json").is_file()
    assert "mixmo: no report: [Errno 28] No space left on device\n" in capsys.readouterr().err


def test_without_the_extra_training_writes_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmo.cli.train.available", lambda: False)
    assert main(["train", "digits/vanilla", *SMALL, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "report.html").exists()


def test_logger_says_an_error_of_its_thread_once(tmp_path: Path) -> None:
    logger = LiveReport(tmp_path, every=0.0)  # there is no run
    logger.log_metrics({}, 1)
    assert logger.thread is not None
    logger.thread.join()
    with pytest.warns(UserWarning, match="cannot be written .*; training goes on"):
        logger.log_metrics({}, 2)
    logger.log_metrics({}, 3)
    logger.finalize("failed")
