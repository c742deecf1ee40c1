"""What is held out, and how contents are hashed."""

from hypothesis import given
from hypothesis import strategies as st

from paribus_text.holding import digest, hold_out

sizes = st.dictionaries(st.text(), st.integers(1, 1000), min_size=2, max_size=40)
shares = st.floats(0.01, 0.5)


@given(sizes, shares)
def test_both_sides_have_something(found: dict[str, int], share: float) -> None:
    assert 0 < len(hold_out(found, share)) < len(found)


@given(sizes, shares, st.randoms())
def test_the_order_of_the_documents_does_not_matter(found: dict[str, int], share: float, random: object) -> None:
    names = list(found)
    random.shuffle(names)  # type: ignore[attr-defined]  # hypothesis types it as object
    assert hold_out({name: found[name] for name in names}, share) == hold_out(found, share)


def test_about_the_share_of_the_text_is_held_out() -> None:
    found = {f"document {place}": 100 + place % 7 for place in range(1000)}
    held = hold_out(found, 0.1)
    assert 0.09 < sum(found[name] for name in held) / sum(found.values()) <= 0.1


def test_one_document_cannot_be_held_out() -> None:
    assert hold_out({"alone": 10}, 0.5) == frozenset()


@given(st.lists(st.text()), st.lists(st.text()))
def test_two_lists_of_texts_have_one_digest_only_if_they_are_the_same(a: list[str], b: list[str]) -> None:
    assert (digest(a) == digest(b)) == (a == b)


def test_a_digest_knows_where_one_text_ends() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
