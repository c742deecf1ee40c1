"""The zygote with work that needs no torch: an order is Python code, and its `code` the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paribus.errors import PluginError
from paribus.runner.fork_server import ForkServer, process_environment
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, LauncherMessage, Plugins

TOY = """
import sys
from paribus.runner.fork_server_main import serve

def work(order, stop):
    names = {"stop": stop, "code": 0}
    exec(order, names)
    return names["code"]

def load():
    LOADING

serve(int(sys.argv[1]), work, load=load)
"""
HEARING = """
import time
while not stop.poll():
    print("on", flush=True)
    time.sleep(0.01)
code = stop.exit_code
"""

MakeZygote = Callable[..., ForkServer]
MakeJob = Callable[..., Job]


@pytest.fixture
def zygote_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeZygote]:
    """Makes an open zygote that runs some code where others import their plugins."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[ForkServer] = []

    def make(loading: str = "pass") -> ForkServer:
        (tmp_path / "toy.py").write_text(TOY.replace("LOADING", loading))
        made.append(ForkServer(module="toy"))
        made[-1].open(Plugins())
        return made[-1]

    yield make
    for zygote in made:
        zygote.close()


@pytest.fixture
def zygote(zygote_of: MakeZygote) -> ForkServer:
    return zygote_of()


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    return lambda order, name="job": Job(name, order, str(tmp_path / f"{name}.txt"))


def until(zygote: ForkServer, *names: str, seconds: float = 30.0) -> list[LauncherEvent]:
    """All news up to the ends of the jobs with these names."""
    found: list[LauncherEvent] = []
    left = set(names)
    end = time.monotonic() + seconds
    while left:
        assert time.monotonic() < end, found
        for news in zygote.poll(0.1):
            found.append(news)
            if isinstance(news, JobEnded):
                left.discard(news.name)
    return found


