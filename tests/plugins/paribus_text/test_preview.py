"""Preview of files: equal for equal contents, or None."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paribus.datamodule.token_store import encode_corpus
from paribus_text import preview
from paribus_text.bytes import Bytes
from paribus_text.text import Text

TEXTS = [f"Paragraph {number} stands here." for number in range(30)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Text:
    """A corpus that counts as large and old."""
    monkeypatch.setattr(preview, "MINIMUM_BYTES", 100)
    monkeypatch.setattr(preview, "MINIMUM_AGE", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    return Text(path=("*.txt",), documents="paragraph")


def test_a_changed_file_has_another_preview_even_with_the_same_time(corpus: Text) -> None:
    summary, old = corpus.quick_fingerprint(), Path("a.txt").stat()
    assert summary is not None
    assert corpus.quick_fingerprint() == summary
    text = Path("a.txt").read_text()
    Path("a.txt").write_text(text.replace("29", "92"))
    os.utime("a.txt", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert corpus.quick_fingerprint() not in (summary, None)


def test_other_options_and_files_have_other_previews(corpus: Text) -> None:
    previews = {
        corpus.quick_fingerprint(),
        Text(path=("*.txt",)).quick_fingerprint(),
        Text(path=("a.txt",), documents="paragraph").quick_fingerprint(),
    }
    Path("b.txt").write_text("One more.")
    assert len(previews | {corpus.quick_fingerprint(), None}) == 5


def test_small_and_new_files_have_no_preview(corpus: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "MINIMUM_AGE", 60.0)
    assert corpus.quick_fingerprint() is None
    monkeypatch.setattr(preview, "MINIMUM_AGE", 0.0)
    monkeypatch.setattr(preview, "MINIMUM_BYTES", 1 << 30)
    assert corpus.quick_fingerprint() is None


def test_a_corpus_with_the_same_preview_is_not_read_again(
    corpus: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    fingerprint = Text.fingerprint

    def counting(self: Text) -> str:
        reads["all"] += 1
        return fingerprint(self)

    monkeypatch.setattr(Text, "fingerprint", counting)

    def build() -> Any:
        return encode_corpus(
            Text(path=("*.txt",), documents="paragraph"), Bytes(), spec=None, size=None, cache=tmp_path / "c"
        )

    first = build()
    assert reads["all"] == 1
    assert build().fingerprint == first.fingerprint == fingerprint(corpus)
    assert reads["all"] == 1
    time.sleep(0.01)
    Path("a.txt").write_text("\n\n".join(TEXTS[1:]))
    assert build().fingerprint != first.fingerprint
    assert reads["all"] == 2
