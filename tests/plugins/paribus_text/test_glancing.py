"""A glance at files: it says the same as long as they hold the same, or nothing."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paribus.train.token_store import encode_corpus
from paribus_text import glancing
from paribus_text.bytes import Bytes
from paribus_text.text import Text

TEXTS = [f"Paragraph {number} stands here." for number in range(30)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Text:
    """A large one, and an old one."""
    monkeypatch.setattr(glancing, "LARGE", 100)
    monkeypatch.setattr(glancing, "SETTLED", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    return Text(path=("*.txt",), documents="paragraph")


def test_a_file_that_changed_is_seen_whatever_its_time_says(corpus: Text) -> None:
    before, old = corpus.quick_fingerprint(), Path("a.txt").stat()
    assert before is not None
    assert corpus.quick_fingerprint() == before
    text = Path("a.txt").read_text()
    Path("a.txt").write_text(text.replace("29", "92"))
    os.utime("a.txt", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert corpus.quick_fingerprint() not in (before, None)


def test_other_options_and_other_files_are_another_glance(corpus: Text) -> None:
    found = {
        corpus.quick_fingerprint(),
        Text(path=("*.txt",)).quick_fingerprint(),
        Text(path=("a.txt",), documents="paragraph").quick_fingerprint(),
    }
    Path("b.txt").write_text("One more.")
    assert len(found | {corpus.quick_fingerprint(), None}) == 5


def test_small_and_young_files_are_read(corpus: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glancing, "SETTLED", 60.0)
    assert corpus.quick_fingerprint() is None
    monkeypatch.setattr(glancing, "SETTLED", 0.0)
    monkeypatch.setattr(glancing, "LARGE", 1 << 30)
    assert corpus.quick_fingerprint() is None


def test_what_was_glanced_at_is_not_read_again(corpus: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    fingerprint = Text.fingerprint

    def noted(self: Text) -> str:
        reads["all"] += 1
        return fingerprint(self)

    monkeypatch.setattr(Text, "fingerprint", noted)

    def build() -> Any:
        return encode_corpus(
            Text(path=("*.txt",), documents="paragraph"), Bytes(), spec=None, size=None, cache=tmp_path / "c"
        )

    first = build()
    assert reads["all"] == 1  # and not another time when all was encoded
    assert build().fingerprint == first.fingerprint == fingerprint(corpus)
    assert reads["all"] == 1
    time.sleep(0.01)
    Path("a.txt").write_text("\n\n".join(TEXTS[1:]))
    assert build().fingerprint != first.fingerprint
    assert reads["all"] == 2
