"""The error that ends a run of `pydra dev`, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence

from pydra.errors import PydraError
from pydra_dev.output.descriptions import Paragraph


class RunError(Exception):
    """A step did not happen; the text says which one. `explained`: what was printed before says why."""

    def __init__(self, text: str, details: Sequence[str] = (), *, explained: bool = False) -> None:
        self.details = tuple(details)
        self.explained = explained
        super().__init__(text)


def describe_failure(error: PydraError | RunError, details: tuple[str, ...] = ()) -> Paragraph:
    """Why a run has failed; `details` come after those of the error."""
    own = error.details if isinstance(error, RunError) else ()
    headline, *more = f"FAILED: {error}".splitlines()
    return Paragraph(headline=headline, details=(*more, *own, *details))
