"""A disk that fills up in the middle of a checkpoint: a clear line, and with room again the same end."""

import json
import shutil
import subprocess
import sys

import pytest

from latemask import pretrain
from latemask.recipe import dump_recipe
from latemask.run_folder import RunFolder
from tests.faults.tormenting import RECIPE, same_end

SCRIPT = """
set -e
mount -t tmpfs -o size={small} none {disk}
cp {recipe} {disk}/recipe.yaml
set +e
{latemask} pretrain {disk}/recipe.yaml --data {data} --out {disk}/run
echo "code $?" >&2
ls {disk}/run/checkpoints >&2
set -e
mount -o remount,size=200m {disk}
{latemask} pretrain {disk}/recipe.yaml --data {data} --out {disk}/run --resume
cp -r {disk}/run {out}
"""


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no small file system can be mounted here")
def test_a_full_disk_costs_only_the_steps_since_the_last_checkpoint(data, tmp_path):
    whole = pretrain(RECIPE, data=data.folder, out=tmp_path / "whole")
    checkpoint = sum(path.stat().st_size for path in whole.all_checkpoints()[0].rglob("*"))
    (tmp_path / "disk").mkdir()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump_recipe(RECIPE))
    script = SCRIPT.format(
        small=int(2.4 * checkpoint),
        disk=tmp_path / "disk",
        recipe=recipe,
        data=data.folder,
        out=tmp_path / "out",
        latemask=f"{sys.executable} -m latemask",
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    assert "latemask: the disk is full" in done.stderr
    assert "code 2" in done.stderr
    assert "checkpoint-" in done.stderr.split("code 2")[1].split("going on")[0]
    assert "Traceback" not in done.stderr
    assert "going on from step" in done.stderr
    assert done.returncode == 0
    assert same_end(RunFolder(tmp_path / "out"), whole)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"
