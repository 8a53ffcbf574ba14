"""`latemask predict`: one line for each row, in its order; against a plain transformers pipeline."""

import json
import shutil
from types import SimpleNamespace

import pyarrow
import pytest
import torch
from pyarrow import parquet
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from latemask.cli import main
from latemask.evaluation.best_models import save_model
from latemask.evaluation.features import featurize
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.tasks import Examples
from latemask.evaluation.trials import prepare_task, run_trial
from tests.evaluation.conftest import make_task

TEXTS = ["a film of words", "bad", "", "the long long long days were good and\tgreat", "x\x1b[31m"]


def fine_tuned(encoder, folder, kind, **changes):
    """What `latemask finetune` leaves behind."""
    task = make_task(kind, columns={"text": "review", "text_pair": None}, **changes)
    prepared = prepare_task(encoder, task, Protocol(epochs=1, batch_size=8))
    trial, model = run_trial(prepared, 5e-3, 0, keep=True)
    folder.mkdir()
    save_model(folder / "model", model, prepared, trial)
    return folder


@pytest.fixture(scope="module")
def classifier(encoder, tmp_path_factory):
    return fine_tuned(encoder, tmp_path_factory.mktemp("models") / "classifier", "classification")


@pytest.fixture
def predict(capsys):
    def run(*arguments):
        code = main(["predict", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(params=["csv", "jsonl", "parquet", "txt"])
def file(request, tmp_path):
    path = tmp_path / f"texts.{request.param}"
    if request.param == "csv":
        path.write_text("id,review\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)))
    elif request.param == "jsonl":
        path.write_text("".join(json.dumps({"review": text}) + "\n" for text in TEXTS))
    elif request.param == "txt":
        path.write_text("\n".join(TEXTS))
    else:
        parquet.write_table(pyarrow.table({"review": TEXTS}), path)
    return path


def test_labels_are_those_of_transformers_alone(classifier, file, predict):
    code, out, err = predict(classifier, file, "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    tokenizer = AutoTokenizer.from_pretrained(classifier / "model")
    model = AutoModelForSequenceClassification.from_pretrained(classifier / "model").eval()
    for text, row in zip(TEXTS, rows, strict=True):
        with torch.no_grad():
            shares = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        assert row["label"] == model.config.id2label[int(shares.argmax())]
        assert list(row["scores"].values()) == pytest.approx(shares.tolist(), abs=1e-5)


def test_plain_lines_are_escaped_one_for_each_row(classifier, tmp_path, predict):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"review": text}) + "\n" for text in [*TEXTS, "two\nlines"]))
    code, out, _ = predict(classifier / "model", tmp_path / "a.jsonl")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 6)
    assert all(line.split("\t")[0] in ("no", "yes") and 0.5 <= float(line.split("\t")[1]) <= 1 for line in lines)
    assert "\x1b" not in out
    assert lines[5].endswith("two\\nlines")


def test_a_regression_gives_numbers_and_a_tagger_tags(encoder, tmp_path, predict):
    regression = fine_tuned(encoder, tmp_path / "regression", "regression")
    (tmp_path / "a.txt").write_text("good film\nbad film\n")
    _, out, _ = predict(regression, tmp_path / "a.txt", "--json")
    assert [isinstance(json.loads(line)["value"], float) for line in out.splitlines()] == [True, True]
    tagger = fine_tuned(encoder, tmp_path / "tagger", "tagging")
    long = "\n".join(["word"] * 60)
    (tmp_path / "b.txt").write_text(f"The\nfilm\n\n{long}\n")
    code, out, err = predict(tagger, tmp_path / "b.txt", "--json", "--text", "1")
    assert code == 0, err
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["words"] == ["The", "film"]
    assert len(first["tags"]) == 2
    assert len(second["tags"]) == 60
    assert "1 of 2 texts are longer than 32 tokens and are read in overlapping windows" in err
    assert set(first["tags"] + second["tags"]) <= {"O", "B-MOOD"}


def test_a_file_is_written_whole_or_not_at_all(classifier, tmp_path, predict):
    (tmp_path / "a.txt").write_text("good film\n")
    code, out, _ = predict(classifier, tmp_path / "a.txt", "--out", tmp_path / "b.tsv")
    assert (code, out) == (0, "")
    assert (tmp_path / "b.tsv").read_text().endswith("\tgood film\n")
    code, _, err = predict(classifier, tmp_path / "a.txt", "--out", tmp_path / "a.txt")
    assert (code, "is a file to read" in err) == (2, True)
    code, _, err = predict(classifier, tmp_path / "a.txt", "--out", tmp_path / "b.tsv")
    assert (code, "is there already" in err) == (2, True)
    assert predict(classifier, tmp_path / "a.txt", "--out", tmp_path / "b.tsv", "--overwrite")[0] == 0
    code, _, err = predict(classifier, tmp_path / "a.txt", "--out", tmp_path)
    assert (code, "is a folder" in err) == (2, True)
    assert (tmp_path / "a.txt").read_text() == "good film\n"


