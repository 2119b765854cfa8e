"""A head that came before is known again by its bytes, and only then."""

import pytest

from gateway.http.known import learn

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %b\r\naccept: b\r\n\r\n"


@pytest.mark.parametrize("length", [b"0", b"7", b"1959", b"12345678"])
def test_a_known_head_says_how_long_its_body_is_and_where_it_begins(length: bytes) -> None:
    known = learn(HEAD % b"12", "meaning")
    assert known is not None
    head = HEAD % length
    assert known.find(head + b"body") == (int(length), len(head))
    assert known.find(head) == (int(length), len(head))


@pytest.mark.parametrize("length", [b"", b"-1", b"+1", b" 1", b"1 ", b"1x", b"0x1", b"1,1", b"123456789", b"\xb2"])
def test_what_is_no_plain_number_is_left_to_the_parser(length: bytes) -> None:
    known = learn(HEAD % b"12", "meaning")
    assert known is not None and known.find(HEAD % length + b"body") is None


def test_a_head_that_is_cut_or_differs_is_not_known() -> None:
    whole = HEAD % b"12"
    known = learn(whole, "meaning")
    assert known is not None
    assert all(known.find(whole[:size]) is None for size in range(len(whole)))
    assert known.find(whole.replace(b"accept: b", b"accept: c")) is None
    assert known.find(whole.replace(b"host: a", b"host: b")) is None
