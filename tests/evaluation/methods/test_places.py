"""Layers and linear maps are found in stock models by their shape, whatever a family calls them."""

import pytest

from latemask.evaluation.methods.places import is_attention, layers_of, linears_of
from tests.evaluation.conftest import make_task


@pytest.mark.parametrize("family", ["modernbert", "roberta", "bert", "distilbert"])
def test_every_layer_has_its_linear_maps_from_the_bottom_to_the_top(stock, family):
    model = stock(family).with_head(make_task(), 0)
    found = linears_of(model)
    each = 4 if family == "modernbert" else 6
    assert len(layers_of(model)) == 3
    assert len(found) == 3 * each
    assert not any("classifier" in name or "pooler" in name for name, _ in found)
    assert sum(is_attention(name) for name, _ in found) == 3 * (each - 2)
    modules = dict(model.named_modules())
    assert all(modules[name] is linear for name, linear in found)
