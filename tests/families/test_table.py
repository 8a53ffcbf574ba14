"""docs/families.md says of every masked language model in transformers whether latemask opens it, and if not, why.

python -m tests.families.test_table     writes it anew
"""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from latemask.families import FAMILIES
from latemask.families.refused import REFUSED
from latemask.ground.errors import UserError
from latemask.model.stock import family_of, stock_config

PAGE = Path(__file__).parents[2] / "docs" / "families.md"

COVERS = {
    "bert": "BERT and all that keep its architecture, in whatever language",
    "camembert": "CamemBERT",
    "deberta-v2": "DeBERTa v2 and v3, mDeBERTa",
    "distilbert": "DistilBERT and what was distilled like it",
    "electra": "ELECTRA: its generators as they are, its discriminators without a head",
    "esm": "ESM-2 and ESM-1b, encoders of proteins",
    "eurobert": "EuroBERT",
    "gte": "GTE v1.5 and mGTE, as converted for transformers",
    "modernbert": "ModernBERT, mmBERT, the encoders of Ettin",
    "mpnet": "MPNet",
    "nomic_bert": "NomicBERT, nomic-embed-text",
    "roberta": "RoBERTa, DistilRoBERTa and all that keep their architecture",
    "roberta-prelayernorm": "RoBERTa with the norms in front (efficient_mlm)",
    "xlm-roberta": "XLM-RoBERTa, multilingual-e5, BGE-M3",
}

_INTRODUCTION = """# Encoder families

<!-- Made by tests/families/test_table.py; write it anew with: python -m tests.families.test_table -->

latemask opens an encoder to leave the hidden tokens out: it runs the stock layers piece by piece, each token at its
original position. That must be exact, so every architecture needs a file of its own (src/latemask/families), held
against the stock model by the tests. These are all the architectures that transformers has for masked language
modelling, by its names (`model_type` in config.json).

## What can be opened

For `encoder.family`, a new encoder, and for `encoder.init`, one that exists.
"""

_REFUSED = """
## What cannot

`encoder.init` with one of these ends with the reason given here. An architecture whose code comes with it (`auto_map`
in config.json and a `model_type` that transformers does not know, NeoBERT for one) is refused as well: latemask never
runs code of strangers.
"""


def page() -> str:
    """Return what docs/families.md should say."""
    ours = [f"| `{name}` | {COVERS[name]} |" for name in sorted(COVERS)]
    refused = [f"| `{name}` | {reason} |" for name, reason in sorted(REFUSED.items())]
    tables = ["| Family | What it covers |\n|---|---|", *ours], ["| Model type | Why not |\n|---|---|", *refused]
    opened, others = ("\n".join(rows) + "\n" for rows in tables)
    return f"{_INTRODUCTION}\n{opened}{_REFUSED}\n{others}"


def test_every_masked_language_model_of_transformers_is_opened_or_refused_with_a_reason():
    known = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    assert known <= set(COVERS) | set(REFUSED)  # not the other way: an older transformers has fewer
    assert set(COVERS) == set(FAMILIES)
    assert not set(REFUSED) & set(COVERS)


def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text("utf-8") == page(), "python -m tests.families.test_table writes it anew"


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_the_reason_is_said_in_one_line(kind):
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        pytest.skip("not in this transformers")
    with pytest.raises(UserError) as refused:
        family_of(AutoConfig.for_model(kind))
    assert str(refused.value) == f"latemask cannot open a '{kind}' encoder: {REFUSED[kind]}"
    assert "\n" not in str(refused.value)


def test_code_that_comes_with_an_encoder_is_never_run(tmp_path):
    settings = {"model_type": "neobert", "auto_map": {"AutoConfig": "model.NeoBERTConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.py").write_text("raise SystemExit('run')")
    with pytest.raises(UserError, match=r"the 'neobert' encoder .*latemask never runs code of strangers$"):
        stock_config(str(tmp_path))


def test_of_a_type_that_transformers_knows_its_own_code_is_taken(tmp_path):
    settings = {"model_type": "nomic_bert", "auto_map": {"AutoConfig": "model.NomicBertConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert family_of(stock_config(str(tmp_path))).model_type == "nomic_bert"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
