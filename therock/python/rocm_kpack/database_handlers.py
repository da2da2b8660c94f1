"""Kernel databases by name. kpack has a table of them: `kpack artifact split --help`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DatabaseHandler:
    """A kernel database for `ArtifactSplitter`, which rejects names that kpack does not know."""

    database: str

    def name(self) -> str:
        """The name of the database."""
        return self.database


def get_database_handlers(names: list[str]) -> list[DatabaseHandler]:
    """The databases with these names."""
    return [DatabaseHandler(name) for name in names]
