"""Every error that a person is meant to read, and the exit status that each ends in."""

from __future__ import annotations


class RlauditError(Exception):
    """A problem that rlaudit can explain: what was wrong, where, and what to do.

    ``exit_status`` is what the command line ends with (see ``rlaudit.cli.main``).
    """

    exit_status = 2


class RunNotFound(RlauditError):
    """The path holds no run: nothing there, not a folder, or a folder without a manifest."""


class UnknownFormat(RlauditError):
    """The run was written in a format version that this rlaudit does not know."""


class DamagedRun(RlauditError):
    """A file of the run can't be read and can't be set aside without losing data."""


class RunExists(RlauditError):
    """A capture was asked to write into a folder that already holds another run."""


class QueryError(RlauditError):
    """DuckDB refused a query; the message is DuckDB's, shortened to what helps."""


class BadOption(RlauditError):
    """A value given on the command line or to the Python API is not usable."""
