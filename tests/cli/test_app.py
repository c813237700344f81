from __future__ import annotations

import signal
import socket
from pathlib import Path

import streamio
from tests.cli.command import run, start


def test_help_names_the_commands_and_version_the_version() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("ls", "cat", "plan"))
    assert run().stdout == result.stdout
    assert run("--version").stdout == f"streamio {streamio.__version__}\n"


def test_each_command_has_help() -> None:
    for name in ("ls", "cat", "plan"):
        result = run(name, "--help")
        assert result.exit_code == 0
        assert "--storage-option" in result.stdout


def test_a_command_that_is_not_used_right_ends_with_2() -> None:
    for arguments in (["nope"], ["--nope"], ["ls"], ["ls", "--nope", "x"], ["ls", "x", "--storage-option", "y"]):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert result.stderr.startswith("streamio: ")
        assert "--help" in result.stderr


def test_nothing_found_is_one_line_and_1(tmp_path: Path) -> None:
    process = start("ls", str(tmp_path / "nothing"))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, b"")
    assert errors.decode().startswith(f"streamio: file://{tmp_path}/nothing: nothing is there.")
    assert errors.count(b"\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("ls", str(tmp_path / "nothing"), "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "streamio: file://" in result.stderr


def test_verbose_logs_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    quiet, loud = (run("ls", str(tmp_path), "--splits", *extra) for extra in ([], ["-v"]))
    assert quiet.stderr == ""
    assert "streamio: Found 1 shards" in loud.stderr
    assert loud.stdout == quiet.stdout


def test_ctrl_c_while_a_server_does_not_answer_ends_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        credentials = ["--storage-option=key=k", "--storage-option=secret=s"]
        process = start("ls", "s3://bucket/x", f"--endpoint-url={endpoint}", *credentials)
        connection, _ = server.accept()  # it waits for an answer from now on
        with connection:
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, b"", b"streamio: interrupted\n")
