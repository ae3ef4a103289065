"""Forms, whole and in pieces, and what is none."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.http.multipart import HEAD_BYTES_MAX, PARTS_MAX, Data, Multipart, Part
from shared.errors import InvalidRequest

BOUNDARY = "b0"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(parts: Iterable[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for name, file, data in parts:
        more = "" if file is None else f'; filename="{file}"'
        head = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\nX: y\r\n\r\n'
        )
        body += head.encode() + data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def read(body: bytes, cuts: Iterable[int] = (), kind: str = TYPE) -> list[tuple[Part, bytes]]:
    reader, parts = Multipart(kind), []
    ends = sorted({min(cut, len(body)) for cut in cuts} | {len(body)})
    start = 0
    for end in ends:
        for event in reader.feed(body[start:end]):
            if isinstance(event, Part):
                parts.append((event, b""))
            else:
                assert event.data
                parts[-1] = (parts[-1][0], parts[-1][1] + event.data)
        start = end
    reader.finish()
    return parts


NASTY = st.lists(
    st.sampled_from([b"\r", b"\n", b"-", b"--b", b"\r\n--b", b"\r\n--", b"0", b"x", b"\0\xff"])
).map(b"".join).filter(lambda data: b"\r\n--b0" not in b"\r\n" + data)  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "f"]), NASTY), max_size=4),
    st.lists(st.integers(0, 400)),
)
def test_a_form_is_read_the_same_however_it_is_cut(
    parts: list[tuple[str, str | None, bytes]], cuts: list[int]
) -> None:
    assert read(form(parts), cuts) == [(Part(name, file), data) for name, file, data in parts]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_whatever_comes_is_a_form_or_refused(body: bytes, cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> object:
        try:
            return read(body, cuts)
        except InvalidRequest as error:
            return error.message

    assert outcome(cuts) == outcome([])


def test_what_stands_before_and_behind_means_nothing() -> None:
    body = b"hello\r\n" + form([("a", None, b"1")]) + b"more\r\n--b0\r\n"
    assert read(body) == [(Part("a", None), b"1")]


def test_a_file_has_no_folder() -> None:
    for told in ("x/y/f.json", "..\\\\f.json", "C:\\\\f.json", "f.json"):
        assert read(form([("a", told, b"1")]))[0][0].file == "f.json"


@pytest.mark.parametrize(
    "kind",
    ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "",
     f"multipart/mixed; boundary={BOUNDARY}", "multipart/form-data; boundary=" + "x" * 71],
)  # fmt: skip
def test_other_bodies_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest):
        Multipart(kind)


@pytest.mark.parametrize("kind", [f'multipart/form-data; x=1; Boundary="{BOUNDARY}"', TYPE.upper()])
def test_boundaries_are_found(kind: str) -> None:
    body = form([("a", None, b"1")])
    kind = kind.replace("B0", "b0")
    assert len(read(body, kind=kind)) == 1


def test_limits() -> None:
    with pytest.raises(InvalidRequest, match="in the middle"):
        read(form([("a", None, b"1")])[:-4])
    with pytest.raises(InvalidRequest, match="parts"):
        read(form([("a", None, b"1")] * (PARTS_MAX + 1)))
    with pytest.raises(InvalidRequest, match="too long"):
        read(b"--b0\r\n" + b"x" * HEAD_BYTES_MAX)
    with pytest.raises(InvalidRequest, match="no name"):
        read(b"--b0\r\nX: y\r\n\r\n1\r\n--b0--")


def test_little_is_kept_of_what_is_fed() -> None:
    reader = Multipart(TYPE)
    reader.feed(form([("a", "f", b"")])[: -len("\r\n--b0--\r\n")])
    for _ in range(100):
        events = reader.feed(b"x" * 10_000)
        assert sum(len(e.data) for e in events if isinstance(e, Data)) > 9_000
    assert len(reader._buffer) < 100
