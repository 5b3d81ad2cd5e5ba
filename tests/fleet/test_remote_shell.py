import shlex
import sys

import pytest
from fake_ssh import install

from colonnade.errors import InvalidArgument
from colonnade.fleet import remote_shell


def test_a_shell_reads_nothing_but_the_path_of_python(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/it's a/$(path)/python")
    *ssh, target, command = remote_shell.there("me@a")
    assert ssh[0] == "ssh"
    assert ssh[-1] == "--"
    assert target == "me@a"
    assert shlex.split(command) == ["exec", "/it's a/$(path)/python", "-P", "-m", "colonnade.fleet.far_end"]


def test_nobody_is_asked_and_a_dead_connection_is_noticed():
    words = remote_shell.there("a")
    assert "BatchMode=yes" in words
    assert "ServerAliveInterval=3" in words


def test_the_address_is_the_one_of_the_users_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", install(tmp_path)["PATH"])
    assert remote_shell.address("a") == "127.0.0.1"
    assert remote_shell.address("me@far1") == "far1"


@pytest.mark.parametrize(
    ("script", "says"), [("echo no such host >&2; exit 255", "no such host"), ("exit 0", "it names no host")]
)
def test_a_machine_that_ssh_does_not_know(tmp_path, monkeypatch, script, says):
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InvalidArgument, match=f"--machines='a': ssh does not say where that is .{says}"):
        remote_shell.address("a")


def test_no_ssh_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgument, match="No such file"):
        remote_shell.address("a")
