"""How a command ends that did not go well: one message on stderr, and an exit code.

0: done (also where the reader of a pipe has gone). 1: an error. 2: the command was not used right. 130: Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable

import typer

PROGRAM = "streamio"
"""The command's name, which no secret blots out of a message."""

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


def tell(error: BaseException, *, debug: bool = False, secrets: Iterable[str] = ()) -> int:
    """Say on stderr what ended the command.

    Args:
        error: What was raised.
        debug: Whether to show the traceback as well.
        secrets: Texts that are never to be shown.

    Returns:
        The exit code.
    """
    if debug:
        typer.echo(_hidden("".join(traceback.format_exception(error)), secrets), err=True, nl=False)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        note("interrupted")
        return INTERRUPTED
    if hasattr(error, "format_message"):  # a usage error of click's, which some versions of typer bring along
        context = getattr(error, "ctx", None)
        command = context.command_path if context else PROGRAM
        note(f"{error.format_message()}\nTry '{command} --help'.", secrets)
        return MISUSED
    note(_text(error), secrets)
    return FAILED


def note(text: str, secrets: Iterable[str] = ()) -> None:
    """Write a line to stderr, after the command's name and without what is secret in it."""
    typer.echo(f"{PROGRAM}: {_hidden(text, secrets)}", err=True)


def silence_stdout() -> None:
    """Let what is still to be written to stdout, at the interpreter's exit at the latest, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hidden(text: str, secrets: Iterable[str]) -> str:
    from streamio.storage.faults import shown

    for secret in secrets:
        if secret == PROGRAM:
            continue
        text = text.replace(secret, "***")
    return shown(text)


def _text(error: BaseException) -> str:
    """The message of an error that was foreseen; of any other, its type as well."""
    from streamio.errors import StreamioError

    message = str(error).strip()
    if isinstance(error, StreamioError) or (type(error) in (TypeError, ValueError) and message):
        return message
    return f"{type(error).__name__}: {message} (--debug shows where)"
