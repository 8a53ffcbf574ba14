"""The tokenizer: RoBERTa's special tokens, any byte survives, other people's tokenizers work; and its sample."""

import json
import random
import signal
import time

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizerFast, PreTrainedTokenizerFast

from latemask.ground.errors import UserError
from latemask.text.reading import content_hash
from latemask.text.tokenizer import (
    evenly_spread,
    load_tokenizer,
    sample,
    save_tokenizer,
    train_tokenizer,
    vocabulary_of,
)

TEXTS = ["the quick brown fox jumps over the lazy dog", "the dog and the fox are friends"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(TEXTS), 300)


def test_special_tokens_have_robertas_ids(tokenizer):
    assert [tokenizer.convert_tokens_to_ids(t) for t in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")] == [
        0,
        1,
        2,
        3,
        4,
    ]
    vocabulary = vocabulary_of(tokenizer)
    assert (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.mask) == (0, 1, 2, 4)
    assert vocabulary.special == (0, 1, 2, 3, 4)
    assert vocabulary.size == len(tokenizer)


def test_one_text_and_two_are_framed_like_robertas(tokenizer):
    one, two = tokenizer("the dog").input_ids, tokenizer("the dog", "the fox").input_ids
    assert (one[0], one[-1]) == (0, 2)
    assert two == [*one, 2, *tokenizer("the fox").input_ids[1:]]


@pytest.mark.parametrize("text", ["naïve café", "日本語", "tab\tand\nnewline", "\x00\x7f", "🙂 emoji"])
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True).removeprefix(" ") == text


def test_a_mask_swallows_the_space_before_it(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer("the <mask> dog").input_ids) == [
        "<s>",
        "Ġthe",
        "<mask>",
        "Ġdog",
        "</s>",
    ]


def test_it_takes_words_for_tagging(tokenizer):
    assert tokenizer(["the", "dog"], is_split_into_words=True).word_ids() == [None, 0, 1, None]


def test_saved_and_loaded_it_is_the_same_and_names_a_class_older_transformers_know(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("the quick <mask>").input_ids == tokenizer("the quick <mask>").input_ids
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["add_prefix_space"] is True
    assert config["model_input_names"] == ["input_ids", "attention_mask"]


def test_berts_names_for_special_tokens_will_do(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path)
    vocabulary = vocabulary_of(load_tokenizer(tmp_path))
    assert (vocabulary.bos, vocabulary.eos, vocabulary.pad, vocabulary.mask) == (2, 3, 0, 4)


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    plain = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="<s>")
    with pytest.raises(UserError, match="no pad and no mask token"):
        vocabulary_of(wrapped)


def test_a_missing_tokenizer_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no tokenizer at") as caught:
        load_tokenizer(tmp_path / "nothing")
    assert "\n" not in str(caught.value)


def test_a_folder_that_holds_one_deeper_is_hinted_at(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    with pytest.raises(UserError, match=r"did you mean '.*/tokenizer'\?"):
        load_tokenizer(tmp_path)


def test_control_c_does_not_wait_for_the_end_of_the_text():
    read = []

    def texts():
        for number in range(100):
            read.append(number)
            if number == 10:
                signal.raise_signal(signal.SIGINT)
            if number > 10:
                time.sleep(0.05)
            yield "some words to read"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            train_tokenizer(texts(), 300)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(read) < 50


CORPUS = [f"document {n} " * (1 + n % 30) for n in range(2000)]


def test_a_small_corpus_is_sampled_whole():
    assert sorted(sample(CORPUS, 10**9)) == sorted(CORPUS)


def test_the_sample_is_bounded_and_uses_what_it_may():
    size = sum(map(len, sample(CORPUS, 50_000)))
    assert 50_000 - 500 < size <= 50_000


def test_the_sample_does_not_depend_on_the_order():
    shuffled = random.Random(0).sample(CORPUS, len(CORPUS))
    assert sample(shuffled, 50_000) == sample(CORPUS, 50_000)


def test_the_sample_is_spread_over_the_whole_corpus():
    numbers = sorted(int(text.split()[1]) for text in sample(CORPUS, 50_000))
    for quarter in range(4):
        found = sum(500 * quarter <= number < 500 * (quarter + 1) for number in numbers)
        assert 0.15 < found / len(numbers) < 0.35


def test_the_sample_does_not_favour_validation_documents():
    chosen = [content_hash(text.encode()) < 2**62 for text in sample(CORPUS, 100_000)]
    assert 0.15 < sum(chosen) / len(chosen) < 0.35


def test_one_document_larger_than_the_sample_is_still_a_sample():
    assert sample(["x" * 1000], 10) == ["x" * 1000]


def test_groups_of_a_large_corpus_are_sampled_at_even_distances():
    assert evenly_spread([10] * 100, 1000) == list(range(100))
    assert evenly_spread([10] * 100, 100) == list(range(0, 100, 10))
    assert evenly_spread([10**6], 10) == [0]
