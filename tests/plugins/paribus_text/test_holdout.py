"""Choice of held-out documents, and hashes of contents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus_text.holdout import digest, hold_out

document_sizes = st.dictionaries(st.text(), st.integers(1, 1000), min_size=2, max_size=40)
shares = st.floats(0.01, 0.5)


@given(document_sizes, shares)
def test_both_splits_have_documents(sizes: dict[str, int], share: float) -> None:
    assert 0 < len(hold_out(sizes, share)) < len(sizes)


@pytest.mark.thorough
@given(document_sizes, shares, st.randoms())
def test_the_order_of_the_documents_does_not_matter(sizes: dict[str, int], share: float, random: object) -> None:
    names = list(sizes)
    random.shuffle(names)  # type: ignore[attr-defined]  # hypothesis types it as object
    assert hold_out({name: sizes[name] for name in names}, share) == hold_out(sizes, share)


def test_about_the_share_of_the_text_is_held_out() -> None:
    sizes = {f"document {place}": 100 + place % 7 for place in range(1000)}
    held_out = hold_out(sizes, 0.1)
    assert 0.09 < sum(sizes[name] for name in held_out) / sum(sizes.values()) <= 0.1


def test_one_document_cannot_be_held_out() -> None:
    assert hold_out({"alone": 10}, 0.5) == frozenset()


@given(st.lists(st.text()), st.lists(st.text()))
def test_two_lists_of_texts_have_one_digest_only_if_they_are_the_same(a: list[str], b: list[str]) -> None:
    assert (digest(a) == digest(b)) == (a == b)


def test_a_digest_depends_on_where_texts_end() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
