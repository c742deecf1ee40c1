"""Planted faults that show in training only: each withholds the verdict of its variant, and of no other."""

import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from paribus import (
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    LossTerm,
    ScoreOptions,
    Shape,
    State,
    Visibility,
    softmax_cost,
)
from paribus.analysis.certificates import Certificate
from paribus.analysis.compare import compare
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.registry import Registry, installed
from paribus_objective.masked_language_modelling import MaskedLanguageModelling

Fault = Literal[
    "none",
    "louder",
    "flag",
    "torch",
    "numpy",
    "python",
    "consumes",
    "clock",
    "calendar",
    "counts",
    "reseeds",
    "reseeds all",
    "python late",
    "reseeds late",
    "hooks others",
    "hooks others late",
    "hooks modules",
    "hooks itself",
    "writes gradients",
    "scales others",
    "scales others late",
    "scales in evaluation",
    "drops",
]

REASONS = {
    "torch": "random numbers in evaluation",
    "numpy": "not repeatable; other random numbers",
    "python": "not repeatable; other random numbers",
    "consumes": "other random numbers",
    "clock": "not repeatable",
    "calendar": "not repeatable",
    "reseeds": "other random numbers; random numbers in evaluation",
    "reseeds all": "other random numbers; random numbers in evaluation",
    "python late": "other random numbers",
    "reseeds late": "other random numbers",
    "hooks others": "other training",
    "hooks others late": "other training",
    "hooks modules": "not repeatable; other training",
    "hooks itself": "has other gradients than its loss",
    "writes gradients": "not repeatable",
    "scales others": "not repeatable; changed outside of the optimizer",
    "scales others late": "changed outside of the optimizer",
    "scales in evaluation": "not repeatable; changed outside of the optimizer",
    "drops": "other targets",
}
SOUND = ("louder",)
LOUDER = 1.01
LATE = 3  # step


@final
class Flags:
    """State of this process, through which one component changes another."""

    drops: ClassVar[bool] = False
    factor: ClassVar[float] = 1.0


@final
class Faulty(Attention):
    """Multi-head attention with one of the faults."""

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": ["rotate", "bias"],
        "causal": True,
        "residual": True,
        "documents": True,
        "order": True,
    }

    def __init__(self, shape: Shape, *, fault: Annotated[Fault, "what is wrong"] = "none") -> None:
        super().__init__()
        self.shape = shape
        self.fault = fault
        self.steps = 0
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, Visibility(causal=shape.causal), ScoreOptions())

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        self.steps += self.training
        Flags.drops = self.fault == "drops"
        y = self.heads.merge(self.attend(self.heads, x, ctx))
        if self.fault == "writes gradients" and y.requires_grad:
            y.register_hook(lambda gradient: Variable._execution_engine.queue_callback(scale_accumulated))
        return y * self.factor() if self.fault != "torch" else y + 0.01 * torch.randn_like(y)

    def factor(self) -> float:
        match self.fault:
            case "numpy":
                return 1 + 0.01 * np.random.rand()  # the fault
            case "python":
                return 1 + 0.01 * random.random()
            case "consumes":
                random.random()
            case "clock":
                return 1 + 0.1 * math.sin(time.time())
            case "calendar":
                return 1.2 if datetime.fromtimestamp(time.time(), UTC).toordinal() % 2 else 1.1
            case "reseeds":
                torch.manual_seed(0)
            case "reseeds all":
                random.seed(0)
                np.random.seed(0)  # the fault
                torch.manual_seed(0)
            case "scales others" if self.training and self.steps == 1:
                scale_tables()
            case "scales others late" if self.training and self.steps == LATE:
                scale_tables()
            case "scales in evaluation" if not self.training:
                scale_tables()
        return 1.0 if self.fault == "none" else self.later_factor()

    def later_factor(self) -> float:
        match self.fault:
            case "flag":
                return Flags.factor
            case "python late" if self.training and self.steps == LATE:
                return 1 + 0.01 * random.random()
            case "reseeds late" if self.training and self.steps == LATE:
                torch.manual_seed(0)
            case "hooks others" if self.training and self.steps == 1:
                scale_gradients()
            case "hooks others late" if self.training and self.steps == LATE:
                scale_gradients()
            case "hooks modules" if self.training and self.steps == 1:
                scale_outputs()
            case "hooks itself" if self.training and self.steps == 1:
                self.heads.q.weight.register_hook(lambda gradient: gradient * 1.5)
        return LOUDER

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)


