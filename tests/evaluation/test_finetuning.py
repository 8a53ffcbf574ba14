"""`latemask finetune` as a command: GLUE, your own files, taggers; going on; mistakes in a line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from latemask import finetune
from latemask.cli import main
from latemask.evaluation.best_models import folder_name
from latemask.evaluation.floors import CONSTANT, TFIDF
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results
from latemask.evaluation.verdicts import verdict
from tests.evaluation.conftest import WORDS, sentence

QUICK = ["--epochs", "1", "--seeds", "1", "--batch-size", "8", "--lrs", "1e-3", "--no-control"]


@pytest.fixture
def run(tmp_path, monkeypatch, encoder_folder, capsys):
    """Run `latemask finetune` with the tiny encoder in an empty folder; return (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)

    def finetune(*arguments, encoder=encoder_folder):
        code = main(["finetune", str(encoder), *map(str, arguments)])
        return code, *capsys.readouterr()

    finetune.encoder = encoder_folder
    return finetune


def broken_copy(encoder, folder):
    """Copy an encoder, with zeros for weights: nothing of a text comes through."""
    shutil.copytree(encoder, folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip


@pytest.fixture
def csv_files(tmp_path):
    """A train, a dev and a test file."""
    for name, rows in (("train", 24), ("dev", 8), ("test", 8)):
        lines = [f"{sentence(n, str(n % 2)).replace(chr(34), '')},{('sad', 'glad')[n % 2]}" for n in range(rows)]
        (tmp_path / f"{name}.csv").write_text("review,mood\n" + "\n".join(lines) + "\n")
    return ["--train", "train.csv", "--dev", "dev.csv", "--text", "review", "--label", "mood"]


def record(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_glue_task_gives_scores_tables_and_a_model(run, tmp_path, glue_folder):
    code, out, err = run(
        "--task", "mrpc", "--data", glue_folder, "--seeds", 2, "--epochs", 1, "--no-control", "--lrs", "1e-3,2e-3"
    )
    assert code == 0, err
    folder = tmp_path / "finetuned" / "tiny-mrpc"
    cells = record(folder)["cells"]
    assert [(cell["learning_rate"], cell["seed"]) for cell in cells] == [(1e-3, 0), (1e-3, 1), (2e-3, 0), (2e-3, 1)]
    assert set(cells[0]["metrics"]) == {"f1", "accuracy"}
    assert "mrpc*" in out
    assert "24 of 3,668 training rows" in out
    assert (folder / "results.md").read_text().startswith("| encoder | mrpc* |")
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 4 + 2  # head, runs, floors
    assert AutoModelForSequenceClassification.from_pretrained(folder / "model").config.num_labels == 2
    data = record(folder)["tasks"]["mrpc"]["data"]
    assert len(data["train"]["sha256"]) == 64


def test_finished_runs_are_not_run_again_and_more_can_be_asked_for(run, tmp_path, glue_folder, monkeypatch):
    same = ["--task", "rte", "--data", glue_folder, "--epochs", 1, "--lrs", "1e-3", "--no-control"]
    assert run(*same, "--seeds", 1)[0] == 0
    before = record(tmp_path / "finetuned" / "tiny-rte")["cells"]
    code, _, err = run(*same, "--seeds", 2)
    assert (code, "1 runs are done already, 1 to go" in err) == (0, True)
    after = record(tmp_path / "finetuned" / "tiny-rte")
    assert after["cells"][:1] == before
    assert len(after["cells"]) == 2
    assert len(after["made_by"]) == 2
    monkeypatch.setattr("latemask.evaluation.grid.run_trial", None)  # would raise if it were called
    assert run(*same, "--seeds", 2)[0] == 0


def test_your_own_classes(run, tmp_path, csv_files):
    code, _, err = run(*csv_files, "--test", "test.csv", "--out", "o", *QUICK)
    assert code == 0, err
    assert "2 different labels, taken as a classification" in err
    (cell,) = record(tmp_path / "o")["cells"]
    assert {"accuracy", "macro_f1", "accuracy_test", "macro_f1_test"} == set(cell["metrics"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "o" / "model")
    assert model.config.id2label == {0: "glad", 1: "sad"}


def test_folds_are_judged_one_by_one_and_the_record_says_what_overlaps(run, tmp_path):
    lines = [f"{'good' if n % 2 else 'bad'} film {n},{('sad', 'glad')[n % 2]}" for n in range(20)]
    (tmp_path / "moods-train.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("text,label\nGood film 1!,sad\n")
    files = ["--train", "moods-train.csv", "--test", "test.csv", "--folds", 2, "--class-weights", "balanced"]
    code, _, err = run(*files, "--out", "o", *QUICK)
    assert code == 0, err
    found = record(tmp_path / "o")
    assert [cell["task"] for cell in found["cells"]] == ["moods fold 1 of 2", "moods fold 2 of 2"]
    overlaps = [task["overlap"] for task in found["tasks"].values()]
    assert [overlap["dev"]["rows"] for overlap in overlaps] == [0, 0]
    assert sorted(overlap["test"]["rows"] for overlap in overlaps) == [0, 1]
    assert found["protocol"]["class_weights"] == "balanced"


def test_keywords_are_the_fields_of_your_own_files(encoder_folder, tmp_path, csv_files):
    quick = {"seeds": 1, "protocol": Protocol(epochs=1, batch_size=8), "out": tmp_path / "o"}
    files = {"train": tmp_path / "train.csv", "dev": str(tmp_path / "dev.csv"), "text": "review", "label": "mood"}
    results = finetune(str(encoder_folder), **files, **quick)
    assert list(results.tasks) == ["train"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'trian'"):
        finetune(str(encoder_folder), trian="a.csv")


def test_your_own_numbers_and_pairs(run, tmp_path):
    rows = [{"a": sentence(n, "0"), "b": sentence(n, "1"), "y": n + 0.5} for n in range(16)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ["--train", "train.jsonl", "--dev", "dev.jsonl", "--text", "a", "--text-pair", "b", "--label", "y"]
    code, _, err = run(*files, "--out", "o", *QUICK)
    assert code == 0, err
    assert set(record(tmp_path / "o")["cells"][0]["metrics"]) == {"pearson", "spearman"}
    assert record(tmp_path / "o")["tasks"]["train"]["constant"]["metrics"] == {"pearson": None, "spearman": None}


def test_your_own_tags(run, tmp_path):
    moods = WORDS["0"] + WORDS["1"]
    text = "\n\n".join(
        "\n".join(f"{word} {'B-MOOD' if word in moods else 'O'}" for word in sentence(n, str(n % 2)).split())
        for n in range(16)
    )
    (tmp_path / "a.conll").write_text(text)
    files = ["--task-type", "tagging", "--train", "a.conll", "--dev", "a.conll"]
    learning = ["--epochs", 6, "--seeds", 1, "--batch-size", 4, "--lrs", "1e-2", "--no-control"]
    code, _, err = run(*files, "--out", "o", *learning)
    assert code == 0, err
    assert record(tmp_path / "o")["cells"][0]["metrics"]["span_f1"] > 0.9
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "o" / "model")
    assert model.config.id2label == {0: "B-MOOD", 1: "O"}


def test_texts_that_are_too_long_are_cut_counted_and_said(run, tmp_path, csv_files):
    path = tmp_path / "train.csv"
    path.write_text(path.read_text() + "word " * 200 + ",sad\n")
    code, out, err = run(*csv_files, "--out", "o", *QUICK)
    assert code == 0
    assert "train.csv: 1 of 25 texts are longer than 32 tokens and were cut (the longest has " in err
    (cut,) = record(tmp_path / "o")["tasks"]["train"]["cut"].values()
    assert cut == {"train": 1, "dev": 0}
    assert "texts cut to the encoder's length: 1 of train" in " ".join(out.split())


def test_the_model_that_is_kept_is_the_best_one_on_dev(run, tmp_path, csv_files):
    arguments = [*csv_files, "--out", "o", "--epochs", 5, "--batch-size", 4, "--no-control"]
    assert run(*arguments, "--seeds", 2, "--lrs", "1e-7", "1e-2")[0] == 0
    cells = record(tmp_path / "o")["cells"]
    best = max(cells, key=lambda cell: cell["score"])
    assert best["score"] > min(cell["score"] for cell in cells)
    assert main(["predict", "o", "dev.csv", "--json", "--out", "p.jsonl"]) == 0
    found = [json.loads(line)["label"] for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    wanted = [line.rsplit(",", 1)[1] for line in (tmp_path / "dev.csv").read_text().splitlines()[1:]]
    right = sum(label == truth for label, truth in zip(found, wanted, strict=True)) / len(wanted)
    assert right == best["score"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing --train: give --task NAME"),
        (["--task", "sst"], "unknown task 'sst' (did you mean 'sst2'?)"),
        (["--task", "sst2", "--data", "nowhere"], "nowhere: no such folder"),
        (["--task", "sst2", "--train", "x.csv"], "--task sst2 has its own files and columns: leave --train away"),
        (["--train", "x.csv"], "x.csv: no such file"),
        (["--train", "x.csv", "--dev", "y.csv", "--folds", "5"], "--folds makes dev sets of --train: leave --dev away"),
        (["--train", "x.csv", "--folds", "1"], "--folds 1: two at least"),
        (
            ["--tasks", "x", "--train", "x.csv"],
            "--tasks has the files and names of its sub-folders: leave --train away",
        ),
        (["--data", "x"], "--data is for --task"),
        (["--task", "sst2", "--seeds", "0"], "--seeds 0: one at least"),
        (["--task", "sst2", "--epochs", "0"], "--epochs 0: one at least"),
        (["--task", "sst2", "--lrs", "fast"], "--lrs must be float, not 'fast'"),
        (["--task", "sst2", "--select", "first"], "select must be one of 'best', 'last'"),
        (["--task", "sst2", "--max-length", "2"], "--max-length 2: a text needs 8"),
        (["--task", "sst2", "--text-pair", "b"], "--task sst2 has its own files and columns: leave --text-pair away"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_nothing(run, tmp_path, arguments, message):
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_overwriting_waits_until_all_options_are_right(run, tmp_path, csv_files):
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0
    before = {path: path.read_bytes() for path in sorted((tmp_path / "o").rglob("*")) if path.is_file()}
    for wrong in (["--lrs", "-1"], ["--max-length", 9999], ["--epochs", 0]):
        assert run(*csv_files, "--out", "o", "--overwrite", *wrong)[0] == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_failed_command_does_not_block_the_corrected_one(run, csv_files):
    assert run(*csv_files, "--out", "o", "--max-length", 9999)[0] == 2
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0


def test_results_of_somebody_else_are_not_overwritten(run, tmp_path, csv_files):
    (tmp_path / "o" / "model").mkdir(parents=True)
    (tmp_path / "o" / "results.json").write_text('{"mine": 1}')
    (tmp_path / "o" / "model" / "precious.bin").write_text("x")
    code, _, err = run(*csv_files, "--out", "o", "--overwrite", *QUICK)
    assert (code, "is damaged, or no results of latemask" in err) == (2, True)
    assert (tmp_path / "o" / "model" / "precious.bin").exists()


def test_what_a_kill_left_behind_is_no_obstacle(run, tmp_path, csv_files):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / ".results.json.123").write_text("{")
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0


def test_the_control_runs_beside_the_encoder_and_the_words_agree_with_the_table(run, tmp_path, csv_files):
    code, out, err = run(*csv_files, "--out", "o", *QUICK[:-1])
    assert code == 0, err
    encoders = record(tmp_path / "o")["encoders"]
    (trained,) = (name for name in encoders if not name.startswith("random:"))
    assert list(encoders) == [trained, f"random:{trained}"]
    assert f"random:{trained}: the same architecture, never trained, runs beside it" in err
    assert f"random:{trained} (never trained) lr 0.001 seed 0" in err
    said = verdict(Results.read(tmp_path / "o" / "results.json"))
    assert set(said) <= set(out.splitlines())
    rows = [line.split("|")[1].strip() for line in (tmp_path / "o" / "results.md").read_text().splitlines()[2:6]]
    assert rows == [trained, f"random:{trained} (never trained)", CONSTANT, TFIDF]


def test_a_control_that_is_given_is_the_only_one_and_the_trained_model_is_kept(run, tmp_path, csv_files):
    encoder = tmp_path / "encoder"
    broken_copy(run.encoder, encoder)
    code, out, err = run(f"random:{encoder}", *csv_files, "--out", "o", *QUICK[:-1], encoder=encoder)
    assert code == 0, err
    assert list(record(tmp_path / "o")["encoders"]) == [str(encoder), f"random:{encoder}"]
    assert "runs beside it" not in err
    kept = json.loads((tmp_path / "o" / "model" / "latemask-task.json").read_text())
    assert kept["encoder"] == str(encoder)
    assert f"do not use {encoder} (50.0), for" in out  # its weights are zeros: it can only say one thing
    assert f"{encoder} (50.0) is 50.0 points below TF-IDF + linear model (100.0)" in out
    assert f"1 of 1 runs of {encoder} collapsed to one answer." in out


def test_several_encoders_and_tasks_share_a_folder_and_each_task_keeps_its_model(run, tmp_path, csv_files, glue_folder):
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0
    first = (tmp_path / "o" / "model" / "model.safetensors").read_bytes()
    code, out, err = run("random:demo", "--task", "rte,wnli", "--data", glue_folder, "--out", "o", *QUICK)
    assert code == 0, err
    assert [cell["task"] for cell in record(tmp_path / "o")["cells"]].count("rte") == 2
    assert not (tmp_path / "o" / "model").exists()
    models = sorted(path.name for path in (tmp_path / "o" / "models").iterdir())
    assert models == ["rte", "train", "wnli"]
    assert (tmp_path / "o" / "models" / "train" / "model.safetensors").read_bytes() == first
    assert "train: random:demo was not run on it." in out
    assert main(["predict", str(tmp_path / "o" / "models" / "train"), "dev.csv"]) == 0


def test_the_folder_of_a_model_never_leads_elsewhere_and_is_another_for_every_task():
    names = ["mood", "a b", "a/b", "a%2Fb", "..", ".hidden", "größe", "%2E."]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[:2] == ["mood", "a b"]
    assert not any("/" in folder or folder.startswith(".") for folder in folders)


def test_another_column_is_another_task(run, tmp_path, csv_files):
    for split in ("train", "dev"):
        head, *lines = (tmp_path / f"{split}.csv").read_text().splitlines()
        more = [f"{line},other {number},{('sad', 'glad')[number % 2]}" for number, line in enumerate(lines)]
        (tmp_path / f"{split}.csv").write_text("\n".join([f"{head},text,label", *more]) + "\n")
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0
    for changed in (["--text", "text"], ["--label", "label"], ["--text-pair", "text"]):
        code, _, err = run(*csv_files, *changed, "--out", "o", *QUICK)
        assert (code, "is not what it was" in err) == (2, True), changed


def test_mistakes_that_only_the_encoder_shows(run, tmp_path, csv_files):
    code, _, err = run(*csv_files, "--max-length", 64, "--out", "o")
    assert (code, "--max-length 64: the encoder takes 32 tokens at most" in err) == (2, True)
    code, _, err = run(*csv_files, "--out", "o", encoder="nowhere")
    assert (code, "no encoder at 'nowhere'" in err) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("dear")
    code, _, err = run(*csv_files, "--out", "full", *QUICK)
    assert (code, "is not empty and holds no results" in err) == (2, True)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "dear"


def test_another_protocol_in_the_same_folder_is_refused_unless_told(run, tmp_path, csv_files):
    assert run(*csv_files, "--out", "o", *QUICK)[0] == 0
    changed = [*csv_files, "--out", "o", *QUICK, "--epochs", 2]
    code, _, err = run(*changed)
    assert (code, "another protocol (epochs: 1 -> 2)" in err) == (2, True)
    assert run(*changed, "--overwrite")[0] == 0
    assert len(record(tmp_path / "o")["cells"][0]["epochs"]) == 2
    lines = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join(lines[:-2]) + "\n")
    code, _, err = run(*changed)
    assert (code, "is not what it was when" in err) == (2, True)
