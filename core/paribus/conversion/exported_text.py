"""Text side of an exported model: its tokenizer, the ids of special tokens, and the settings of generation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from paribus.conversion.source_model import ROLES, SourceTokenizer
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import Problem, SpecError, join_names
from paribus.inference.prompts import build_prompts
from paribus.models.lightning_module import Model
from paribus.slots.family import Family
from paribus.slots.objective import GenerationTarget, Prompt
from paribus.slots.tokenizer import Vocabulary

_CONFIGURED: Final = ("pad", "bos", "eos", "cls", "sep")  # roles with an id in `config.json`
_OFFSETS: Final = "ByteLevel"  # post-processor that adds no tokens


class Marks(NamedTuple):
    """Ids that a model reads before and after a text."""

    before: Sequence[int] = ()
    after: Sequence[int] = ()


def exported_tokenizer(model: Model) -> SourceTokenizer | None:
    """Return the tokenizer of a model as `transformers` reads it, with the special tokens that the model reads around
    a text; None without such a form.
    """
    content = None if model.text is None else model.text.tokenizer.tokenizer_json()
    if model.text is None or content is None:
        return None
    document = json.loads(content)
    names = {token["id"]: token["content"] for token in document.get("added_tokens") or ()}
    specials = model.text.vocabulary.specials
    has_segments = (
        model.spec["embedding"].get("segments", 0) > 1
    )  # otherwise both texts of a pair would be in segment 0
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.spec["dims"]["length"],
        "model_input_names": ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
        **{f"{role}_token": names[specials[role]] for role in ROLES if specials.get(role) in names},
    }
    post_processor = _post_processor(document.get("post_processor"), text_marks(model), names)
    if post_processor != document.get("post_processor"):
        content = json.dumps({**document, "post_processor": post_processor}, ensure_ascii=False)
    return SourceTokenizer(content, settings)


def missing_tokenizer(text: TextCodec | None, spec: Mapping[str, Any]) -> str:
    """Return the reason why an exported model has no tokenizer, and what that means."""
    name = spec["tokenizer"]["name"]
    reason = f"the tokenizer `{name}` has no such form" if text is not None else "the model has no tokenizer"
    return f"{reason}. `transformers` reads ids with the exported model, not text: `AutoTokenizer` raises an error"


def special_ids(model: Model, family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of special tokens in `config.json`; null where the vocabulary has none.

    Ids that the family requires, such as that of padding where positions depend on it, remain.
    """
    specials = {} if model.text is None else model.text.vocabulary.specials
    ids: dict[str, Any] = {f"{role}_token_id": specials.get(role) for role in _CONFIGURED}
    if "mask_token_id" in family.ignored and "mask" in specials:
        ids["mask_token_id"] = specials["mask"]
    if "pad_index" in family.ignored and "pad" not in specials:
        del ids["pad_token_id"]  # XLM needs an id, which its class has
    prompt = _empty_prompt(model)
    if prompt is not None:
        ids["eos_token_id"] = prompt.stop
    if config.get("is_encoder_decoder"):
        ids["decoder_start_token_id"] = None if prompt is None else prompt.body[0]
    indices = {f"{role}_index": token for role, token in specials.items() if f"{role}_index" in family.ignored}
    return {key: token for key, token in {**ids, **indices}.items() if config.get(key) is None}


def generation_settings(model: Model) -> dict[str, Any] | None:
    """Return `generation_config.json`, with the tokens and the length of `paribus.generate`; None: no generation."""
    prompt = _empty_prompt(model)
    if prompt is None or model.text is None:
        return None
    return {
        "bos_token_id": next(iter(prompt.source or prompt.body), None),  # read for an empty text
        "eos_token_id": prompt.stop,
        "pad_token_id": model.text.vocabulary.specials.get("pad", prompt.stop),
        "do_sample": False,
        "max_length": model.spec["dims"]["length"] + 1,  # the last token is not read
        **({} if prompt.source is None else {"decoder_start_token_id": prompt.body[0]}),
    }


def text_marks(model: Model) -> Marks:
    """Return the special tokens around a text: those of segments, or those of the prompt for generation."""
    if model.text is None:
        return Marks()
    vocabulary = model.text.vocabulary
    if any(model.objective(name).traits.get("segments") for name in model.trained):
        before, after = ([vocabulary.specials[name]] if name in vocabulary.specials else [] for name in ("cls", "sep"))
        return Marks(before, after)
    probe = _text_ids(vocabulary)
    prompt = None if _has_labels(model) else _prompt(model, probe)
    read = () if prompt is None else prompt.body if prompt.source is None else prompt.source
    starts = [start for start in range(len(read)) if list(read[start : start + len(probe)]) == probe]
    if read and not starts:
        message = (
            f"a model trained for {join_names(model.trained)} here reads a text in another order, such as reversed"
        )
        raise SpecError(Problem(code="cannot-export", path="objective", message=message, valid="texts in their order"))
    return Marks(read[: starts[0]], read[starts[0] + len(probe) :]) if starts else Marks()


def _empty_prompt(model: Model) -> Prompt | None:
    return None if model.text is None else _prompt(model, [])


def _text_ids(vocabulary: Vocabulary) -> list[int]:
    """Return two ids of text."""
    return [token for token in range(vocabulary.size) if token not in vocabulary.reserved][:2]


def _prompt(model: Model, ids: Sequence[int]) -> Prompt | None:
    """Return the prompt for generation; None if the model cannot generate, or only into a given language."""
    try:
        return build_prompts(model, [ids], GenerationTarget())[1][0]
    except SpecError:
        return None


def _has_labels(model: Model) -> bool:
    """Return True if a prompt starts with the code of a class, which the user chooses."""
    return any("labels" in model.objective(name).traits.get("needs", []) for name in model.trained)


def _post_processor(existing: Any, marks: Marks, names: Mapping[int, str]) -> Any:
    """Return the post-processor that adds the marks, unless the file has one that adds tokens."""
    tokens = [*marks.before, *marks.after]
    adds_tokens = existing is not None and existing.get("type") != _OFFSETS
    if adds_tokens or not tokens or not all(token in names for token in tokens):
        return existing
    before, after = ([_special(names[token], 0) for token in ids] for ids in (marks.before, marks.after))
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, *(_special(names[token], 1) for token in marks.after)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second],
        "special_tokens": {
            names[token]: {"id": names[token], "ids": [token], "tokens": [names[token]]} for token in tokens
        },
    }
    return template if existing is None else {"type": "Sequence", "processors": [existing, template]}


def _special(name: str, segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": segment}}
