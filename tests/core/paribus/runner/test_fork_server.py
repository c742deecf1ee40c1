"""The server with work that needs no torch: an order is Python code, and its `code` the exit code."""

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
from tests.fixtures.problems import raises_problem

from paribus.errors import PluginError
from paribus.runner import processes
from paribus.runner.outcomes import trial_outcome
from paribus.runner.processes import ForkServer, process_environment
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, LauncherMessage, Plugins

TOY = """
import os
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

MakeServer = Callable[..., ForkServer]
MakeJob = Callable[..., Job]


@pytest.fixture
def make_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeServer]:
    """Makes an open server that runs some code where others import their plugins."""
    monkeypatch.syspath_prepend(str(tmp_path))
    servers: list[ForkServer] = []

    def make(loading: str = "pass") -> ForkServer:
        (tmp_path / "toy.py").write_text(TOY.replace("LOADING", loading))
        servers.append(ForkServer(module="toy"))
        servers[-1].open(Plugins())
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def server(make_server: MakeServer) -> ForkServer:
    return make_server()


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    return lambda order, name="job": Job(name, order, str(tmp_path / f"{name}.txt"))


def until(server: ForkServer, *names: str, seconds: float = 30.0) -> list[LauncherEvent]:
    """All news up to the ends of the jobs with these names."""
    events: list[LauncherEvent] = []
    remaining = set(names)
    end = time.monotonic() + seconds
    while remaining:
        assert time.monotonic() < end, events
        for news in server.poll(0.1):
            events.append(news)
            if isinstance(news, JobEnded):
                remaining.discard(news.name)
    return events


def started(server: ForkServer, seconds: float = 30.0) -> int:
    """The process of the job that starts next."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for news in server.poll(0.1):
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
    """Return whether a process ends soon; a zombie has ended."""
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


def test_jobs_run_in_separate_processes_and_report_their_ends(server: ForkServer, job: MakeJob) -> None:
    for code in (0, 3):
        server.start(job(f"import os; print(os.getpid()); code = {code}", f"job-{code}"))
    news = until(server, "job-0", "job-3")
    ends = {event.name: event for event in news if isinstance(event, JobEnded)}
    starts = {event.name: event.location for event in news if isinstance(event, JobStarted)}
    assert {name: (end.code, end.signal) for name, end in ends.items()} == {"job-0": (0, None), "job-3": (3, None)}
    assert {name: f"process {end.last_line}" for name, end in ends.items()} == starts
    assert str(os.getpid()) not in {end.last_line for end in ends.values()}


ENVIRONMENT = "import os; print(os.environ['PYTHONHASHSEED'], os.environ.get('OF_THE_USER'), os.environ.get('TZ'))"


