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
def test_a_signal_requests_a_stop_and_its_handler_is_restored(number: signal.Signals) -> None:
    previous = signal.getsignal(number)
    with catch_signals(StopRequest()) as stop:
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.signal == number
        assert stop.exit_code == (EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
    assert signal.getsignal(number) is previous


def test_a_second_signal_stops_at_once_unless_it_is_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    with catch_signals(StopRequest(), lambda: called.append(stop.at_once)) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signals, "ECHO_SECONDS", -1.0)
        signal.raise_signal(signal.SIGTERM)
    assert called == [False, False, True]
    assert stop.signal == signal.SIGINT


def test_ignored_signals_stay_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals(StopRequest()) as stop:
            signal.raise_signal(signal.SIGHUP)
        assert not stop.is_requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_polling_reinstalls_the_handlers() -> None:
    with catch_signals(StopRequest()) as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert not stop.poll()
        signal.raise_signal(signal.SIGTERM)
        assert stop.poll()


def test_other_threads_install_no_handlers() -> None:
    previous = [signal.getsignal(number) for number in STOP_SIGNALS]
    result: list[bool] = []

    def inside() -> None:
        with catch_signals(StopRequest()) as stop:
            result.append(stop.poll() or previous != [signal.getsignal(number) for number in STOP_SIGNALS])

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert result == [False]


def test_an_interruption_names_the_resume_command_and_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(InterruptedStudyError(signal.SIGTERM, "paribus run x")))
    assert str(error) == "error[interrupted]: stopped by SIGTERM; nothing is lost; to go on: paribus run x"
    assert error.exit_code == EXIT_TERMINATED
    assert "run it again to go on" in str(InterruptedStudyError(signal.SIGINT, ""))


def test_an_orphaned_process_exits() -> None:
    code = (
        "import os; from paribus.models.parent_process import die_with_parent; die_with_parent(os.getpid()); print(1)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (EXIT_TERMINATED, "")
    code = code.replace("getpid", "getppid")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
