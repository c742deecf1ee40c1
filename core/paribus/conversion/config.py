"""Hugging Face configurations, read key by key. Unread keys are errors, so that none is lost."""

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
"""Keys that every family of `transformers` may have and that do not change the outputs."""


def same(value: Any) -> Any:
    return value


class Key(NamedTuple):
    """Key of a configuration, and its path in a spec."""

    theirs: str
    ours: str  # dotted: "dims.width"
    default: Any  # value if the configuration does not have the key
    values: Mapping[Any, Any] | None = None  # values of the spec by those of the configuration
    read: Callable[[Any], Any] = same  # from configuration to spec
    write: Callable[[Any], Any] = same
    times: tuple[str, str] | None = (
        None  # where ours is null, it is the one place times the other: a width, by `expand`
    )


@final
class Config:
    """Configuration that records which keys were read, and collects problems."""

    def __init__(self, values: Mapping[str, Any], family: str) -> None:
        self.given = values
        self.family = family
        self.problems: list[Problem] = []
        self._read: set[str] = set(GENERIC)
        self._said: dict[str, str] = {}  # the configuration key of each path of the spec

    def take(self, name: str, default: Any) -> Any:
        """Return a value, or its default."""
        self._read.add(name)
        return self.given.get(name, default)

    def only(self, name: str, value: Any) -> None:
        """Require that a key has the only supported value."""
        actual = self.take(name, value)
        if actual != value:
            self.wrong(name, f"`{name}` is {actual!r}, which no component supports", repr(value))

    def ignore(self, names: Iterable[str]) -> None:
        self._read.update(names)

    def put(self, spec: MutableMapping[str, Any], key: Key) -> None:
        """Read a key into the spec."""
        hf_value = self.take(key.theirs, key.default)
        if key.values is not None:
            if hf_value not in key.values:
                self.wrong(
                    key.theirs, f"`{key.theirs}` is {hf_value!r}, which no component supports", join_names(key.values)
                )
                return
            value = key.values[hf_value]
        else:
            value = key.read(hf_value)
        previous = at(spec, key.ours)
        if key.ours in self._said and previous != value:
            other = self._said[key.ours]
            message = f"`{key.theirs}` is {hf_value!r} and `{other}` {previous!r}, but `{key.ours}` has one value"
            self.wrong(key.theirs, message, f"one value for the two: {key.theirs}={previous!r} when you convert")
            return
        self._said[key.ours] = key.theirs
        place(spec, key.ours, value)

    def wrong(self, name: str, message: str, valid: str = "") -> None:
        self.problems.append(Problem(code="unsupported-option", path=name, message=message, valid=valid))

    def done(self) -> None:
        """Raise all problems, with one for each unread key."""
        for name in sorted(set(self.given) - self._read):
            message = f"`{name}` ({self.given[name]!r}) is an unknown option of the family `{self.family}`"
            self.problems.append(Problem(code="unknown-option", path=name, message=message))
        if self.problems:
            raise SpecError(*self.problems)


def at(spec: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a spec at a dotted path, or None."""
    value: Any = spec
    for word in dotted.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def place(spec: MutableMapping[str, Any], dotted: str, value: Any) -> None:
    *outer, last_key = dotted.split(".")
    inner: Any = spec
    for word in outer:
        inner = inner.setdefault(word, {})
    inner[last_key] = value