def test_json_shows_letters_and_escapes_what_moves_the_cursor(classifier, tmp_path, predict):
    (tmp_path / "a.jsonl").write_text(json.dumps({"review": "schön\u202e\u009b31m"}) + "\n")
    _, out, _ = predict(classifier, tmp_path / "a.jsonl", "--json")
    assert "schön" in out
    assert "\u202e" not in out
    assert "\u009b" not in out
    assert json.loads(out)["text"] == "schön\u202e\u009b31m"


def test_a_head_that_was_never_trained_labels_nothing(encoder, encoder_folder, tmp_path, predict):
    model = encoder.with_head(make_task(), 0)
    model.save_pretrained(str(tmp_path / "model"))
    shutil.copy(encoder_folder / "model.safetensors", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoder_folder / name, tmp_path / "model")
    (tmp_path / "a.txt").write_text("good\n")
    code, _, err = predict(tmp_path / "model", tmp_path / "a.txt")
    assert (code, "do not fit its config" in err) == (2, True)


def test_a_model_of_pairs_needs_pairs(encoder, tmp_path, predict):
    folder = fine_tuned(encoder, tmp_path / "pairs", "classification")
    path = folder / "model" / "latemask-task.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "columns": {"text": "a", "text_pair": "b"}}))
    (tmp_path / "a.txt").write_text("good\n")
    code, _, err = predict(folder, tmp_path / "a.txt")
    assert (code, "the model takes two texts" in err) == (2, True)


def test_what_cannot_be_labelled_is_said(classifier, encoder_folder, tmp_path, predict):
    (tmp_path / "a.csv").write_text("text\nhello\n")
    for arguments, message in (
        ((classifier, tmp_path / "a.csv"), "no column 'review' (--text); it has 'text'"),
        ((classifier, tmp_path / "none.csv"), "no such file"),
        ((encoder_folder, tmp_path / "a.csv"), "holds ModernBertModel, not a fine-tuned model"),
        ((tmp_path / "nowhere", tmp_path / "a.csv"), "nowhere: no such folder"),
        ((tmp_path, tmp_path / "a.csv"), "cannot be read"),
    ):
        code, _, err = predict(*arguments)
        assert (code, message in err) == (2, True), err
    assert predict(classifier, tmp_path / "a.csv", "--text", "text")[0] == 0


@pytest.fixture
def stdin(monkeypatch):
    """Give predict some blocks of bytes, as a pipe would: one at a time."""

    def give(*blocks):
        rest = [*blocks, b""]
        buffer = SimpleNamespace(read1=lambda _: rest.pop(0))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer))
        return rest

    return give


def test_standard_input_is_labelled_like_a_file(classifier, tmp_path, predict, stdin):
    texts = ["a schön film", "bad", "", "good"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    _, expected, _ = predict(classifier, tmp_path / "a.txt")
    whole = "\r\n".join(texts).encode()
    stdin(whole[:5], whole[5:9], whole[9:])  # torn in the middle of a line, and of a letter
    code, out, err = predict(classifier, "-")
    assert (code, out) == (0, expected), err


def test_a_pipe_gets_its_labels_before_it_ends(classifier, monkeypatch, stdin):
    """When the second block is asked for, the first one's labels are out."""
    rest, written, flushed = stdin(b"good\n", b"bad\n"), [], []
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=written.append, flush=lambda: flushed.append(len(rest))))
    assert main(["predict", str(classifier), "-"]) == 0
    assert [line.split("\t")[2] for line in written] == ["good\n", "bad\n"]
    assert flushed == [2, 1]


@pytest.mark.parametrize(
    ("blocks", "arguments", "message"),
    [
        ((b"good\nb\xffd\n",), (), "standard input:2: not valid UTF-8"),
        ((), (), "standard input: holds no rows"),
        ((b"good\n",), ("--text-pair", "b"), "standard input: the model takes two texts"),
        ((b"good\n",), ("--delimiter", ";"), "standard input: --delimiter is for tables"),
    ],
)
def test_what_comes_in_and_cannot_be_labelled(classifier, predict, stdin, blocks, arguments, message):
    stdin(*blocks)
    code, _, err = predict(classifier, "-", *arguments)
    assert (code, message in err) == (2, True), err


