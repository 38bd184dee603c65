"""Where skips are forbidden a test that cannot run fails, unless a model's class gives the reason."""

import pytest

from tests.conftest import OWN_REASONS, forbidden


def report(outcome: str, reason: str = "") -> pytest.TestReport:
    longrepr = ("file.py", 1, f"Skipped: {reason}") if outcome == "skipped" else None
    return pytest.TestReport("id", ("file.py", 1, "test"), {}, outcome, longrepr, "call")


def test_a_skip_for_lack_of_a_framework_fails_and_says_why() -> None:
    found = forbidden(report("skipped", "torch is not installed"))
    assert found.failed and "torch is not installed" in str(found.longrepr)


@pytest.mark.parametrize("reason", OWN_REASONS)
def test_a_model_s_class_may_give_the_reason(reason: str) -> None:
    assert forbidden(report("skipped", f"{reason}: x")).skipped


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_other_outcomes_stay(outcome: str) -> None:
    assert forbidden(report(outcome)).outcome == outcome


def test_an_expected_failure_is_no_skip() -> None:
    known = report("skipped", "later")
    known.wasxfail = "later"
    assert forbidden(known).skipped
