"""Puts the commands together and turns whatever ends one into a message and an exit code.

What a command does is in the file of its name.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from streamio.cli import exits, options
from streamio.cli.cat import cat
from streamio.cli.index import index
from streamio.cli.ls import ls
from streamio.cli.plan import plan


class Commands(TyperGroup):
    """The group of commands; ends with one line on stderr where another program would show a traceback."""

    def main(self, *args: Any, **keywords: Any) -> Any:
        """Run and exit; see `streamio.cli.exits` for the codes."""
        wanted = args[0] if args else keywords.pop("args", None)
        given = sys.argv[1:] if wanted is None else list(wanted)
        try:
            code = super().main(given, "streamio", standalone_mode=False)
            if code == exits.INTERRUPTED:
                raise KeyboardInterrupt  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - the last stop
            code = exits.tell(error, debug="--debug" in given, secrets=options.secrets(given))
        except KeyboardInterrupt as error:
            code = exits.tell(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named. A reader of its output that has gone is no error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            exits.silence_stdout()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:  # before click's own ways with it, which differ by version
            raise typer.Exit(exits.INTERRUPTED) from None
        return result


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        from streamio import __version__

        typer.echo(f"streamio {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Look at a data set in an object store as a training run would."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.command()(ls)
app.command()(cat)
app.command()(plan)
app.command()(index)
