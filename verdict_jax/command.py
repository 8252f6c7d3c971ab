"""What every subcommand of `verdict` is."""

from __future__ import annotations

from abc import ABC, abstractmethod


class UserError(Exception):
    """A mistake of the user's; the message is one line that says what and what to do."""


class Command(ABC):
    """A frozen dataclass of options with the code that they start."""

    @abstractmethod
    def run(self) -> None:
        """Raises UserError; OSError for files that cannot be read or written."""
