"""Ports that stay free until whoever was told of them has started."""

from __future__ import annotations

import random
import socket

import pytest

from utils.ranks import ports


def test_ports_are_different_free_and_not_those_that_the_system_gives_out():
    found = ports.free_ports(20)
    assert len(set(found)) == 20 and all(15_000 <= port < 32_000 for port in found)
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_not_given_and_too_few_are_an_error(monkeypatch):
    with socket.create_server(("127.0.0.1", ports.free_ports(1)[0])) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_CHOICE", range(number - 101, number + 1))
        assert number not in ports.free_ports(2)
        monkeypatch.setattr(ports, "_CHOICE", range(number, number + 1))
        monkeypatch.setattr(random.SystemRandom, "sample", lambda self, choice, count: list(choice))
        with pytest.raises(OSError, match="too few ports"):
            ports.free_ports(1)


def test_a_seeded_notebook_does_not_notice():
    random.seed(0)
    before = random.getstate()
    ports.free_ports(3)
    assert random.getstate() == before
