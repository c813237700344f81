"""The `streamio` command: looks at a data set as a run would, without a run. Only `index` writes: one object."""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code (`streamio.cli.exits`)."""
    from streamio.cli.app import app

    app()
