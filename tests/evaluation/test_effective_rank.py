"""Effective rank: what was planted is found, by whatever rotation; sums over batches give what all states give."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from latemask import UserError
from latemask.evaluation.effective_rank import MASK_RATE, Moments, effective_rank, ranked
from tests.evaluation.conftest import sentence

TEXTS = [sentence(number, str(number % 2)) + " " + sentence(number + 3, "1") for number in range(40)]


def of_states(states: np.ndarray, share: float = 0.9) -> int:
    moments = Moments(states.shape[1])
    for part in np.array_split(states, 7):
        moments.add(part)
    return effective_rank(moments.covariance(), share)


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_a_planted_rank_is_found(rank):
    random = np.random.default_rng(rank)
    states = random.normal(size=(500, rank)) @ random.normal(size=(rank, 24)) + 7
    assert of_states(states, 1.0) == rank


def test_of_equal_directions_the_share_decides():
    corners = np.concatenate([np.eye(10), -np.eye(10)])
    assert [of_states(corners, share) for share in (0.05, 0.1, 0.11, 0.9, 0.91, 1.0)] == [1, 1, 2, 9, 10, 10]


def test_rotation_and_scale_and_a_shift_change_nothing():
    random = np.random.default_rng(0)
    states = random.normal(size=(400, 16)) * np.geomspace(1, 0.05, 16)
    rotation, _ = np.linalg.qr(random.normal(size=(16, 16)))
    rank = of_states(states)
    assert 1 < rank < 16
    assert of_states(states @ rotation) == of_states(1000 * states) == of_states(states + 50) == rank


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_it_is_what_singular_values_and_scikit_learn_say(share):
    random = np.random.default_rng(1)
    states = random.normal(size=(300, 30)) @ random.normal(size=(30, 30)) + random.normal(size=30)
    variances = np.linalg.svd(states - states.mean(0), compute_uv=False) ** 2
    expected = next(k for k in range(31) if variances[:k].sum() >= share * variances.sum())
    assert of_states(states, share) == expected == PCA(share, svd_solver="full").fit(states).n_components_


def test_what_does_not_vary_has_no_rank():
    assert of_states(np.ones((50, 4))) == 0


def test_ranks_of_an_encoder_are_those_of_its_states_at_the_same_tokens(encoder):
    found = ranked(encoder, TEXTS)
    model, special = encoder.plain().eval(), set(encoder.tokenizer.all_special_ids)
    random = np.random.default_rng(0)
    clean, masked, everything = [], [], []
    for text in TEXTS:
        ids = encoder.tokenizer(text, return_tensors="pt", truncation=True, max_length=32).input_ids
        real = random.permutation([place for place, piece in enumerate(ids[0].tolist()) if piece not in special])
        hidden, visible = np.split(real, [max(1, round(MASK_RATE * len(real)))])
        corrupted = ids.clone()
        corrupted[0, hidden] = encoder.tokenizer.mask_token_id
        with torch.no_grad():
            before, after = (model(one).last_hidden_state[0].numpy() for one in (ids, corrupted))
        clean.append(before[visible])
        masked.append(after[visible])
        everything.append(after[real])
    expected = [of_states(np.concatenate(states)) / 32 for states in (clean, masked, everything)]
    last = found.encoder[-1]
    assert [last.clean, last.masked, last.with_masks] == expected
    assert found.tokens == sum(map(len, clean))
    assert found.masks == sum(map(len, everything)) - found.tokens
    assert [layer.layer for layer in found.encoder] == [0, 1, 2, 3]


def test_masks_take_a_dimension_of_their_own_where_the_encoder_gives_them_one(encoder):
    """At layer 0, one huge [MASK] vector beside small words: nearly all variance lies along it."""
    model = encoder.plain()
    with torch.no_grad():
        words = model.embeddings.tok_embeddings.weight
        words[encoder.tokenizer.mask_token_id] = torch.randn(32) * 10
        model.embeddings.norm = model.final_norm = torch.nn.Identity()
    fake = SimpleNamespace(**{name: getattr(encoder, name) for name in ("tokenizer", "width", "longest", "name")})
    fake.plain, fake.untrained = lambda: model, lambda: encoder
    bottom = ranked(fake, TEXTS).encoder[0]
    assert bottom.with_masks == 1 / 32 < bottom.masked == bottom.clean


def test_too_few_tokens_and_no_mask_are_said(encoder):
    with pytest.raises(UserError, match="too few for an encoder of width 32; it needs 320"):
        ranked(encoder, TEXTS[:4])
    without = SimpleNamespace(tokenizer=SimpleNamespace(mask_token_id=None), name="x")
    with pytest.raises(UserError, match=r"has no \[MASK\]"):
        ranked(without, TEXTS)
