"""Settings of every test: one thread, a separate cache, no network, and fixed random seeds."""

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache as cache_of
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from torch import Tensor

# Before anything imports torch, and inherited by every process a test starts: results that are compared bitwise
# must not depend on how many cores the machine has.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tests fork
os.environ["HF_HUB_OFFLINE"] = "1"  # reference models are random, so nothing is downloaded
for variable in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS"):
    os.environ.pop(variable, None)  # a test machine may set them, but a user's does not

pytest_plugins = ("tests.fixtures.trials", "tests.fixtures.records", "tests.fixtures.covering_cases")

CACHES = "PARIBUS_TEST_CACHES"  # variable with the folder that the processes of one test run share
PATIENCE = 5.0  # seconds for a thread that is about to end

settings.register_profile("paribus", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("paribus")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="run the I-th of N parts of the selected tests")
    parser.addoption("--forbid-skips", action="store_true", help="fail if a test is skipped")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # collections of garbage take half of the time in which tests are collected
    if hasattr(config, "workerinput"):  # of pytest-xdist, whose controller reports the tests
        config.pluginmanager.unregister(name="terminalreporter")
    redirect_caches(config)
    load_own_plugins_once(config)
    if "torch" in sys.modules:  # by another pytest plugin, so that the variables above came too late
        sys.modules["torch"].set_num_threads(1)
    # Tests in the background (nohup, a script's `&`) and their children would inherit ignored signals.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def redirect_caches(config: pytest.Config) -> None:
    """Use caches in a temporary folder. Processes of pytest-xdist share only the index of plugins, which takes long."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is None:
        temporary = TemporaryDirectory(prefix="paribus-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(temporary.cleanup)
        os.environ[CACHES] = temporary.name
    root = Path(os.environ[CACHES])
    folder = root / ("main" if worker is None else worker["workerid"])
    (folder / "paribus").mkdir(parents=True)
    (root / "index").mkdir(exist_ok=True)
    (folder / "paribus" / "index").symlink_to(root / "index")
    os.environ |= {"PARIBUS_CACHE_DIR": str(folder / "paribus"), "XDG_CACHE_HOME": str(folder)}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that import `transformers` where it is not installed, as in `make test-lowest`."""
    if collection_path.suffix != ".py" or find_spec("transformers") is not None:
        return None
    return True if re.search(r"(?m)^(import|from) transformers\b", collection_path.read_text()) else None


def load_own_plugins_once(config: pytest.Config) -> None:
    """Keep our plugins, which no test changes: `paribus.installed()` reads the signatures of all classes for 0.3 s."""
    from paribus.registry import registry
    from paribus.registry.plugin_loading import load_plugin

    load_once = cache_of(load_plugin)
    patch = pytest.MonkeyPatch()
    patch.setattr(
        registry,
        "load_plugin",
        lambda source: (load_once if source.is_builtin else load_plugin)(source),
    )
    config.add_cleanup(patch.undo)


@pytest.fixture(scope="session", autouse=True)
def no_monitor() -> None:
    """Disable the monitor thread of progress bars, which never ends and would prevent forks."""
    import tqdm

    tqdm.tqdm.monitor_interval = 0


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Assert that a test file leaves no thread running, since other files fork."""
    earlier_threads = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in earlier_threads]
    for thread in started:
        thread.join(PATIENCE)
    alive = [thread.name for thread in started if thread.is_alive()]
    assert not alive, f"tests of this file left threads behind: {', '.join(alive)}"


@pytest.fixture(scope="session")
def randn() -> Callable[..., "Tensor"]:
    """Return a function that draws a normal tensor in float64 by a seed."""
    import torch

    def draw(*shape: int, seed: int = 0) -> "Tensor":
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return draw


@pytest.hookimpl(trylast=True)  # after -m and -k, so that torch is imported only if a gpu test is selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shard := config.getoption("--shard"):
        index, count = map(int, shard.split("/"))
        parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
        for item in items:
            parts[crc32(item.nodeid.encode()) % count == index - 1].append(item)
        config.hook.pytest_deselected(items=parts[False])
        items[:] = parts[True]
    if find_spec("transformers") is None:  # as in `make test-lowest`
        for item in items:
            code = getattr(getattr(item, "function", None), "__code__", None)
            if code is not None and any(name.partition(".")[0] == "transformers" for name in code.co_names):
                item.add_marker(pytest.mark.skip(reason="transformers is not installed"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # the tests themselves, which each collection of garbage would look through
    gc.set_threshold(50_000)


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # torch.manual_seed formats the call stack thrice


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--forbid-skips") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def one_thread() -> None:
    """Require that no other thread is running, because then jobs would run in this process instead of a forked one."""
    from paribus.datamodule.worker_pool import may_fork

    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    assert may_fork(), f"other threads are running: {', '.join(thread.name for thread in threading.enumerate())}"
