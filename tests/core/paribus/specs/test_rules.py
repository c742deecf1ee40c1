"""Rules between components: combinations that would be ignored, trivial or impossible are refused."""

from collections.abc import Callable

import pytest

from paribus.registry import Index
from paribus.specs import resolved
from paribus.specs.attention_rules import partly_read_positions
from paribus.specs.resolve import RULES

ErrorText = Callable[..., str]


@pytest.mark.parametrize("rule", RULES)
def test_the_docstring_of_every_rule_is_one_sentence(rule: Callable[..., object]) -> None:
    doc = (rule.__doc__ or "").strip()
    assert doc.endswith(".")
    assert "\n" not in doc


@pytest.mark.parametrize(
    ("base", "overrides", "expected"),
    [
        (
            "base",
            ["attention=fourier"],
            "error[does-not-fit] position (base.yaml:9): position `rope` rotates queries and keys, "
            "which attention `fourier` does not support, so it would be ignored; valid: with "
            "attention `fourier`, position learned,",
        ),
        (
            "base",
            ["position=xpos"],
            "error[does-not-fit] position (override 1): position `xpos` needs a causal mask, but "
            "tokens of the encoder see later tokens too; valid: position learned, none, rope, shaw",
        ),
        (
            "seq",
            ["parts.decoder.cross.position=xpos"],
            "parts.decoder.cross.position (override 1): position `xpos` needs a causal mask, but the "
            "cross-attention of the decoder sees later",
        ),
        ("base", ["position=shaw"], "position `shaw` adds to the values, which attention `mha` does"),
        ("base", ["position=xl"], "position `xl` reads queries and keys, which attention `mha` does"),
        (
            "gpt",
            ["attention=fourier", "position=none"],
            "error[does-not-fit] attention (override 1): the decoder is causal, but attention "
            "`fourier` has no causal mask; valid: gqa, mha, wide, window",
        ),
        (
            "base",
            ["attention=zipped"],
            "the encoder is bidirectional, but attention `zipped` is always causal; valid: fourier, gqa, mha, short",
        ),
        (
            "seq",
            ["attention=window", "attention.window=4"],
            "attention `window` cannot attend to another stack, as parts.decoder.cross.attention "
            "must; valid: parts.decoder.cross.attention=gqa, mha, wide",
        ),
        (
            "seq",
            ["parts.decoder.cross.position=learned"],
            "adds to the embeddings, which the cross-attention `mha` does",
        ),
        (
            "base",
            ["attention=fourier", "position=none", "data.documents=apart"],
            "data.documents is apart, but attention `fourier` does not mask other documents; valid: gqa, mha, wide",
        ),
        (
            "base",
            ["attention=fourier", "position=none", "objective=nsp"],
            "objective `nsp` pads its examples, but attention `fourier` does not mask padding; valid: gqa, mha, short",
        ),
        (
            "base",
            ["attention=short", "position=none", "objective=pick"],
            "objective `pick` has several documents in an example, but attention `short` does not mask other "
            "documents; valid: gqa, mha, wide",
        ),
        (
            "base",
            ["attention=short", "position=none", "objective=nsp", "data.documents=apart"],
            "data.documents is apart, but attention `short` does not mask other documents; valid: gqa, mha, wide",
        ),
        (
            "base",
            ["attention=short", "position=none", "data.documents=packed"],
            "data.documents is packed, but attention `short` does not mask other documents; valid: gqa, mha, wide",
        ),
        (
            "base",
            ["objective=[mlm, nsp]", "embedding.segments=2", "data.documents=packed"],
            "error[does-not-fit] data.documents (override 3): data.documents is packed, but "
            "objective `nsp` forms its own segments; valid: mixed or apart, or objective clm",
        ),
        (
            "seq",
            ["data.documents=packed"],
            "data.documents is packed, but objective `spans` makes other examples of them",
        ),
        (
            "base",
            ["data.bucket=2"],
            "error[unused-option] data.bucket (override 1): data.bucket groups examples by length, but "
            "those of objective `mlm` all have the same length; valid: 0, or an objective that pads "
            "its examples",
        ),
        (
            "base",
            ["attention=wide"],
            "attention `wide` does not return the model width, so no norm placement applies",
        ),
        (
            "gpt",
            ["objective=mlm"],
            "error[does-not-fit] objective (override 1): objective `mlm` needs bidirectional "
            "attention, but tokens of `decoder` see only previous ones; valid: objective clm, split "
            "with topology decoder; topology bare, encoder with objective mlm",
        ),
        (
            "base",
            ["objective=clm"],
            "objective `clm` predicts the next token, which tokens of `encoder` see: the loss would "
            "be trivial; valid: objective mlm, nsp, pick, sop with topology encoder; topology chain, "
            "decoder with objective clm",
        ),
        (
            "gpt",
            ["objective=spans"],
            "objective `spans` reads the stack `encoder`, which the topology `decoder` does not "
            "have; valid: objective clm, split with topology decoder; topology pair with objective "
            "spans",
        ),
        (
            "base",
            ["objective=spans"],
            "objective `spans` reads the stack `encoder`, which the topology `encoder` does not",
        ),
        ("seq", ["objective=clm"], "objective `clm` has no input for the encoder of `pair`"),
        (
            "base",
            ["evaluate=[clm]"],
            "error[does-not-fit] evaluate.0 (override 1): objective `clm` predicts the next",
        ),
        (
            "base",
            ["objective=[nsp, sop]"],
            "objective.1 (override 1): objective `sop` forms the examples, and so does objective `nsp`",
        ),
        (
            "base",
            ["objective=[mlm, spans]"],
            "objective `spans` changes what the model sees, and so does objective `mlm`; valid: one "
            "of the two, or one objective that does both",
        ),
        (
            "base",
            ["tokenizer=plain"],
            "objective `mlm` needs `mask`, which the tokenizer `plain` does not have; valid: tokenizer bytes",
        ),
        (
            "base",
            ["objective=nsp", "corpus=lines"],
            "objective `nsp` needs `sentences`, which the corpus `lines` does not have; valid: corpus docs",
        ),
        (
            "base",
            ["objective=nsp", "corpus=rows"],
            "objective `nsp` needs `sentences`, which the corpus `rows` has only if `split` is set; "
            "valid: corpus.split=…",
        ),
        (
            "base",
            ["objective=nsp", "corpus=prose"],
            "objective `nsp` needs `sentences`, which the corpus `prose` has only if `split` is set; "
            "valid: corpus.split=true",
        ),
        (
            "base",
            ["objective=nsp", "corpus=tasks"],
            "objective `nsp` needs `sentences`, which the corpus `tasks` has only with some values of `split`; "
            "valid: corpus.split=one, corpus.split=two",
        ),
        (
            "base",
            ["dims.vocabulary=6"],
            "error[out-of-range] dims.vocabulary (override 1): `dims.vocabulary` (6) is too small: "
            "tokenizer `bytes` needs 2 specials, 4 sentinels; valid: at least 7, one of them for text",
        ),
        (
            "seq",
            ["parts.encoder.dims.width=32"],
            "parts.encoder.dims.width (override 1): the encoder has width 32 and the decoder 64, but "
            "embedding `tokens` supports only one width; valid: 64, or embedding narrow",
        ),
        (
            "gpt",
            ["objective=split", "attention=zigzag"],
            "objective `split` has a factorisation order, but attention `zigzag` has no "
            "factorisation order; valid: gqa, mha, wide, window",
        ),
        (
            "base",
            [
                *("topology=chain", "objective=split", "attention=null", "position=null", "norm=null"),
                *("placement=null", "feedforward=null"),
            ],
            "objective `split` needs attention, but `chain` is recurrent; valid: topology decoder, pair",
        ),
        (
            "seq",
            ["objective=split", "attention=fourier", "position=none"],
            "objective `split` pads its examples, but attention `fourier` does not mask padding",
        ),
        ("base", ["objective=nsp", "embedding.segments=1"], "has two segments, but `embedding.segments` is 1"),
    ],
)
def test_an_invalid_combination_is_refused_with_the_reason_and_the_valid_values(
    error_text: ErrorText, base: str, overrides: list[str], expected: str
) -> None:
    assert expected in error_text(base, *overrides)


