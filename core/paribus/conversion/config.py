"""The configuration of a model elsewhere, read key by key: what nobody reads is told of, and never dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple, final

from paribus.errors import Problem, SpecError, join_names

GENERIC: Final = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
        "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
        "early_stopping", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
        "forced_eos_token_id", "id2label", "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length",
        "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
        "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
        "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
        "suppress_tokens", "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype",
        "torchscript", "transformers_version", "typical_p", "use_bfloat16", "use_cache",
    }
)  # fmt: skip
"""What every family of the `transformers` library may have, and what changes nothing that a model computes."""


def same(value: Any) -> Any:
    return value


class Key(NamedTuple):
    """One of their keys and the place in a spec that says the same."""

    theirs: str
    ours: str  # dotted: "dims.width"
    default: Any  # theirs, where a configuration leaves it out
    values: Mapping[Any, Any] | None = None  # ours by theirs, where the two spell it differently
    read: Callable[[Any], Any] = same  # theirs -> ours, where it is a number that is counted differently
    write: Callable[[Any], Any] = same
    times: tuple[str, str] | None = (
        None  # where ours is null, it is the one place times the other: a width, by `expand`
    )


@final
class Config:
    """Their configuration, which remembers what was read of it, and collects what cannot be."""

    def __init__(self, given: Mapping[str, Any], family: str) -> None:
        self.given = given
        self.family = family
        self.problems: list[Problem] = []
        self._read: set[str] = set(GENERIC)
        self._said: dict[str, str] = {}  # which of their keys decided a place of ours

    def take(self, name: str, default: Any) -> Any:
        """Their value, or what they mean where they leave it out."""
        self._read.add(name)
        return self.given.get(name, default)

    def only(self, name: str, value: Any) -> None:
        """A key that we have at one value alone."""
        found = self.take(name, value)
        if found != value:
            self.wrong(name, f"`{name}` is {found!r}, which no component here does", repr(value))

    def ignore(self, names: Iterable[str]) -> None:
        self._read.update(names)

    def put(self, spec: MutableMapping[str, Any], key: Key) -> None:
        """What one of their keys says, where the spec says it."""
        found = self.take(key.theirs, key.default)
        if key.values is not None:
            if found not in key.values:
                self.wrong(
                    key.theirs, f"`{key.theirs}` is {found!r}, which no component here does", join_names(key.values)
                )
                return
            value = key.values[found]
        else:
            value = key.read(found)
        before = at(spec, key.ours)
        if key.ours in self._said and before != value:
            what = f"`{key.theirs}` is {found!r} and `{self._said[key.ours]}` {before!r}, but here `{key.ours}` is both"
            self.wrong(key.theirs, what, f"one value for the two: {key.theirs}={before!r} when you convert")
            return
        self._said[key.ours] = key.theirs
        place(spec, key.ours, value)

    def wrong(self, name: str, what: str, valid: str = "") -> None:
        self.problems.append(Problem(code="unsupported-option", path=name, message=what, valid=valid))

    def done(self) -> None:
        """Raises what could not be read, and what nobody read: an option of theirs that we would lose."""
        for name in sorted(set(self.given) - self._read):
            what = f"`{name}` ({self.given[name]!r}) is an option that is not known here of the family `{self.family}`"
            self.problems.append(Problem(code="unknown-option", path=name, message=what))
        if self.problems:
            raise SpecError(*self.problems)


def at(spec: Mapping[str, Any], dotted: str) -> Any:
    """What a spec says at a place; None where it says nothing."""
    found: Any = spec
    for word in dotted.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found


def place(spec: MutableMapping[str, Any], dotted: str, value: Any) -> None:
    *outer, last = dotted.split(".")
    inner: Any = spec
    for word in outer:
        inner = inner.setdefault(word, {})
    inner[last] = value
