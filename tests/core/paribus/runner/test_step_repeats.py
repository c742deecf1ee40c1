"""Trials whose first step depends on their process: the rehearsal in another environment shows it."""

import os
import sys
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.certificates import Certificate
from paribus.errors import NotComparableError
from paribus.registry import index
from paribus.runner.other_environment import VARIABLE
from paribus.slots.launcher import Plugins

FAULTY = '''
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, final

import paribus
from paribus import Attend, Attention, Context, Cost, Heads, Load, ScoreOptions, Shape, State, Visibility, softmax_cost

Fault = Literal["none", "louder", "hash", "variable", "zone", "locale", "day", "process"]
NAMES = [f"name{number}" for number in range(16)]
DAY = datetime.now(UTC).toordinal() % 7
ORDER = {name: place for place, name in enumerate(set(NAMES))}


@final
class Faulty(Attention):
    """Multi-head attention whose values depend on the process."""

    traits: ClassVar[Any] = {
        "position_hooks": ["rotate", "bias"], "causal": True, "residual": True, "documents": True, "order": True,
    }

    def __init__(self, shape: Shape, *, fault: Annotated[Fault, "what is wrong"] = "none") -> None:
        super().__init__()
        self.shape = shape
        self.fault = fault
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, Visibility(causal=shape.causal), ScoreOptions())

    def forward(self, x: Any, ctx: Context) -> Any:
        return (1 + self.amount() / 100) * self.heads.merge(self.attend(self.heads, x, ctx))

    def amount(self) -> float:
        match self.fault:
            case "none":
                return 0.0
            case "hash":
                return sum(place * ORDER[name] for place, name in enumerate(NAMES)) / 200
            case "variable":
                return float(os.environ.get("SCALE_OF_MINE", "1"))
            case "zone":
                return 1.0 + time.localtime().tm_hour
            case "locale":
                return 1.0 + len(os.environ.get("LC_ALL", ""))
            case "day":
                return 1.0 + DAY
            case "process":
                return os.getpid() / 1000
        return 1.0

    def start(self, batch: int, length: int, like: Any) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)


@paribus.hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"faulty": Faulty}
'''
FAULTS = ("hash", "variable", "zone", "locale", "day", "process")


def run(folder: Path, faults: tuple[str, ...], jobs: int) -> dict[str, Certificate]:
    """Run the faults as variants, one seed each, and return their certificates."""
    plugin = folder / "faulty.py"
    plugin.write_text(FAULTY)
    study = {
        "base": {
            "preset": "gpt-tiny",
            "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16},
            "data": {"batch": 4, "validation": 8},
            "attention": {"name": "faulty"},
        },
        "vary": {"attention.fault": list(faults)},
        "seeds": 1,
        "budget": {"steps": 2},
        "metric": "val/clm/loss",
    }
    planned = paribus.study(study, registry=index(plugins=[plugin]), store=folder / "runs")
    paribus.run(planned, jobs=jobs, plugins=Plugins(files=(str(plugin),)))
    return {name.rpartition("=")[2]: item for name, item in paribus.compare(planned).settings[0].certificates.items()}


@pytest.mark.parametrize(
    "faults", [pytest.param(("hash",), marks=pytest.mark.thorough), pytest.param(FAULTS, marks=pytest.mark.slow)]
)
def test_a_step_that_depends_on_its_process_withholds_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SCALE_OF_MINE", "2")
    assert VARIABLE not in os.environ
    certificates = run(tmp_path, ("louder", *faults), jobs=1)
    reasons = {name: certificate.reason for name, certificate in certificates.items()}
    assert reasons == {"louder": "", **dict.fromkeys(faults, "not repeatable")}
    assert "first steps repeated in another process" in certificates["louder"].text
    assert "gradients (body.layers.0" in certificates["hash"].text


@pytest.mark.slow
def test_a_value_that_each_process_has_of_its_own_refuses_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FAULTY.replace("os.getpid() / 1000", "PROCESS / 1000") + "PROCESS = os.getpid()\n"
    monkeypatch.setattr(sys.modules[__name__], "FAULTY", faulty)
    with raises_problem(NotComparableError, "no-records", "attention.faulty", "faulty.py: PROCESS"):
        run(tmp_path, ("louder",), jobs=1)


@pytest.mark.slow
def test_where_all_trials_start_at_once_the_first_steps_are_repeated_beside_them(tmp_path: Path) -> None:
    certificates = run(tmp_path, ("hash",), jobs=2)
    assert certificates["hash"].reason == "not repeatable"
    assert "first step of baseline" in certificates["hash"].text


@pytest.mark.slow
def test_a_variant_that_needs_the_environment_of_the_user_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE_OF_MINE", "2")
    monkeypatch.setattr(sys.modules[__name__], "FAULTY", FAULTY + 'NEEDED = os.environ["SCALE_OF_MINE"]\n')
    certificate = run(tmp_path, ("louder",), jobs=1)["louder"]
    assert certificate.ok
    assert "first step of attention.fault=louder not repeated in another process" in certificate.side_effects
