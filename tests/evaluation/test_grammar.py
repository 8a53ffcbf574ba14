"""grammar: the accuracies of a naive loop, floors beside them, a record, and nothing scored twice."""

import json
import math
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from latemask import UserError, grammar, pretrain
from latemask.cli import main
from latemask.evaluation import grammar_results
from latemask.evaluation.grammar import verdict
from latemask.evaluation.grammar_results import Accuracies, read_record
from latemask.evaluation.language_models import open_language_model
from latemask.evaluation.minimal_pairs import MinimalPairs
from latemask.ground.errors import TimeIsUp
from latemask.recipe import BudgetRecipe
from latemask.text.tokenizer import copy_tokenizer
from tests.conftest import tiny_recipe
from tests.evaluation.test_pseudo_likelihood import naive, of_ours, opinionated

ROWS = [
    ("order", "verb", "Return the value of the key.", "The value of the key return."),
    ("order", "verb", "It is not in the list.", "It not in the list is."),
    ("order", "noun", "This is the name of a file.", "This is of a file the name."),
    ("agreement", "number", "The lists are sorted.", "The lists is sorted."),
    ("agreement", "number", "A list is sorted.", "A list are sorted."),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("\n".join("\t".join(row) for row in [("term", "paradigm", "good", "bad"), *ROWS]))
    return path


@pytest.fixture(scope="module", params=["late", "early"])
def run(request, data, tmp_path_factory):
    """A run whose weights have opinions."""
    recipe = replace(tiny_recipe(), objective=request.param, budget=BudgetRecipe(steps=2))
    return with_opinions(pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("runs") / request.param))


@pytest.fixture(scope="module")
def late(data, tmp_path_factory):
    recipe = replace(tiny_recipe(), budget=BudgetRecipe(steps=2))
    return with_opinions(pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("runs") / "run"))


def with_opinions(run):
    from latemask.ground.sealed import seal
    from latemask.model import load_model

    opinionated(load_model(run.model)).save_pretrained(run.model)
    seal(run.model)
    return run


