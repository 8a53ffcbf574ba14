"""A signal is a flag: whatever it interrupts goes on, and a second one ends at once."""

import os
import signal

import pytest

from latemask.ground import console
from latemask.ground.signals import SignalFlag


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_said_and_the_second_ends_at_once(number, capfd):
    with SignalFlag("stopping soon") as flag:
        os.kill(os.getpid(), number)
        assert flag.received == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert capfd.readouterr().err == "stopping soon\n"


def test_one_that_comes_in_the_middle_of_a_print_does_not_print_into_it(capfd, monkeypatch):
    """rich imports while it prints; printing again from a handler fell over a module that was half there."""

    def interrupted(*_, **__):
        monkeypatch.setattr(console._console, "print", lambda *_, **__: pytest.fail("printed in the handler"))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(console._console, "print", interrupted)
    with SignalFlag("stopping soon") as flag:
        console.say("a line")
    assert flag.received == signal.SIGTERM
    assert capfd.readouterr().err == "stopping soon\n"


def test_without_a_terminal_to_write_to_it_is_noted_all_the_same(monkeypatch):
    def broken(*_):
        raise OSError(32, "Broken pipe")

    monkeypatch.setattr("latemask.ground.signals.os.write", broken)
    with SignalFlag("stopping soon") as flag:
        os.kill(os.getpid(), signal.SIGTERM)
    assert flag.received == signal.SIGTERM


def test_afterwards_signals_do_what_they_did_before():
    before = signal.getsignal(signal.SIGTERM)
    with SignalFlag("stopping soon"):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
