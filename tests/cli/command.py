"""Runs the command: in this process, or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from typer.testing import CliRunner, Result

from streamio.cli.app import app

COMMAND = [sys.executable, "-c", "from streamio.cli import main; main()"]


def run(*arguments: str) -> Result:
    """Run in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def start(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start as a process of its own, with pipes."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
    )


def told(options: Mapping[str, Any]) -> list[str]:
    """`storage_options` as arguments: `key` and `secret` at the top, the endpoint by its own option."""
    arguments = []
    for key, value in options.items():
        if key == "endpoint_url":
            arguments.append(f"--endpoint-url={value}")
        elif isinstance(value, Mapping):
            arguments += [f"--storage-option={key}.{name}={inner}" for name, inner in value.items()]
        else:
            arguments.append(f"--storage-option={key}={value}")
    return arguments
