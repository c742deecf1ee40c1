"""Models of the `transformers` library, converted: the same numbers come out, and the same model goes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, LENGTH, VOCABULARY, Case
from tests.twins.double import keep_double
from torch import Tensor, nn

import paribus
from paribus import PADDING, Stream
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import into_theirs
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.train.assemble import meta_model
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

ALL = [
    pytest.param(family, case, id=f"{family}, {case.said}")
    for family, cases in CASES.items()
    for case in cases
    if case.reads == "tokens"
]
every_case = pytest.mark.parametrize(("family", "case"), ALL)

Shake = Callable[[nn.Module], nn.Module]
Note = Callable[[str, str, Tensor, Tensor], None]


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_double(monkeypatch)


@pytest.fixture
def twins(case: Case, shake: Shake, components: Registry) -> tuple[Model, Any]:
    """Ours, converted from theirs in memory, and theirs."""
    theirs = shake(case.made)
    return paribus.convert(theirs, registry=components).eval(), theirs


def drawn(length: int, rows: int = 3) -> Tensor:
    return torch.randint(7, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def test_every_family_has_a_twin(components: Registry) -> None:
    assert families(components).keys() == CASES.keys()


def test_the_table_names_every_family_and_case() -> None:
    written = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
    for family, cases in CASES.items():
        assert f"| `{family}` | {'; '.join(case.said for case in cases)} |" in written, "run `make parity`"


@every_case
def test_scores_and_hidden_states_match_the_twin(family: str, case: Case, twins: tuple[Model, Any], note: Note) -> None:
    ours, theirs = twins
    with torch.no_grad():
        for length in (1, 2, 9, LENGTH):
            tokens = drawn(length)
            source = read_by(ours)
            note(family, "scores", ours(tokens, source=source)[0], logits(asked(theirs, tokens)))
            note(family, "rows", ours.hidden(tokens, source=source), rows(theirs, tokens))


@every_case
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_hidden_as_the_twin_hides_it(
    side: str, family: str, case: Case, twins: tuple[Model, Any], note: Note
) -> None:
    ours, theirs = twins
    if theirs.config.is_encoder_decoder:
        padding_of_both_sides(side, family, case, twins, note)
        return
    tokens, lengths, place = drawn(11), torch.tensor([[11], [4], [7]]), torch.arange(11)
    text = place < lengths if side == "right" else place >= 11 - lengths
    tokens = tokens.where(text, theirs.config.pad_token_id)
    counted = (text.long().cumsum(1) - 1).clamp(min=0)
    positions = place.expand(3, -1) if case.places == "row" else counted
    told = spoken(theirs, tokens) | ({"position_ids": positions} if case.places == "given" else {})
    stream = Stream(tokens, torch.where(text, 0, PADDING), positions)
    with torch.no_grad():
        run = ours.run(Batch({"body": stream}, {}, place[:3])).of(ours.trained[0])
        found = ours.objective(ours.trained[0]).logits(run.hidden(), run.unembed)
        note(family, "scores", found[text], logits(theirs(tokens, attention_mask=text.long(), **told))[text])


@every_case
def test_gradients_match_the_twin(family: str, case: Case, twins: tuple[Model, Any], note: Note) -> None:
    ours, theirs = twins
    tokens = drawn(9)
    scores = ours(tokens, source=read_by(ours))[0]
    weights = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).view_as(scores)
    (scores * weights).sum().backward()
    (logits(asked(theirs, tokens)) * weights).sum().backward()
    named = dict(ours.named_parameters())
    moves = [move for move in families(_registry())[family].moves(ours.spec) if named[move.ours].grad is not None]
    mine = into_theirs(moves, {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None})
    learned = dict(theirs.named_parameters())
    assert {name for name, parameter in learned.items() if parameter.grad is not None} <= mine.keys()
    for name, grad in mine.items():
        if name in learned:
            theirs_of_it = learned[name].grad  # none, where theirs skips what changes nothing
            note(family, "gradients", grad, torch.zeros_like(grad) if theirs_of_it is None else theirs_of_it)


@every_case
def test_converting_back_restores_the_model(
    family: str, case: Case, twins: tuple[Model, Any], tmp_path: Path, note: Note
) -> None:
    ours, theirs = twins
    back = paribus.export(ours, family)
    unread = families(_registry())[family].of(case.model).unread
    state = {name: tensor for name, tensor in theirs.state_dict().items() if name not in unread}
    assert back.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back.tensors[name], tensor), name
    back.save(tmp_path)
    again = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        note(family, "there and back", logits(asked(again, drawn(9))), logits(asked(theirs, drawn(9))))


@every_case
def test_converting_a_folder_matches_converting_the_model(
    family: str, case: Case, twins: tuple[Model, Any], tmp_path: Path
) -> None:
    ours, theirs = twins
    theirs.save_pretrained(tmp_path)
    read = paribus.convert(tmp_path)
    assert read.spec == ours.spec
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, ours.get_parameter(name)), name


@every_case
def test_decoding_step_by_step_matches_one_pass(family: str, case: Case, twins: tuple[Model, Any], note: Note) -> None:
    ours, theirs = twins
    if not next(part.causal for part in ours.topology.parts if part.path == "body"):
        pytest.skip("only decoders go step by step")
    tokens = drawn(13)
    states = ours.start(3)
    with torch.no_grad():
        steps = [ours(chunk, states, source=read_by(ours))[0] for chunk in tokens.split([5, 1, 3, 4], dim=1)]
        note(family, "step by step", torch.cat(steps, dim=1), logits(asked(theirs, tokens)))


@pytest.mark.parametrize("family", [family for family, cases in CASES.items() if cases[0].parameters])
def test_there_are_as_many_parameters_as_were_published(family: str, components: Registry) -> None:
    case = CASES[family][0]
    own = getattr(transformers, case.model)
    with torch.device("meta"):
        theirs = own(own.config_class())
    spec = families(components)[family].spec_of(theirs.config.to_dict(), case.model)
    ours = meta_model(resolved(spec, registry=components), components)
    counted = {id(each): each.numel() for child in ours.children().values() for each in child.parameters()}
    assert sum(counted.values()) == sum(each.numel() for each in theirs.parameters()) == case.parameters


def padding_of_both_sides(side: str, family: str, case: Case, twins: tuple[Model, Any], note: Note) -> None:
    ours, theirs = twins
    streams: dict[str, Stream] = {}
    texts: dict[str, Tensor] = {}
    for part, length, lengths in (("encoder", 11, [[11], [4], [7]]), ("body", 5, [[2], [5], [4]])):
        place, many = torch.arange(length), torch.tensor(lengths)
        text = texts[part] = place < many if side == "right" else place >= length - many
        counted = (text.long().cumsum(1) - 1).clamp(min=0) if case.places == "text" else None
        tokens = drawn(length).where(text, theirs.config.pad_token_id)
        streams[part] = Stream(tokens, torch.where(text, 0, PADDING), counted)
    with torch.no_grad():
        run = ours.run(Batch(streams, {}, torch.arange(3))).of(ours.trained[0])
        found = ours.objective(ours.trained[0]).logits(run.hidden(), run.unembed)
        answer = theirs(
            input_ids=streams["encoder"].tokens,
            attention_mask=texts["encoder"].long(),
            decoder_input_ids=streams["body"].tokens,
            decoder_attention_mask=texts["body"].long(),
        )
        note(family, "scores", found[texts["body"]], answer.logits[texts["body"]])


def read_by(ours: Model) -> Tensor | None:
    """What an encoder reads, where there is one."""
    return drawn(8) if len(ours.topology.parts) > 1 else None


def asked(theirs: Any, tokens: Tensor) -> Any:
    if theirs.config.is_encoder_decoder:
        return theirs(input_ids=drawn(8), decoder_input_ids=tokens)
    return theirs(tokens, **spoken(theirs, tokens))


def spoken(theirs: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The first language, where rows have one: nobody who says none gets a row for it there."""
    return {"langs": torch.zeros_like(tokens)} if getattr(theirs.config, "n_langs", 1) > 1 else {}


def rows(theirs: Any, tokens: Tensor) -> Tensor:
    if theirs.config.is_encoder_decoder:
        found: Tensor = theirs(
            input_ids=drawn(8), decoder_input_ids=tokens, output_hidden_states=True
        ).decoder_hidden_states[-1]
    else:
        found = theirs.base_model(tokens, **spoken(theirs, tokens))[0]
    return found


def logits(found: Any) -> Tensor:
    scores: Tensor = found.prediction_logits if "prediction_logits" in found else found.logits
    return scores if scores.ndim == 3 else scores.unsqueeze(-1)  # one score a row


def _registry() -> Registry:
    from paribus.registry import installed

    return installed()
