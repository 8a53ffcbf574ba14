"""One fine-tuning, against transformers alone; the best epoch is the one that is kept; the same seed, the same bits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    ModernBertForSequenceClassification,
    Trainer,
    TrainerControl,
    TrainingArguments,
    set_seed,
)

from latemask.evaluation.features import IGNORED, decided, logits_of, make_collator
from latemask.evaluation.methods import METHODS, Method
from latemask.evaluation.metrics import measured
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.tasks import Examples
from latemask.evaluation.trials import Judge, Observer, prepare_task, run_trial, weighted_loss
from latemask.ground.errors import UserError
from tests.evaluation.conftest import make_task

QUICK = Protocol(epochs=2, batch_size=4, precision="fp32")


class Weighted(Trainer):
    """The Trainer with the weighted loss that its documentation shows."""

    def compute_loss(self, model, inputs, **_):
        labels = inputs.pop("labels")
        return torch.nn.CrossEntropyLoss(torch.tensor([40 / (2 * 30), 40 / (2 * 10)]))(model(**inputs).logits, labels)


@pytest.mark.parametrize(("class_weights", "plain_trainer"), [("none", Trainer), ("balanced", Weighted)])
def test_the_loss_curve_is_that_of_transformers_alone(encoder, encoder_folder, tmp_path, class_weights, plain_trainer):
    task = make_task(rows=40)
    task = replace(task, train=replace(task.train, labels=[int(number % 4 == 0) for number in range(40)]))
    trial, _ = run_trial(prepare_task(encoder, task, replace(QUICK, class_weights=class_weights)), 1e-3, seed=1)

    tokenizer = AutoTokenizer.from_pretrained(encoder_folder)
    set_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(encoder_folder, num_labels=2)
    rows = [
        {**tokenizer(text, truncation=True, max_length=32), "labels": label}
        for text, label in zip(task.train.texts, task.train.labels, strict=True)
    ]
    arguments = TrainingArguments(
        str(tmp_path), seed=1, num_train_epochs=2, per_device_train_batch_size=4, learning_rate=1e-3,
        warmup_steps=0.06, weight_decay=0.1, adam_beta2=0.98, adam_epsilon=1e-6, logging_steps=1,
        train_sampling_strategy="group_by_length", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = plain_trainer(model, arguments, DataCollatorWithPadding(tokenizer), rows)
    trainer.train()

    plain = [[log["step"], round(log["loss"], 6)] for log in trainer.state.log_history if "loss" in log]
    assert len(plain) == 20
    assert trial.loss == plain


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["classification", "regression", "tagging"])
def test_it_learns_what_can_be_learnt(encoder, kind, precision):
    protocol = Protocol(epochs=8, batch_size=8, precision=precision)
    prepared = prepare_task(encoder, make_task(kind, rows=48), protocol)
    trial, _ = run_trial(prepared, 5e-3, seed=0)
    assert trial.score > 0.9
    assert not trial.collapsed
    assert trial.loss[-1][1] < trial.loss[0][1] / 2


def test_several_labels_at_once_are_learnt_and_the_model_says_so(encoder):
    prepared = prepare_task(encoder, make_task("multilabel", rows=48), Protocol(epochs=8, batch_size=8))
    trial, model = run_trial(prepared, 5e-3, seed=0, keep=True)
    assert set(trial.metrics) == {"micro_f1", "macro_f1"}
    assert trial.score > 0.9
    assert (model.config.problem_type, model.config.num_labels) == ("multi_label_classification", 2)


@pytest.mark.parametrize("kind", ["classification", "tagging", "multilabel"])
def test_in_the_balanced_loss_every_class_counts_the_same(kind):
    """Against a loop over single answers."""
    task = make_task(kind, rows=30)
    logits = torch.randn(30, *([7] if kind == "tagging" else []), 2, generator=torch.manual_seed(0))
    labels = torch.randint(0, 2, logits.shape if kind == "multilabel" else logits.shape[:-1])
    answers = []
    if kind == "multilabel":
        task, labels = replace(task, train=replace(task.train, labels=labels.tolist())), labels.float()
        weights = [(30 - count) / count for count in labels.sum(0).tolist()]
        for share, label in zip(logits.sigmoid(), labels, strict=True):
            answers += [-weights[c] * share[c].log() if label[c] else -(1 - share[c]).log() for c in (0, 1)]
        expected = sum(answers) / len(answers)
    else:
        known = labels.flatten().tolist() if kind == "classification" else [row.tolist() for row in labels]
        task = replace(task, train=replace(task.train, labels=known))
        count = torch.bincount(labels.flatten(), minlength=2)
        labels[0, ...] = IGNORED if kind == "tagging" else labels[0]
        for row, label in zip(logits.flatten(0, -2), labels.flatten().tolist(), strict=True):
            if label != IGNORED:
                weight = count.sum() / (2 * count[label])
                answers.append((weight, -weight * row.softmax(-1)[label].log()))
        expected = sum(loss for _, loss in answers) / sum(weight for weight, _ in answers)
    loss = weighted_loss(task, Protocol(class_weights="balanced"))(SimpleNamespace(logits=logits), labels)
    torch.testing.assert_close(loss, expected)


def test_numbers_have_no_classes_to_weigh():
    assert weighted_loss(make_task("regression"), Protocol(class_weights="balanced")) is None
    assert weighted_loss(make_task(), Protocol()) is None


def test_a_tag_far_behind_the_encoders_end_is_learnt_and_scored(encoder):
    """Sentences twice as long as the encoder: all that is to be learnt stands in their last words."""
    sentences = [["word"] * 50 + ["good" if number % 2 else "film"] for number in range(16)]
    examples = Examples("made up", sentences, None, [[0] * 50 + [number % 2] for number in range(16)])
    task = make_task("tagging", train=examples, dev=examples)
    prepared = prepare_task(encoder, task, Protocol(epochs=4, batch_size=8))
    assert prepared.splits["dev"].fit.windowed == 16
    trial, _ = run_trial(prepared, 1e-2, 0)
    assert trial.metrics["span_f1"] == 1


def test_the_same_seed_gives_the_same_cell_and_another_seed_another(encoder):
    prepared = prepare_task(encoder, make_task(), QUICK)
    first, again, other = (run_trial(prepared, 1e-3, seed)[0] for seed in (0, 0, 1))
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert first.loss != other.loss


def test_a_random_encoder_is_drawn_by_the_seed(encoder):
    random = encoder.untrained()
    task = make_task()
    weights = [random.with_head(task, seed).get_input_embeddings().weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], encoder.with_head(task, 0).get_input_embeddings().weight)


class Scores:
    """A judge whose scores are written in advance."""

    def __init__(self, scores, protocol, encoder, keep=True):
        self.judge = Judge(prepare_task(encoder, make_task(), protocol), None, Observer(), keep)
        results = iter([{"score": score, "metrics": {"accuracy": score}, "collapsed": False} for score in scores])
        self.judge._scored = lambda model: next(results)
        self.model = torch.nn.Linear(1, 1, bias=False)

    def run(self, most):
        control = TrainerControl()
        for number in range(1, most + 1):
            torch.nn.init.constant_(self.model.weight, number)
            self.judge.on_epoch_end(None, None, control, model=self.model)
            if control.should_training_stop:
                return number
        return most


def test_it_stops_when_nothing_gets_better_and_keeps_the_best_epoch(encoder):
    scores = Scores([0.5, 0.7, 0.6, 0.7, 0.9], Protocol(patience=2), encoder)
    assert scores.run(5) == 4  # epoch 4 equals epoch 2, which is not better
    assert scores.judge.record(1e-3, 0).epoch == 2
    assert scores.judge.record(1e-3, 0).score == 0.7
    assert scores.judge.restored(scores.model).weight.item() == 2


def test_the_last_epoch_can_be_asked_for(encoder):
    scores = Scores([0.9, 0.1, 0.2, 0.1, 0.3], Protocol(select="last", patience=1), encoder)
    assert scores.run(5) == 5
    assert (scores.judge.record(1e-3, 0).epoch, scores.judge.record(1e-3, 0).score) == (5, 0.3)
    assert scores.judge.restored(scores.model).weight.item() == 5


def test_in_bf16_the_losses_are_about_the_same_and_the_record_says_so(encoder):
    task = make_task(rows=40)
    mixed, model = run_trial(prepare_task(encoder, task, replace(QUICK, precision="bf16")), 1e-3, seed=1, keep=True)
    plain, _ = run_trial(prepare_task(encoder, task, QUICK), 1e-3, seed=1)
    assert (mixed.precision, plain.precision) == ("bf16", "fp32")
    assert mixed.loss != plain.loss
    np.testing.assert_allclose(np.array(mixed.loss, float), np.array(plain.loss, float), rtol=0.02)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_in_bf16_training_is_mixed_and_scores_are_not(encoder, monkeypatch):
    seen = set()
    whole = ModernBertForSequenceClassification.forward

    def watched(self, **inputs):
        kernels = torch.backends.cuda.flash_sdp_enabled()
        seen.add((self.training, torch.is_autocast_enabled("cpu"), kernels))
        return whole(self, **inputs)

    monkeypatch.setattr(ModernBertForSequenceClassification, "forward", watched)
    run_trial(prepare_task(encoder, make_task(rows=24), replace(QUICK, precision="bf16")), 1e-3, seed=1)
    assert seen == {(True, True, False), (False, False, True)}  # fused attention is slow in bf16


def test_an_encoder_that_cannot_do_bf16_is_said(encoder, monkeypatch):
    def fails(self, **inputs):
        raise RuntimeError("value cannot be converted to type c10::BFloat16 without overflow")

    monkeypatch.setattr(ModernBertForSequenceClassification, "forward", fails)
    with pytest.raises(UserError, match="pass --precision fp32"):
        run_trial(prepare_task(encoder, make_task(rows=24), replace(QUICK, precision="bf16")), 1e-3, seed=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_model_that_is_kept_gives_the_score_that_is_reported(encoder, precision):
    task = make_task(rows=40)
    prepared = prepare_task(encoder, task, Protocol(epochs=3, batch_size=8, precision=precision))
    trial, model = run_trial(prepared, 3e-3, 0, keep=True)
    rows, collator = prepared.splits["dev"].rows, make_collator(task.kind, encoder.tokenizer)
    assert measured(task, task.dev.labels, decided(task.kind, logits_of(model, rows, collator))) == trial.metrics


def test_other_splits_are_scored_and_a_test_set_decides_nothing(encoder):
    task = make_task(rows=24)
    wrong = replace(task.dev, labels=[1 - label for label in task.dev.labels])
    protocol = Protocol(epochs=6, batch_size=8)
    plain, _ = run_trial(prepare_task(encoder, task, protocol), 5e-3, 0)
    tested, _ = run_trial(prepare_task(encoder, replace(task, others={"test": wrong}), protocol), 5e-3, 0)
    assert tested.score == plain.score
    assert tested.metrics["accuracy_test"] == pytest.approx(1 - tested.metrics["accuracy"])
    both, _ = run_trial(prepare_task(encoder, replace(task, others={"mismatched": wrong}), protocol), 5e-3, 0)
    assert both.score == pytest.approx(0.5)  # MNLI's is the mean of its two


def test_predictions_come_back_in_the_order_of_their_rows(encoder):
    """Against one row at a time, which cannot be mixed up and has no padding."""
    task = make_task(rows=24)
    prepared = prepare_task(encoder, task, QUICK)
    model, collator = encoder.with_head(task, 0), make_collator(task.kind, encoder.tokenizer)
    rows = prepared.splits["train"].rows
    together = np.stack(logits_of(model, rows, collator))
    alone = np.stack([logits_of(model, [row], collator)[0] for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert len({len(row["input_ids"]) for row in rows}) > 1
    assert model.training is False


def test_layers_that_are_computed_again_in_bf16_change_no_loss(encoder):
    curves = []
    for checkpointing in (False, True):
        protocol = replace(QUICK, epochs=1, precision="bf16", checkpointing=checkpointing)
        curves.append(run_trial(prepare_task(encoder, make_task(), protocol), 1e-3, seed=0)[0].loss)
    assert curves[0] == curves[1]


def test_a_method_may_tell_who_watches_what_it_does_before_it_trains(encoder, monkeypatch):
    class Slow(Method):
        def fitted(self, model, prepared):
            prepared.observer.before_training("fitting")
            return model

    class Watching(Observer):
        def before_training(self, words):
            raise KeyboardInterrupt(words)

    monkeypatch.setitem(METHODS, "slow", Slow())
    prepared = prepare_task(encoder, make_task(), replace(QUICK, method="slow"))
    with pytest.raises(KeyboardInterrupt, match="fitting"):
        run_trial(prepared, 1e-3, 0, Watching())
    assert run_trial(prepared, 1e-3, 0)[0].steps > 0