def stock(folder, data, change=lambda model: None):
    """A stock BertForMaskedLM folder, as anybody might have."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = AutoConfig.for_model("bert", vocab_size=data.vocabulary.size, pad_token_id=1, **sizes)
    model = opinionated(AutoModelForMaskedLM.from_config(config))
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    copy_tokenizer(data.tokenizer_folder, folder, 512)
    return model


def accuracy_of(score) -> float:
    """The mean over paradigms, by hand."""
    right = {}
    for _, paradigm, good, bad in ROWS:
        right.setdefault(paradigm, []).append(float(score(good) > score(bad)))
    return 100 * sum(sum(of) / len(of) for of in right.values()) / len(right)


def test_one_json_object_comes_last_and_equals_a_naive_loop(run, pairs, tmp_path, capsys):
    words = ["grammar", str(run.path), "--pairs", str(pairs), "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    model = open_language_model(str(run.path))
    scores = {text: naive(text, model.tokenizer, of_ours(model.hidden.model)) for row in ROWS for text in row[2:]}
    assert found["mean"] == pytest.approx(accuracy_of(scores.get))
    assert found["pairs"] == 5
    assert list(found["terms"]) == ["order", "agreement"]
    assert found["terms"]["order"]["pairs"] == 3
    assert 0 <= found["unigram"] <= 100
    assert 0 <= found["untrained"] <= 100
    kept = json.loads((tmp_path / "out" / "scores" / f"{found['identity'][:16]}.json").read_text())["values"]
    assert kept == pytest.approx([scores[text] for side in (2, 3) for text in (row[side] for row in ROWS)], abs=1e-5)


def test_a_stock_model_scores_as_in_a_loop_of_plain_transformers(data, pairs, tmp_path, capsys):
    model = stock(tmp_path / "bert", data)

    def log_probability(ids, hidden):
        seen = ids.index_fill(0, torch.tensor(hidden), 4)[None]
        return model(input_ids=seen).logits[0, hidden[0]].log_softmax(-1)[ids[hidden[0]]]

    (found,) = grammar(str(tmp_path / "bert"), pairs=pairs, out=tmp_path / "out")
    assert found["mean"] == pytest.approx(accuracy_of(lambda text: naive(text, data.tokenizer, log_probability)))
    assert found["unigram"] is None
    assert "word frequencies are no floor (--corpus DATA)" in " ".join(capsys.readouterr().err.split())
    (again,) = grammar(str(tmp_path / "bert"), pairs=pairs, out=tmp_path / "out", corpus=[data.folder])
    assert again["unigram"] is not None


def test_a_model_that_says_the_same_of_everything_scores_exactly_fifty(data, tmp_path):
    def silence(model):
        for weight in model.parameters():
            weight.zero_()

    stock(tmp_path / "silent", data, silence)
    path = tmp_path / "swapped.csv"
    path.write_text("good,bad\n" + "".join(f"{a} of {b},{b} of {a}\n" for a, b in (("key", "value"), ("list", "set"))))
    (found,) = grammar(str(tmp_path / "silent"), pairs=path, out=tmp_path / "out")
    assert found["mean"] == 50
    assert found["error"] == 0
    path.write_text("good,bad\nkey,the key of a list\nvalues of a dictionary,it\n")
    (found,) = grammar(str(tmp_path / "silent"), pairs=path, out=tmp_path / "lengths")
    assert found["mean"] == 50  # to be shorter is no grammar


def test_by_word_the_rest_of_a_word_is_hidden_with_a_token(late, pairs, tmp_path):
    (alone,) = grammar([str(late.path)], pairs=pairs, out=tmp_path / "token", no_control=True)
    (by_word,) = grammar([str(late.path)], pairs=pairs, score="word", out=tmp_path / "word", no_control=True)
    assert (alone["score"], by_word["score"]) == ("token", "word")
    assert alone["untrained"] is None
    files = [next((tmp_path / name / "scores").iterdir()).read_text() for name in ("token", "word")]
    assert json.loads(files[0])["values"] != json.loads(files[1])["values"]


def test_frequencies_know_no_order(late, tmp_path):
    path = tmp_path / "order.csv"
    path.write_text("good,bad\nkey of value,value of key\nso it is,is it so\n")
    (found,) = grammar([str(late.path)], pairs=path, out=tmp_path / "out", no_control=True)
    assert found["unigram"] == 50


def test_a_run_that_is_not_finished_and_one_of_its_checkpoints(data, pairs, tmp_path):
    recipe = replace(tiny_recipe(), budget=BudgetRecipe(steps=9))
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    (unfinished,) = grammar([str(tmp_path / "run")], pairs=pairs, out=tmp_path / "out", no_control=True)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    (given,) = grammar([str(checkpoint)], pairs=pairs, out=tmp_path / "out", no_control=True)
    assert unfinished["step"] == given["step"] == int(checkpoint.name.split("-")[1])
    assert (unfinished["mean"], unfinished["identity"]) == (given["mean"], given["identity"])
    assert given["run"] == str((tmp_path / "run").resolve())
    assert len(read_record(tmp_path / "out")["models"]) == 1  # the same model, whatever it is called


def test_killed_it_goes_on_to_the_same_bits(late, pairs, tmp_path, monkeypatch):
    words = ["grammar", str(late.path), "--pairs", str(pairs), "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    from latemask.evaluation import pseudo_likelihood

    scored, real = [], pseudo_likelihood.score_chunk

    def counted(model, sentences, chunk, metric):
        scored.extend(chunk)
        return real(model, sentences, chunk, metric)

    def killed(model, sentences, chunks, metric):
        for number, scores in enumerate(scored_by(model, sentences, chunks, metric)):
            yield scores
            if not number and not interrupted:  # after the first chunk
                interrupted.append(True)
                signal.raise_signal(signal.SIGTERM)

    interrupted, scored_by = [], pseudo_likelihood.scored
    monkeypatch.setattr(pseudo_likelihood, "score_chunk", counted)
    monkeypatch.setattr(pseudo_likelihood, "scored", killed)
    assert main([*words, str(tmp_path / "cut")]) == 128 + signal.SIGTERM
    before = len(scored)
    assert main([*words, str(tmp_path / "cut")]) == 0
    assert len(scored) > before
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole" / "scores").iterdir()]
    assert len(names) == 2
    assert all((tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    monkeypatch.setattr(pseudo_likelihood, "score_chunk", None)  # nothing is left to score
    assert main([*words, str(tmp_path / "cut")]) == 0


def test_damaged_scores_are_named_and_scored_again(late, pairs, tmp_path, capsys):
    (first,) = grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    (file,) = (tmp_path / "out" / "scores").iterdir()
    file.write_text(file.read_text().replace("-", "-1", 1))
    (again,) = grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    assert f"{file.name} is damaged; what it held is scored again" in "".join(capsys.readouterr().err.split("\n"))
    assert again["mean"] == first["mean"]


def test_sentences_that_are_too_long_are_left_out_and_counted(late, pairs, tmp_path, capsys):
    path = tmp_path / "long.tsv"
    path.write_text(pairs.read_text() + f"\norder\tverb\t{'of ' * 40}\tof it")
    (found,) = grammar([str(late.path)], pairs=path, out=tmp_path / "out", no_control=True)
    assert (found["pairs"], found["left_out"]) == (5, 1)
    assert "1 sentences have more than the 32 tokens" in " ".join(capsys.readouterr().err.split())


def test_pairs_that_are_all_too_long_are_a_clear_line(late, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(f"good,bad\n{'of ' * 40},{'it ' * 40}\n")
    with pytest.raises(UserError, match="takes 32 tokens: every pair is longer"):
        grammar([str(late.path)], pairs=path, out=tmp_path / "out")


def test_a_wrong_name_is_said_before_anything_is_scored(late, pairs, tmp_path):
    with pytest.raises(UserError, match="gone"):
        grammar([str(late.path), str(tmp_path / "gone")], pairs=pairs, out=tmp_path / "out")
    assert not (tmp_path / "out" / "scores").exists()


def test_a_model_whose_training_diverged_is_refused(data, pairs, tmp_path):
    stock(tmp_path / "nan", data, lambda model: next(model.parameters()).fill_(math.nan))
    with pytest.raises(UserError, match="gives no numbers"):
        grammar(str(tmp_path / "nan"), pairs=pairs, out=tmp_path / "out")


def test_scores_of_other_pairs_that_were_not_finished_are_kept(late, pairs, tmp_path):
    grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    (tmp_path / "out" / "grammar.json").unlink()  # as if it had been killed before
    (file,) = (tmp_path / "out" / "scores").iterdir()
    before = file.read_bytes()
    with pytest.raises(UserError, match="holds scores of other pairs, or by another --score"):
        grammar([str(late.path)], pairs=pairs, score="word", out=tmp_path / "out")
    assert file.read_bytes() == before


def test_other_pairs_another_score_and_foreign_folders_are_refused(late, pairs, tmp_path):
    grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    with pytest.raises(UserError, match="other pairs, or by another --score"):
        grammar([str(late.path)], pairs=pairs, score="word", out=tmp_path / "out")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no grammar results"):
        grammar([str(late.path)], pairs=pairs, out=tmp_path / "foreign")


def test_an_encoder_without_its_head_is_refused(late, pairs, tmp_path):
    with pytest.raises(UserError, match="an encoder without the head that predicts words; give the run"):
        grammar([str(late.encoder)], pairs=pairs, out=tmp_path / "out")


def test_the_table_has_every_term_and_every_floor(late, data, pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stock(tmp_path / "bert", data)
    grammar([str(late.path), str(tmp_path / "bert")], pairs=pairs, out=tmp_path / "out")
    shown = capsys.readouterr().out
    for word in ("order", "agreement", "mean over 3 paradigms", "word frequencies", "never trained", "±"):
        assert word in shown
    written = (tmp_path / "out" / "grammar.md").read_text()
    assert written.count("never trained") >= 2
    lines = (tmp_path / "out" / "pairs.csv").read_text().splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert lines[0].count("good: ") == 2


def test_models_that_are_added_later_stand_beside_the_first(late, data, pairs, tmp_path):
    stock(tmp_path / "bert", data)
    for model in (late.path, tmp_path / "bert"):
        grammar([str(model)], pairs=pairs, out=tmp_path / "out", no_control=True)
    head, first, *_ = (tmp_path / "out" / "pairs.csv").read_text().splitlines()
    assert head.count("good: ") == 2
    assert not first.endswith(",")
    assert len(read_record(tmp_path / "out")["models"]) == 2


def test_a_record_that_was_damaged_is_named(late, pairs, tmp_path):
    grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    path = tmp_path / "out" / "grammar.json"
    shutil.copy(path, tmp_path / "copy.json")
    whole = path.read_text()
    for content in ("", "[]", whole.replace('"mean"', '"main"'), whole.replace('"step"', '"stop"'), whole[:-20]):
        path.write_text(content)
        with pytest.raises(UserError, match="is damaged, or no grammar record"):
            read_record(tmp_path / "out")
    assert read_record(tmp_path / "copy.json")["models"]


def test_a_tie_counts_one_half_and_errors_are_those_of_a_share():
    pairs = MinimalPairs("p", ["a"] * 8, ["b"] * 8, [("t", "one")] * 4 + [("t", "two")] * 4)
    found = Accuracies.of(pairs, [1.0, 1.0, -1.0, 0.0, 1.0, 1.0, 1.0, None])
    assert found.by_paradigm["t", "one"][0] == 62.5
    assert found.by_paradigm["t", "two"] == (100.0, 0.0)
    assert found.count == 7
    assert found.mean == pytest.approx(81.25)
    variance = ((1 - 0.625) ** 2 * 2 + 0.625**2 + 0.125**2) / 4
    assert found.error == pytest.approx(100 * math.sqrt(variance / 4) / 2)


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (60.0, ["8.0 above word frequencies (52.0)", "10.0 above never trained (50.0)"]),
        (51.0, ["not told apart from word frequencies", "1.0 above", "shows no grammar beyond word frequencies"]),
        (45.0, ["7.0 BELOW word frequencies (52.0)", "5.0 BELOW never trained", "word frequencies and never trained"]),
    ],
)
def test_the_words_agree_with_the_numbers(mean, words):
    errors = {"unigram": 0.5, "untrained": 0.2}
    record = {"model": "m", "mean": mean, "error": 0.2, "pairs": 9, "unigram": 52.0, "untrained": 50.0}
    said = verdict({**record, "errors_of_floors": errors})
    assert all(word in said for word in words)
    assert ("shows no grammar" in said) == (mean < 55)


def test_scores_are_written_while_it_works(late, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(grammar_results, "_SECONDS_BETWEEN_WRITES", 0.0)
    written, real = [], grammar_results.KeptScores.write
    monkeypatch.setattr(grammar_results.KeptScores, "write", lambda kept: (written.append(kept.path), real(kept)))
    grammar([str(late.path)], pairs=pairs, out=tmp_path / "out", no_control=True)
    assert len(written) > 2


def test_the_floor_of_large_sets_is_scored_on_some_pairs_of_every_paradigm(late, tmp_path, monkeypatch):
    monkeypatch.setattr("latemask.evaluation.grammar._PAIRS_OF_A_PARADIGM", 2)
    path = tmp_path / "many.tsv"
    rows = [f"t\t{name}\tvalue of {n}\tof value {n}" for name in ("one", "two") for n in range(7)]
    path.write_text("\n".join(["term\tparadigm\tgood\tbad", *rows]))
    (found,) = grammar([str(late.path)], pairs=path, out=tmp_path / "out")
    assert found["pairs"] == found["pairs_of_floors"]["unigram"] == 14
    assert found["pairs_of_floors"]["untrained"] == 4


def test_pairs_that_stand_in_the_pre_training_text_are_counted(late, data, tmp_path, capsys):
    text = data.tokenizer.decode(data.rows("train", 400).take([0])[0], skip_special_tokens=True)
    planted = " ".join(text.split()[20:36])
    path = tmp_path / "pairs.tsv"
    rows = [f"{planted}\tNobody ever wrote down {n} sentences like this one here" for n in range(1)]
    rows += [f"Purple {n} submarines sing to the moon at dawn\tPurple submarines {n} sing dawn at" for n in range(9)]
    path.write_text("\n".join(["good\tbad", *rows]))
    (found,) = grammar([str(late.path)], pairs=path, out=tmp_path / "out", no_control=True)
    assert found["in_corpus"] == 1
    assert found["in_corpus_by_chance"] < 0.1
    assert "1 of 10 pairs are found in the pre-training text" in " ".join(capsys.readouterr().err.split())
