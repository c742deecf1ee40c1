"""Content of a `tokenizer.json` for the tokenizers that are trained here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from paribus import Vocabulary
from paribus_text.reserved_tokens import display_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

WORD: Final = r"[^\s\x1c-\x1f]"  # `\s` of the library lacks the separators of ASCII, which Python has
SPACE: Final = r"[\s\x1c-\x1f]"


def numbered_tokens(vocabulary: Vocabulary, pieces: Iterable[str], first: int) -> dict[str, int]:
    """Return the id of every token: those of special tokens by the names that `decode` shows, then the pieces.

    A piece that is spelled like a special token gets brackets around it: such a text is read as the special token.
    """
    tokens = {name: token for token, name in sorted(display_names(vocabulary).items())}
    for token, piece in enumerate(pieces, start=first):
        name = piece
        while name in tokens:
            name = f"<{name}>"
        tokens[name] = token
    return tokens


def library_json(vocabulary: Vocabulary, model: Any, **parts: Any) -> str:
    """Return the file of a model of the library with its `normalizer`, `pre_tokenizer`, `decoder` …, and the special
    tokens of the vocabulary.
    """
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library

    library: Library = Library(model)
    for part, value in parts.items():
        setattr(library, part, value)
    names: Mapping[int, str] = display_names(vocabulary)
    library.add_special_tokens([AddedToken(names[token], special=True, normalized=False) for token in sorted(names)])
    return library.to_str()