def test_scores_are_columns_under_a_header(classifier, tmp_path, predict):
    (tmp_path / "a.csv").write_text("id;review\n1;good film\n2;bad film\n")
    code, out, err = predict(classifier, tmp_path / "a.csv", "--scores", "--delimiter", ";")
    assert code == 0, err
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert header == ["label", "probability", "no", "yes", "text"]
    records = [json.loads(line) for line in predict(classifier, tmp_path / "a.csv", "--json")[1].splitlines()]
    for line, record in zip(lines, records, strict=True):
        best = f"{record['probability']:.4f}"
        assert line == [
            record["label"],
            best,
            *(f"{record['scores'][name]:.4f}" for name in ("no", "yes")),
            record["text"],
        ]


def test_a_long_text_gets_the_mean_of_its_windows(classifier, tmp_path, predict):
    """Against windows that are cut by hand: 32 tokens with what stands around them, a quarter of them shared."""
    tokenizer = AutoTokenizer.from_pretrained(classifier / "model")
    model = AutoModelForSequenceClassification.from_pretrained(classifier / "model").eval()
    text = "the film was good and the long days were bad " * 6
    (tmp_path / "a.txt").write_text(f"{text}\ngood\n")
    code, out, err = predict(classifier, tmp_path / "a.txt", "--json")
    assert code == 0, err
    assert "a.txt: 1 of 2 texts are longer than 32 tokens and are read in overlapping windows" in err
    first, *ids, last = tokenizer(text, verbose=False).input_ids
    starts = range(0, len(ids) - 7, 30 - 7)
    with torch.no_grad():
        shares = [model(torch.tensor([[first, *ids[at : at + 30], last]])).logits[0].softmax(-1) for at in starts]
    assert len(shares) > 2
    mean = torch.stack(shares).mean(0)
    assert list(json.loads(out.splitlines()[0])["scores"].values()) == pytest.approx(mean.tolist(), abs=1e-5)


def test_a_tagger_answers_for_every_word_of_a_long_sentence(encoder, tmp_path, predict, stdin):
    """Against the model on each window alone, as transformers runs it."""
    folder = fine_tuned(encoder, tmp_path / "tagger", "tagging", labels=("X", "Y"), metrics=("accuracy",))
    words = [f"{word}{number}" for number in range(12) for word in ("film", "good", "documentation")]
    stdin("\n".join(["It", "", *words]).encode(), b"\n\nend")
    code, out, err = predict(folder, "-", "--scores", "--json", "--text", "1")
    assert code == 0, err
    assert "standard input: 1 of 3 texts are longer than 32 tokens and are read in overlapping windows" in err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["words"] for row in rows] == [["It"], words, ["end"]]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForTokenClassification.from_pretrained(folder / "model").eval()
    features = featurize(Examples("x", [words], None, [[0] * 36]), "tagging", tokenizer, 32)
    for ids, asked in zip((row["input_ids"] for row in features.rows), features.words, strict=True):
        with torch.no_grad():
            shares = model(torch.tensor([ids])).logits[0].softmax(-1)
        start = words.index(tokenizer.decode(ids, skip_special_tokens=True).split()[0])
        inside = tokenizer(words[start:], is_split_into_words=True).word_ids()
        for word in asked:
            expected = shares[inside.index(word - start)]
            assert list(rows[1]["scores"][word].values()) == pytest.approx(expected.tolist(), abs=1e-5)
            assert rows[1]["tags"][word] == ("X", "Y")[int(expected.argmax())]
    stdin(b"It\nrains\n")
    _, out, _ = predict(folder, "-", "--scores", "--text", "1")
    assert [len(line.split("\t")) for line in out.splitlines()] == [4, 4, 4, 1]  # an empty line ends a sentence
    assert out.startswith("word\ttag\tX\tY\nIt\t")


def test_several_labels_are_those_of_transformers_alone(encoder, tmp_path, predict):
    folder = fine_tuned(encoder, tmp_path / "several", "multilabel")
    (tmp_path / "a.txt").write_text("good film\nmade of bad words\n")
    _, out, _ = predict(folder, tmp_path / "a.txt", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    for row in rows:
        with torch.no_grad():
            shares = model(**tokenizer(row["text"], return_tensors="pt")).logits[0].sigmoid().tolist()
        assert list(row["scores"].values()) == pytest.approx(shares, abs=1e-5)
        assert row["labels"] == [name for name, share in zip(("good", "made"), shares, strict=True) if share >= 0.5]
    _, out, _ = predict(folder, tmp_path / "a.txt")
    assert [line.split("\t")[0] for line in out.splitlines()] == [";".join(row["labels"]) for row in rows]


def test_a_number_has_no_probabilities(encoder, tmp_path, predict):
    folder = fine_tuned(encoder, tmp_path / "regression", "regression")
    (tmp_path / "a.txt").write_text("good\n")
    code, _, err = predict(folder, tmp_path / "a.txt", "--scores")
    assert (code, "--scores: a regression gives one number" in err) == (2, True)
