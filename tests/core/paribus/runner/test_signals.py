from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading

import pytest

from paribus.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from paribus.runner import signals
from paribus.runner.signals import STOP_SIGNALS, InterruptedStudyError, StopRequest, catch_signals


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_a_signal_is_a_wish_to_stop_and_afterwards_what_it_was(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with catch_signals(StopRequest()) as stop:
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.signal == number
        assert stop.exit_code == (EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
    assert signal.getsignal(number) is before


def test_a_second_signal_means_at_once_unless_it_is_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    with catch_signals(StopRequest(), lambda: called.append(stop.at_once)) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signals, "ECHO_SECONDS", -1.0)
        signal.raise_signal(signal.SIGTERM)
    assert called == [False, False, True]
    assert stop.signal == signal.SIGINT


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals(StopRequest()) as stop:
            signal.raise_signal(signal.SIGHUP)
        assert not stop.is_requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_whoever_listens_has_the_signals_back_from_whoever_took_them() -> None:
    with catch_signals(StopRequest()) as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert not stop.poll()
        signal.raise_signal(signal.SIGTERM)
        assert stop.poll()


def test_in_another_thread_nothing_is_caught() -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    found: list[bool] = []

    def inside() -> None:
        with catch_signals(StopRequest()) as stop:
            found.append(stop.poll() or before != [signal.getsignal(each) for each in STOP_SIGNALS])

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [False]


def test_an_interruption_says_how_to_go_on_and_survives_a_process_pool() -> None:
    error = pickle.loads(pickle.dumps(InterruptedStudyError(signal.SIGTERM, "paribus run x")))
    assert str(error) == "error[interrupted]: stopped by SIGTERM; nothing is lost; to go on: paribus run x"
    assert error.exit_code == EXIT_TERMINATED
    assert "run it again to go on" in str(InterruptedStudyError(signal.SIGINT, ""))


def test_whoever_is_orphaned_before_it_could_say_so_ends() -> None:
    code = "import os\nfrom paribus.runner.signals import die_with_parent\ndie_with_parent(os.getpid())\nprint('lives')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (EXIT_TERMINATED, "")
    code = code.replace("getpid", "getppid")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "lives\n"
