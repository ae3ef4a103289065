"""What a mode of `bench fuzz` tells."""

from loadtest.fuzz.report import Report, is_error


def test_a_report_keeps_the_worst_and_says_things_once() -> None:
    report = Report()
    for value in (0.1, 0.3, 0.2):
        report.see("ping_s", value)
        report.count("readers", 2)
        report.expect(value < 0.3, "too slow")
        report.expect(value < 0.2, "slow")
    assert report.as_dict() == {
        "counts": {"readers": 6},
        "worst": {"ping_s": 0.3},
        "notes": {},
        "violations": ["too slow", "slow"],
    }


def test_what_is_an_error() -> None:
    whole = b'{"error": {"message": "", "type": "", "param": null, "code": null}}'
    assert is_error(whole)
    for wrong in (
        b"",
        b"no",
        b"[]",
        b'{"error": "no"}',
        b"{}",
        whole.replace(b'"code": null', b""),
    ):
        assert not is_error(wrong)