def tables() -> list[nn.Embedding]:
    return [item for item in gc.get_objects() if type(item) is nn.Embedding]


def tables_of_these_tests() -> Iterator[nn.Embedding]:
    """Yield all tables that were made since the tests of this file began, whichever model they belong to."""
    for table in tables():
        if not any(table is other for other in TABLES_OF_OTHER_TESTS):
            yield table


def scale_tables() -> None:
    for table in tables_of_these_tests():
        with torch.no_grad():
            table.weight.mul_(1.5)


def scale_gradients() -> None:
    for table in tables_of_these_tests():
        if table.weight.requires_grad and not table.weight._backward_hooks:
            table.weight.register_hook(lambda gradient: gradient * 1.5)


def scale_accumulated() -> None:
    for table in tables_of_these_tests():
        if table.weight.grad is not None:
            table.weight.grad.mul_(1.5)


def scale_outputs() -> None:
    for table in tables_of_these_tests():
        if not table._forward_hooks:
            table.register_forward_hook(lambda module, arguments, output: output * 1.5)


TABLES_OF_OTHER_TESTS: list[nn.Embedding] = []


@pytest.fixture(scope="module", autouse=True)
def spare_other_tests() -> Iterator[None]:
    TABLES_OF_OTHER_TESTS.extend(tables())
    yield
    TABLES_OF_OTHER_TESTS.clear()


@pytest.fixture(scope="module", name="registry")
def _registry() -> Registry:
    return installed().with_components(attention={"faulty": Faulty})


@pytest.fixture(autouse=True)
def _flagged_objective(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the objective drop its hardest half where the flag of the process is set."""
    forward = MaskedLanguageModelling.forward

    def easier(self: Any, run: Any) -> dict[str, LossTerm]:
        terms = dict(forward(self, run))
        if not Flags.drops:
            return terms
        return {name: LossTerm(term.total / 4, term.count // 2, term.weight) for name, term in terms.items()}

    monkeypatch.setattr(MaskedLanguageModelling, "forward", easier)
    yield
    Flags.drops = False


@pytest.fixture(scope="module", name="plain")
def _plain(train_entry: Callable[..., TrialEntry]) -> TrialEntry:
    return train(train_entry, "none")


def train(train_entry: Callable[..., TrialEntry], fault: str) -> TrialEntry:
    """Train the attention with a fault, and with dropout, whose masks are drawn at each step."""
    changes = {"attention": {"name": "faulty", "fault": fault}} if fault != "none" else {"attention": "faulty"}
    name = "baseline" if fault == "none" else fault
    return train_entry(name, {"attention": {"name": "faulty", "fault": fault}, "dropout": 0.1}, changes)


def certificates(entries: list[TrialEntry]) -> dict[str, Certificate]:
    """Return the certificates of the table of all variants."""
    comparison = ComparisonSpec(
        study="faults",
        baseline="baseline",
        metric="val/mlm/loss",
        variants={entry.variant: entry.overrides for entry in entries},
        seeds=(0,),
    )
    return dict(compare(entries, comparison).certificates)


@pytest.mark.thorough
def test_each_fault_withholds_the_verdict_of_its_variant_only(
    train_entry: Callable[..., TrialEntry], plain: TrialEntry
) -> None:
    trained = [train(train_entry, fault) for fault in (*SOUND, *REASONS)]
    results = certificates([plain, *trained])
    reasons = {name: set(certificate.reason.split("; ")) for name, certificate in results.items()}
    assert [reasons.pop(name) for name in SOUND] == [{""}] * len(SOUND)
    assert reasons.keys() == REASONS.keys()
    for name, reason in REASONS.items():  # what a fault does at the first step may break several properties
        assert reasons[name] >= set(reason.split("; ")), name


@pytest.mark.thorough
def test_a_first_step_that_depends_on_the_optimizer_withholds_the_verdict(
    train_entry: Callable[..., TrialEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a study of optimizers varies cannot change the gradients of the first step."""
    entries = []
    for name, rate, factor in (("baseline", 1e-3, 1.0), ("faster", 2e-3, 1.0), ("faulty", 3e-3, LOUDER)):
        monkeypatch.setattr(Flags, "factor", factor)
        options = {"attention": {"name": "faulty", "fault": "flag"}, "optimizer": {"name": "adamw", "lr": rate}}
        entries.append(train_entry(name, options, {"optimizer.lr": rate}))
    reasons = {name: certificate.reason for name, certificate in certificates(entries).items()}
    assert reasons == {"faster": "", "faulty": "other gradients"}
