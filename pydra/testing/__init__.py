"""Conformance suite for backend authors.

`check_backend("sim")` runs an installed backend (or `"module:attribute"`, or a module, or an object
that can be imported) in a process of its own, as the agent does, and reports everything that is
wrong at once. It needs no test framework:

    def test_my_backend_keeps_the_contract():
        report = check_backend("my_backend:backend")
        assert report.ok, report.text
"""

from pydra.testing.report import Check, Report
from pydra.testing.run import check_backend, run_checks

__all__ = ["Check", "Report", "check_backend", "run_checks"]
