"""How tests run everywhere: Hypothesis without deadlines, the same examples, and no skips where asked."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("meshwright", deadline=None, max_examples=60, derandomize="CI" in os.environ)
settings.load_profile("meshwright")

OWN_REASONS = ("this transformers has no ", "the default configuration does not build")
"""Skips that say something of a model's class, not of the environment."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "a skipped test fails, unless a model's class gives the reason"
    parser.addoption("--forbid-skips", action="store_true", help=help_text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return forbidden(report) if item.config.getoption("--forbid-skips") else report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return forbidden(report) if collector.config.getoption("--forbid-skips") else report


def forbidden(report):
    """Return the report, failed if it was a skip whose reason lies in the environment."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith(OWN_REASONS):
        report.outcome, report.longrepr = "failed", f"no test may skip here, but: {reason}"
    return report
