"""Signals that stop training."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from mixmo.utils.signals import stop_signals


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_closed_terminal_stops_training_unless_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert stopped()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_signal_has_its_usual_effect() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored
    try:
        with stop_signals() as stopped:
            assert not stopped()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stopped()
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])


def test_signals_are_not_handled_outside_the_main_thread() -> None:
    def inside() -> bool:
        with stop_signals() as stopped:
            return stopped()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(inside).result() is False
