"""Mixtures: folders with weights, of one tokenizer."""

import pytest

from latemask.ground.errors import UserError
from latemask.text import Mixture, prepare
from latemask.text.mixture import shares


@pytest.fixture(scope="module")
def second(data, corpus, tmp_path_factory):
    """Half of the corpus, with the same tokenizer."""
    folder = tmp_path_factory.mktemp("second")
    text = corpus.read_text()
    (folder / "in.txt").write_text(text[: len(text) // 2])
    return prepare([folder / "in.txt"], out=folder / "a:b", tokenizer=str(data.tokenizer_folder), validation=0.1)


def test_one_folder_is_a_mixture_of_one(data):
    mixture = Mixture.open(data.folder)
    assert (mixture.parts, mixture.weights) == ((data,), (1.0,))
    assert mixture.record["fingerprint"] == data.fingerprint
    assert mixture.arguments == [str(data.folder)]


def test_weights_are_shares(data, second):
    for given in (("0.7", "0.3"), ("7", "3")):
        folders = [f"{part.folder}:{weight}" for part, weight in zip((data, second), given, strict=True)]
        assert Mixture.open(folders).weights == pytest.approx((0.7, 0.3))


def test_without_weights_each_counts_by_its_size(data, second):
    mixture = Mixture.open([data.folder, second.folder])
    assert mixture.weights[0] / mixture.weights[1] == pytest.approx(data.tokens("train") / second.tokens("train"), 1e-6)


def test_what_a_mixture_writes_on_a_command_line_means_the_same_mixture(data, second):
    for weights in ((1, 2), (1, 1e-3), (0.1, 0.2), (3, 3)):
        folders = [f"{part.folder}:{weight}" for part, weight in zip((data, second), weights, strict=True)]
        mixture = Mixture.open(folders)
        assert Mixture.open(mixture.arguments) == mixture


@pytest.mark.parametrize("weights", [(11, 20, 4), (3, 8, 3, 21), (1, 1, 1), (0.5, 0.25, 0.25), (1e9, 1)])
def test_shares_sum_to_one_and_are_their_own_shares(weights):
    found = shares(weights)
    assert sum(found) == pytest.approx(1)
    assert shares(found) == found


def test_another_weight_or_order_is_another_mixture(data, second):
    def fingerprint(*given):
        return Mixture.open(given).record["fingerprint"]

    one = fingerprint(f"{data.folder}:1", f"{second.folder}:2")
    assert one != fingerprint(f"{data.folder}:1", f"{second.folder}:3")
    assert one != fingerprint(f"{second.folder}:2", f"{data.folder}:1")


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_a_weight_that_is_none_is_refused(data, second, weight):
    with pytest.raises(UserError, match="a weight is a number above 0"):
        Mixture.open([f"{data.folder}:{weight}", f"{second.folder}:1"])


def test_all_parts_have_a_weight_or_none_has(data, second):
    with pytest.raises(UserError, match="give every --data a weight"):
        Mixture.open([f"{data.folder}:1", second.folder])


def test_different_tokenizers_cannot_be_mixed(data, corpus, tmp_path):
    other = prepare([corpus], out=tmp_path / "other", vocab_size=320)
    with pytest.raises(UserError, match=r"different tokenizers; prepare one with --tokenizer"):
        Mixture.open([data.folder, other.folder])


def test_a_folder_that_is_not_there_is_named_without_its_weight(tmp_path):
    with pytest.raises(UserError, match=r"nothing: no such folder"):
        Mixture.open([f"{tmp_path}/nothing:0.5"])
