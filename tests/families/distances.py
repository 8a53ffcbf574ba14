"""Rows of which much is hidden, so that slots and positions are far apart, against the stock model on the whole row."""

import torch

from tests.conftest import make_batch, make_rows


def assert_stock(model, recipe) -> None:
    rows, visible = torch.from_numpy(make_rows(length=recipe.length)), make_batch(recipe)["visible_positions"]
    present = torch.zeros(4, recipe.length, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
        everything = model.encode(rows, torch.arange(recipe.length).expand(4, -1))
        plainly = model.encoder(input_ids=rows).last_hidden_state
    torch.testing.assert_close(ours, plain.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(everything, plainly, rtol=1e-4, atol=1e-5)
