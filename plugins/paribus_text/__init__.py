"""Tokenizers and corpora of text, and of images as text.

The import loads neither torch nor optional libraries; those are imported where they are used.
"""

from collections.abc import Mapping

from paribus import Corpus, Tokenizer, hookimpl, registered
from paribus_text.byte_pair import BytePair as bpe
from paribus_text.bytes import Bytes as bytes
from paribus_text.cloze import Cloze as cloze
from paribus_text.code_words import CodeWords as code_words
from paribus_text.conll import Conll as conll
from paribus_text.continuations import Continuations as continuations
from paribus_text.datasets import Datasets as datasets
from paribus_text.dates import Dates as dates
from paribus_text.digits import Digits as digits
from paribus_text.follows import Follows as follows
from paribus_text.glue import Glue as glue
from paribus_text.in_context import InContext as in_context
from paribus_text.message_catalogues import MessageCatalogues as gettext
from paribus_text.multiple_choice import MultipleChoice as multiple_choice
from paribus_text.overlap import Overlap as overlap
from paribus_text.pixels import Pixels as pixels
from paribus_text.python_docs import PythonDocs as python_docs
from paribus_text.sections import Sections as sections
from paribus_text.shapes import Shapes as shapes
from paribus_text.squad import Squad as squad
from paribus_text.symbols import Symbols as symbols
from paribus_text.table import Table as table
from paribus_text.text import Text as text
from paribus_text.text_to_text import TextToText as text_to_text
from paribus_text.token_files import TokenFiles as tokens
from paribus_text.token_ids import TokenIds as ids
from paribus_text.tokenizer_file import TokenizerFile as file
from paribus_text.unigram import Unigram as unigram
from paribus_text.word_order import WordOrder as word_order
from paribus_text.word_piece import WordPiece as wordpiece


@hookimpl
def corpus() -> Mapping[str, type[Corpus]]:
    return registered(globals(), Corpus)


@hookimpl
def tokenizer() -> Mapping[str, type[Tokenizer]]:
    return registered(globals(), Tokenizer)