def test_a_job_in_the_other_environment_has_another_hash_seed_and_no_variables_of_the_user(
    server: ForkServer, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_USER", "x")
    server.start(job(ENVIRONMENT, "other")._replace(other_environment=True))
    ends = {event.name: event.last_line for event in until(server, "other") if isinstance(event, JobEnded)}
    server.start(job("pass"))
    until(server, "job")
    assert ends["other"].startswith("1 None OTHER")


@pytest.mark.thorough
def test_the_server_of_the_other_environment_ends_when_idle_and_starts_again(
    server: ForkServer, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IDLE_SECONDS", 0.0)
    for name in ("first", "second"):
        server.start(job("pass", name)._replace(other_environment=True))
        until(server, name)
        server.poll(0.01)
        assert server._other is None


@pytest.mark.few(1)
@pytest.mark.parametrize("loading", ["raise PluginError(Problem(code='x', message='it lacks a variable'))", "1 / 0"])
def test_plugins_that_need_the_environment_of_the_user_fail_the_jobs_in_the_other_one_only(
    make_server: MakeServer, job: MakeJob, loading: str
) -> None:
    server = make_server(
        "import os; from paribus.errors import PluginError, Problem\n"
        f"    if 'PARIBUS_OTHER_ENVIRONMENT' in os.environ: {loading}"
    )
    server.start(job("code = 0"))
    for name in ("first", "second"):
        server.start(job("code = 0", name)._replace(other_environment=True))
    ends = {event.name: event.code for event in until(server, "job", "first", "second") if isinstance(event, JobEnded)}
    assert ends == {"job": 0, "first": 1, "second": 1}
    server.start(job("code = 0", "third")._replace(other_environment=True))
    assert until(server, "third")[-1] == JobEnded("third", 1, None, "it lacks a variable") or "1 / 0" in loading


@pytest.mark.thorough
def test_jobs_in_the_other_environment_end_with_the_server(server: ForkServer, job: MakeJob) -> None:
    server.start(job(HEARING, "here"))
    server.start(job(HEARING, "other")._replace(other_environment=True))
    pid = started(server)
    assert server._process is not None
    server._process.kill()
    ends = [event for event in until(server, "here", "other") if isinstance(event, JobEnded)]
    assert {event.name for event in ends} == {"here", "other"}
    assert gone(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
def test_a_crashed_job_is_reported_and_the_others_go_on(
    server: ForkServer, job: MakeJob, number: signal.Signals
) -> None:
    server.start(job(HEARING, "other"))
    server.start(job(f"import os; os.kill(os.getpid(), {int(number)})", "crash"))
    (end,) = (event for event in until(server, "crash") if isinstance(event, JobEnded))
    assert (end.name, end.code, end.signal) == ("crash", None, number)
    server.stop("other", signal.SIGTERM)
    (end,) = (event for event in until(server, "other") if isinstance(event, JobEnded))
    assert end.code == 143


def test_the_traceback_of_a_crash_is_in_the_log(server: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    server.start(job("print('here'); import ctypes; ctypes.string_at(0)"))
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.signal == signal.SIGSEGV
    log = (tmp_path / "job.txt").read_text()
    assert log.startswith("here\n")
    assert "Segmentation fault" in log
    assert 'File "<string>", line 1 in <module>' in log


def test_code_that_exits_or_raises_ends_only_its_job(server: ForkServer, job: MakeJob) -> None:
    server.start(job("import os; os._exit(9)", "exit"))
    server.start(job("raise SystemExit('no')", "raise"))
    ends = {event.name: event for event in until(server, "exit", "raise") if isinstance(event, JobEnded)}
    assert ends["exit"].code == 9
    assert (ends["raise"].code, ends["raise"].last_line) == (70, "SystemExit: no")


def test_the_first_signal_requests_a_stop_and_the_second_ends_at_once(
    server: ForkServer, job: MakeJob, tmp_path: Path
) -> None:
    server.start(job("import time\nstop.poll(); print('deaf', flush=True)\nwhile True: time.sleep(0.01)"))
    started(server)
    printed(tmp_path / "job.txt", "deaf")
    server.stop("job", signal.SIGTERM)
    server.stop("job", signal.SIGTERM)  # an echo
    assert not [event for event in server.poll(0.7) if isinstance(event, JobEnded)]
    server.stop("job", signal.SIGTERM)
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 143


def test_a_job_that_does_not_poll_yet_ends_at_the_first_signal(
    server: ForkServer, job: MakeJob, tmp_path: Path
) -> None:
    server.start(job("import time\nprint('importing', flush=True)\nwhile True: time.sleep(0.01)"))
    printed(tmp_path / "job.txt", "importing")
    server.stop("job", signal.SIGINT)
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 130


def test_a_signal_sent_with_the_start_is_not_lost(server: ForkServer, job: MakeJob) -> None:
    server.start(job("import time\nwhile True: time.sleep(0.01)"))
    server.stop("job", signal.SIGTERM)
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 143


def test_replaced_signal_handlers_are_reinstalled_at_the_next_step(
    server: ForkServer, job: MakeJob, tmp_path: Path
) -> None:
    server.start(job("import signal; signal.signal(signal.SIGTERM, lambda *a: print('mine'))\n" + HEARING))
    printed(tmp_path / "job.txt", "on")
    server.stop("job", signal.SIGTERM)
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 143
    assert "mine" not in (tmp_path / "job.txt").read_text()


def test_subprocesses_of_a_killed_job_are_killed(server: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    code = "import os, time\npid = os.fork()\nif pid: print('child', pid, flush=True)\nwhile True: time.sleep(0.01)"
    server.start(job(code))
    pid = started(server)
    printed(tmp_path / "job.txt", "\n")  # the whole line: it comes through a pipe, perhaps in pieces
    child = int((tmp_path / "job.txt").read_text().split()[1])
    os.kill(pid, signal.SIGKILL)
    until(server, "job")
    assert gone(child)


def test_closing_leaves_no_process(server: ForkServer, job: MakeJob) -> None:
    server.start(job("import time\nwhile True: time.sleep(0.01)"))
    pid = started(server)
    server.close()
    assert gone(pid, seconds=0.1)
    assert list(server.poll(0.0)) == []


def test_a_killed_fork_server_ends_its_jobs_and_is_replaced(server: ForkServer, job: MakeJob) -> None:
    server.start(job(HEARING))
    pid = started(server)
    os.kill(parent_of(pid), signal.SIGKILL)
    note, end = until(server, "job")
    assert isinstance(note, LauncherMessage)
    assert "ended with signal 9 (SIGKILL)" in note.text
    assert end == JobEnded("job", None, signal.SIGKILL, "its parent process ended")
    assert gone(pid)
    server.start(job("code = 5", "next"))
    (end,) = (event for event in until(server, "next") if isinstance(event, JobEnded))
    assert end.code == 5


def test_a_fork_server_killed_while_loading_is_no_plugin_error_and_its_job_is_retried(
    make_server: MakeServer, job: MakeJob, tmp_path: Path
) -> None:
    flag = tmp_path / "loading"
    first_time = f"from pathlib import Path; import time; flag = Path({str(flag)!r})"
    server = make_server(f"{first_time}; flag.exists() or (flag.write_text(str(os.getpid())), time.sleep(60))")
    server.start(job("code = 0"))
    while not (flag.exists() and flag.read_text()):
        time.sleep(0.01)
    os.kill(int(flag.read_text()), signal.SIGKILL)
    note, end = until(server, "job")
    assert isinstance(note, LauncherMessage)
    assert "ended with signal 9 (SIGKILL) while it loaded the plugins; it is started again" in note.text
    assert isinstance(end, JobEnded)
    outcome = trial_outcome(end, None)
    assert (outcome.state, outcome.may_retry) == ("failed", True)
    server.start(job("code = 5"))
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 5


def test_killing_the_launcher_leaves_no_orphan(make_server: MakeServer, tmp_path: Path, job: MakeJob) -> None:
    make_server().close()
    code = (
        "import sys\nfrom paribus.runner.processes import ForkServer\n"
        "from paribus.slots.launcher import Job, Plugins\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nserver = ForkServer(module='toy'); server.open(Plugins())\n"
        f"server.start(Job('job', {HEARING!r}, {str(tmp_path / 'log.txt')!r}))\n"
        "while True:\n for news in server.poll(1.0): print(news.location.split()[1], flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=process_environment()) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        server = parent_of(pid)
        owner.kill()
    assert gone(pid)
    assert gone(server)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_fork_server_ignores_signals_to_its_group(server: ForkServer, job: MakeJob) -> None:
    server.start(job(HEARING))
    pid = started(server)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(parent_of(pid), number)
    server.stop("job", signal.SIGTERM)
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.code == 143


def test_a_plugin_changes_nothing_for_the_trials(make_server: MakeServer, job: MakeJob) -> None:
    server = make_server(
        "import locale, os, signal; os.chdir('/'); os.umask(0o077); locale.setlocale(locale.LC_ALL, 'C.UTF-8');"
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)]"
    )
    server.start(
        job(
            "import locale, os, signal; print(os.getcwd(), oct(os.umask(0)), locale.setlocale(locale.LC_ALL),"
            " signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, signal.getsignal(signal.SIGCHLD))"
        )
    )
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    mask = os.umask(0)
    os.umask(mask)
    expected = subprocess.run(
        [sys.executable, "-c", "import locale; print(locale.setlocale(locale.LC_ALL))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert end.last_line == f"{Path.cwd()} {oct(mask)} {expected} False 0"


def test_a_plugin_with_a_thread_prevents_forking_and_is_reported(make_server: MakeServer, job: MakeJob) -> None:
    server = make_server("import threading, time; threading.Thread(target=time.sleep, args=[60], name='poll').start()")
    server.start(job("this is no order that a process of its own could read"))
    note, begun, end = until(server, "job")
    assert isinstance(note, LauncherMessage)
    assert "it has 2 threads (`poll`)" in note.text
    assert isinstance(begun, JobStarted)
    assert isinstance(end, JobEnded)
    assert "JSONDecodeError" in end.last_line  # paribus.runner.worker was given the order


@pytest.mark.parametrize(
    ("loading", "code", "values"),
    [
        ("raise SystemExit('not today')", "plugin-failed", ("exit code 1", "not today")),
        ("import os; os.kill(os.getpid(), 11)", "plugin-failed", ("11", "SIGSEGV")),
        (
            "from paribus import errors; raise errors.PluginError(errors.Problem(code='x', message='broken: y'))",
            "x",
            ("y",),
        ),
    ],
    ids=["exit", "crash", "refused"],
)
def test_a_plugin_that_ends_the_fork_server_is_a_plugin_error(
    make_server: MakeServer, job: MakeJob, loading: str, code: str, values: tuple[str, ...]
) -> None:
    server = make_server(loading)
    server.start(job("code = 0"))
    with raises_problem(PluginError, code, *values):
        until(server, "job")


def test_a_log_over_its_limit_keeps_its_end(server: ForkServer, job: MakeJob, tmp_path: Path) -> None:
    line = "x" * 99
    server.start(job(f"for n in range(200_000): print('{line}')\nprint('the end')"))
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.last_line == "the end"
    log = (tmp_path / "job.txt").read_text()
    assert 10_000_000 < len(log) < 10_100_000
    assert "9,936,008 bytes are left out" in log
    assert log.endswith("x\nthe end\n")


def test_a_log_that_cannot_be_written_does_not_affect_the_job(server: ForkServer, tmp_path: Path) -> None:
    server.start(Job("job", "print('hello'); code = 4", str(tmp_path / "nowhere" / "log.txt")))
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert (end.code, end.last_line) == (4, "hello")


def test_without_fork_the_server_does_not_import_torch(server: ForkServer, job: MakeJob) -> None:
    server.start(job("import sys; print('torch' in sys.modules)"))
    (end,) = (event for event in until(server, "job") if isinstance(event, JobEnded))
    assert end.last_line == "False"


def test_opening_does_not_wait(make_server: MakeServer) -> None:
    start = time.monotonic()
    with closing(make_server("import time; time.sleep(30)")):
        assert time.monotonic() - start < 5.0
