"""The folder of a run: held by one process, and looked at by anybody without being in the way."""

import threading
import time

import filelock
import pytest

from latemask import run_folder
from latemask.ground.errors import UserError
from latemask.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def test_whoever_looks_sees_that_a_run_is_held_and_that_it_is_not_any_more(run):
    assert not run.is_in_use()
    with run.held():
        assert run.is_in_use()
    assert not run.is_in_use()


def test_a_second_process_is_refused(run):
    with run.held(), pytest.raises(UserError, match="in use by another process"), run.held():
        pass


def test_looking_at_a_run_never_keeps_it_from_starting(run, monkeypatch):
    """A look that takes its time: whatever it holds meanwhile, the run waits for it instead of giving up."""
    with run.held():
        pass
    looking = threading.Event()

    class Slow(filelock.FileLock):
        def acquire(self, *arguments, **options):
            proxy = super().acquire(*arguments, **options)
            if threading.current_thread() is not threading.main_thread():
                looking.set()
                time.sleep(0.3)
            return proxy

    monkeypatch.setattr(run_folder, "FileLock", Slow)
    look = threading.Thread(target=run.is_in_use)
    look.start()
    assert looking.wait(5)
    with run.held():
        assert True
    look.join()
