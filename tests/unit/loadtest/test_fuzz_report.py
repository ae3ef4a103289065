"""What a mode of `bench fuzz` tells."""

from loadtest.fuzz.report import Report


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
        "violations": ["too slow", "slow"],
    }