@pytest.mark.parametrize(
    ("base", "overrides"),
    [
        ("base", ["attention=fourier", "position=learned"]),
        ("base", ["attention=[fourier, mha]"]),
        ("base", ["attention=short", "position=none", "objective=nsp"]),
        ("base", ["attention=[mha, window]", "attention.1.window=3"]),
        ("base", ["objective=[mlm, nsp]", "embedding.segments=2", "data.documents=apart"]),
        ("base", ["objective=[mlm, nsp]", "embedding.segments=2", "data.bucket=9"]),
        ("base", ["data.documents=packed"]),
        ("gpt", ["data.documents=packed"]),
        ("base", ["parts.encoder.dims.width=32"]),
        ("seq", ["parts.encoder.dims.width=32", "embedding=narrow"]),
        ("base", ["objective=nsp", "corpus=silent"]),
        ("base", ["objective=nsp", "corpus=rows", "corpus.split=lines"]),
        ("base", ["dims.vocabulary=7"]),
        ("seq", []),
        ("seq", ["attention=window", "attention.window=4", "parts.decoder.cross.attention=mha"]),
        ("seq", ["parts.decoder.position=none", "parts.encoder.position=learned"]),
        ("gpt", ["attention=gqa"]),
        ("gpt", ["objective=split"]),
        ("seq", ["objective=split"]),
        ("seq", ["objective=split", "attention=zigzag"]),
        ("gpt", ["position=xpos"]),
        ("seq", ["parts.decoder.position=xpos"]),
    ],
)
def test_a_valid_combination_is_accepted(error_text: ErrorText, base: str, overrides: list[str]) -> None:
    assert error_text(base, *overrides) == ""


def test_only_components_of_the_same_layer_are_compared(error_text: ErrorText) -> None:
    assert error_text("base", "attention=[mha, fourier]", "position=[rope, none]") == ""
    assert "does not support" in error_text("base", "attention=[mha, fourier]", "position=[none, rope]")


def test_layers_that_read_a_position_are_named(index: Index) -> None:
    def read(*overrides: str) -> list[str]:
        return list(partly_read_positions(resolved("base", *overrides, registry=index), index))

    assert read("attention=[fourier, mha]", "dims.layers=4") == ["rope in layers 2, 4 of 4 of the encoder"]
    assert not read("attention=[fourier, mha]", "position=learned")
    assert not read("attention=[fourier, mha]", "position=[none, rope]")


def test_rules_are_checked_in_spite_of_other_mistakes(error_text: ErrorText) -> None:
    message = error_text("gpt", "objective=mlm", "dims.heads=x", "dims.layers=y", "data=7", "norm=nothing", "parts=8")
    assert "needs bidirectional attention, but tokens of `decoder` see only" in message
    assert "dims.heads" in message
