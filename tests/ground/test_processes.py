"""Several processes: the command that started them can be said again."""

import pytest

from latemask.ground.processes import LargestOfAll, launcher


@pytest.fixture
def several(monkeypatch):
    for name, value in {
        "WORLD_SIZE": "16",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "node-7",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)


def started_by(monkeypatch, *words: str) -> None:
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: "\0".join(words).encode())


def test_one_process_was_started_by_nobody():
    assert launcher() == []


@pytest.mark.parametrize(
    "begin",
    [["python", "/bin/torchrun"], ["python", "-m", "torch.distributed.run"], ["python", "/x/torch/distributed/run.py"]],
)
def test_torchruns_own_options_are_kept(several, monkeypatch, begin):
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node-7:29400", "--nproc-per-node", "8"]
    started_by(monkeypatch, *begin, *options, "-m", "latemask", "pretrain", "small")
    assert launcher() == ["torchrun", *options, "-m"]


def test_where_nobody_can_be_asked_the_environment_says_it(several, monkeypatch):
    started_by(monkeypatch, "slurmstepd")
    expected = "torchrun --nnodes 2 --node-rank 1 --master-addr node-7 --master-port 29500 --nproc-per-node 8 -m"
    assert launcher() == expected.split()


def test_one_process_knows_its_own_number_at_once():
    largest = LargestOfAll()
    assert largest(3.0) == 3.0
    assert largest.settled() == 0.0