def started(zygote: ForkServer, seconds: float = 30.0) -> int:
    """The process of the job that starts next."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for news in zygote.poll(0.1):
            if isinstance(news, JobStarted):
                return int(news.location.removeprefix("process "))
    raise AssertionError("no job has started")


def printed(path: Path, text: str, seconds: float = 30.0) -> None:
    """Waits for a log to say something."""
    end = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < end, path.read_text() if path.exists() else "no log"
        time.sleep(0.01)


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends soon; a zombie has."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_jobs_run_in_processes_of_their_own_and_each_end_is_told(zygote: ForkServer, job: MakeJob) -> None:
    for code in (0, 3):
        zygote.start(job(f"import os; print(os.getpid()); code = {code}", f"job-{code}"))
    news = until(zygote, "job-0", "job-3")
    ends = {each.name: each for each in news if isinstance(each, JobEnded)}
    starts = {each.name: each.location for each in news if isinstance(each, JobStarted)}
    assert {name: (end.code, end.signal) for name, end in ends.items()} == {"job-0": (0, None), "job-3": (3, None)}
    assert {name: f"process {end.last_line}" for name, end in ends.items()} == starts
    assert str(os.getpid()) not in {end.last_line for end in ends.values()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
def test_a_job_that_crashes_is_told_of_and_the_others_go_on(
    zygote: ForkServer, job: MakeJob, number: signal.Signals
) -> None:
    zygote.start(job(HEARING, "other"))
    zygote.start(job(f"import os; os.kill(os.getpid(), {int(number)})", "crash"))
    (end,) = (each for each in until(zygote, "crash") if isinstance(each, JobEnded))
    assert (end.name, end.code, end.signal) == ("crash", None, number)
    zygote.stop("other", signal.SIGTERM)
    (end,) = (each for each in until(zygote, "other") if isinstance(each, JobEnded))
    assert end.code == 143


def test_the_last_words_of_a_crash_are_in_the_log(zygote: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    zygote.start(job("print('here'); import ctypes; ctypes.string_at(0)"))
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.signal == signal.SIGSEGV
    log = (tmp_path / "job.txt").read_text()
    assert log.startswith("here\n")
    assert "Segmentation fault" in log
    assert 'File "<string>", line 1 in <module>' in log


def test_code_that_ends_its_process_or_raises_ends_its_own_job(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job("import os; os._exit(9)", "exit"))
    zygote.start(job("raise SystemExit('no')", "raise"))
    ends = {each.name: each for each in until(zygote, "exit", "raise") if isinstance(each, JobEnded)}
    assert ends["exit"].code == 9
    assert (ends["raise"].code, ends["raise"].last_line) == (70, "SystemExit: no")


def test_the_first_signal_asks_and_the_second_ends_at_once(zygote: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    zygote.start(job("import time\nstop.poll(); print('deaf', flush=True)\nwhile True: time.sleep(0.01)"))
    started(zygote)
    printed(tmp_path / "job.txt", "deaf")
    zygote.stop("job", signal.SIGTERM)
    zygote.stop("job", signal.SIGTERM)  # an echo
    assert not [each for each in zygote.poll(0.7) if isinstance(each, JobEnded)]
    zygote.stop("job", signal.SIGTERM)
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.code == 143


def test_a_job_that_has_not_begun_to_listen_ends_at_the_first_signal(
    zygote: ForkServer, job: MakeJob, tmp_path: Path
) -> None:
    zygote.start(job("import time\nprint('importing', flush=True)\nwhile True: time.sleep(0.01)"))
    printed(tmp_path / "job.txt", "importing")
    zygote.stop("job", signal.SIGINT)
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.code == 130


def test_a_signal_sent_with_the_start_is_not_lost(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job("import time\nwhile True: time.sleep(0.01)"))
    zygote.stop("job", signal.SIGTERM)
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.code == 143


def test_whoever_took_the_signals_loses_them_at_the_next_step(zygote: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    zygote.start(job("import signal; signal.signal(signal.SIGTERM, lambda *a: print('mine'))\n" + HEARING))
    printed(tmp_path / "job.txt", "on")
    zygote.stop("job", signal.SIGTERM)
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.code == 143
    assert "mine" not in (tmp_path / "job.txt").read_text()


def test_what_a_killed_job_had_started_dies_with_it(zygote: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    code = "import os, time\npid = os.fork()\nif pid: print('child', pid, flush=True)\nwhile True: time.sleep(0.01)"
    zygote.start(job(code))
    pid = started(zygote)
    printed(tmp_path / "job.txt", "\n")  # the whole line: it comes through a pipe, perhaps in pieces
    child = int((tmp_path / "job.txt").read_text().split()[1])
    os.kill(pid, signal.SIGKILL)
    until(zygote, "job")
    assert gone(child)


def test_closing_leaves_nobody(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job("import time\nwhile True: time.sleep(0.01)"))
    pid = started(zygote)
    zygote.close()
    assert gone(pid, seconds=0.1)
    assert list(zygote.poll(0.0)) == []


def test_a_zygote_that_is_killed_takes_its_jobs_along_and_is_replaced(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job(HEARING))
    pid = started(zygote)
    os.kill(parent_of(pid), signal.SIGKILL)
    note, end = until(zygote, "job")
    assert note == LauncherMessage(
        "the process from which trials are forked ended with signal 9 (SIGKILL); it is started anew"
    )
    assert end == JobEnded("job", None, signal.SIGKILL, "its parent process ended")
    assert gone(pid)
    zygote.start(job("code = 5", "next"))
    (end,) = (each for each in until(zygote, "next") if isinstance(each, JobEnded))
    assert end.code == 5


def test_whoever_opened_it_may_be_killed_and_leaves_no_orphan(
    zygote_of: MakeZygote, tmp_path: Path, job: MakeJob
) -> None:
    zygote_of().close()
    code = (
        "import sys\nfrom paribus.runner.fork_server import ForkServer\n"
        "from paribus.slots.launcher import Job, Plugins\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nzygote = ForkServer(module='toy'); zygote.open(Plugins())\n"
        f"zygote.start(Job('job', {HEARING!r}, {str(tmp_path / 'log.txt')!r}))\n"
        "while True:\n for news in zygote.poll(1.0): print(news.where.split()[1], flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=process_environment()) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        zygote = parent_of(pid)
        owner.kill()
    assert gone(pid)
    assert gone(zygote)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_signals_to_a_whole_group_of_processes_are_not_for_the_zygote(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job(HEARING))
    pid = started(zygote)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(parent_of(pid), number)
    zygote.stop("job", signal.SIGTERM)
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.code == 143


def test_a_plugin_changes_nothing_for_the_trials(zygote_of: MakeZygote, job: MakeJob) -> None:
    zygote = zygote_of(
        "import locale, os, signal; os.chdir('/'); os.umask(0o077); locale.setlocale(locale.LC_ALL, 'C.UTF-8');"
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)]"
    )
    zygote.start(
        job(
            "import locale, os, signal; print(os.getcwd(), oct(os.umask(0)), locale.setlocale(locale.LC_ALL),"
            " signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, signal.getsignal(signal.SIGCHLD))"
        )
    )
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    mask = os.umask(0)
    os.umask(mask)
    expected = subprocess.run(
        [sys.executable, "-c", "import locale; print(locale.setlocale(locale.LC_ALL))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert end.last_line == f"{Path.cwd()} {oct(mask)} {expected} False 0"


def test_a_plugin_that_starts_a_thread_costs_the_fork_and_is_told_of(zygote_of: MakeZygote, job: MakeJob) -> None:
    zygote = zygote_of("import threading, time; threading.Thread(target=time.sleep, args=[60], name='poll').start()")
    zygote.start(job("this is no order that a process of its own could read"))
    note, begun, end = until(zygote, "job")
    assert isinstance(note, LauncherMessage)
    assert "each trial starts a Python of its own, which takes seconds: it has 2 threads (`poll`)" in note.text
    assert isinstance(begun, JobStarted)
    assert isinstance(end, JobEnded)
    assert "JSONDecodeError" in end.last_line  # paribus.runner.worker was given the order


@pytest.mark.parametrize(
    ("loading", "words"),
    [
        ("raise SystemExit('not today')", r"ended with exit code 1: not today"),
        ("import os; os.kill(os.getpid(), 11)", r"ended with signal 11 \(SIGSEGV\)"),
        (
            "from paribus.errors import PluginError, Problem; raise PluginError(Problem(code='x', what='broken: y'))",
            r"error\[x\]: broken: y",
        ),
    ],
    ids=["exit", "crash", "refused"],
)
def test_a_plugin_that_breaks_the_zygote_is_an_error_of_plugins(
    zygote_of: MakeZygote, job: MakeJob, loading: str, words: str
) -> None:
    zygote = zygote_of(loading)
    zygote.start(job("code = 0"))
    with pytest.raises(PluginError, match=words):
        until(zygote, "job")


def test_a_log_is_cut_at_its_limit_and_keeps_its_end(zygote: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    line = "x" * 99
    zygote.start(job(f"for n in range(200_000): print('{line}')\nprint('the end')"))
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.last_line == "the end"
    log = (tmp_path / "job.txt").read_text()
    assert 10_000_000 < len(log) < 10_100_000
    assert "9,936,008 bytes were left out here: a trial's log is cut at its limit" in log
    assert log.endswith("x\nthe end\n")


def test_a_log_that_cannot_be_written_hurts_nobody(zygote: ForkServer, tmp_path: Path) -> None:
    zygote.start(Job("job", "print('hello'); code = 4", str(tmp_path / "nowhere" / "log.txt")))
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert (end.code, end.last_line) == (4, "hello")


def test_a_zygote_imports_no_torch_until_it_is_told_to(zygote: ForkServer, job: MakeJob) -> None:
    zygote.start(job("import sys; print('torch' in sys.modules)"))
    (end,) = (each for each in until(zygote, "job") if isinstance(each, JobEnded))
    assert end.last_line == "False"


def test_opening_does_not_wait(zygote_of: MakeZygote) -> None:
    before = time.monotonic()
    with closing(zygote_of("import time; time.sleep(30)")):
        assert time.monotonic() - before < 5.0
