"""The benchmark of fine-tuning methods asks all of them alike, and the tables in the docs are made from its records."""

import pytest
from benchmarks.methods import METHODS as ASKED
from benchmarks.methods import RECORDS, SCORED, TASKS, costs, costs_table, ratios, read_all, scores_table, summary

from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from tests.test_readme import ROOT


@pytest.mark.parametrize(("page", "table"), [("results.md", scores_table), ("finetuning.md", costs_table)])
def test_the_tables_of_the_docs_are_made_from_the_records(page, table):
    assert table() in (ROOT / "docs" / page).read_text("utf-8")


def test_every_method_is_asked_and_every_record_is_one_that_was():
    assert {method for method, _, _ in ASKED.values()} == set(METHODS)
    assert list(costs()) == list(ASKED)
    assert all(record["name"] in ASKED and record["task"] in TASKS for record in read_all(RECORDS))
    for method, options, checkpointing in ASKED.values():
        Protocol(method=method, options=options, checkpointing=checkpointing).check()


def test_the_summary_holds_what_every_method_takes_and_scored():
    found = summary()
    assert list(found["methods"]) == list(ASKED)
    assert all({"trained_weights", "stored_bytes", "step_bytes"} <= set(one) for one in found["methods"].values())
    assert {name for name, one in found["methods"].items() if "scores" in one} <= set(SCORED)
    assert "sst2" in found["methods"]["full"]["scores"]


def test_what_was_promised_of_memory_and_bytes_is_so():
    found = summary()
    assert found["meft_memory_over_full"] <= 0.5
    assert found["hiwi_stored_over_encoder"] <= 0.001
    assert found["apiq_2_bits_over_fp16"] <= 0.2


def test_ratios_are_against_full_fine_tuning_and_the_encoders_own_bytes():
    shared = {"encoder_bytes": 4_000_000, "linear_weights": 500_000}
    found = {
        "full": {**shared, "step_bytes": 400, "stored_bytes": 4_000_000},
        "meft": {**shared, "step_bytes": 100, "stored_bytes": 9},
        "checkpointing": {**shared, "step_bytes": 300, "stored_bytes": 9},
        "hiwi": {**shared, "step_bytes": 400, "stored_bytes": 4_000},
        "apiq-2": {**shared, "step_bytes": 400, "stored_bytes": 200_000},
    }
    assert ratios(found) == {
        "meft_memory_over_full": 0.25,
        "checkpointing_memory_over_full": 0.75,
        "hiwi_stored_over_encoder": 0.001,
        "apiq_2_bits_over_fp16": 0.2,
    }
