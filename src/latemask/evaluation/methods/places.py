"""Where in a stock model a method may put something: the layers of its encoder, and the linear maps inside of them."""

from __future__ import annotations

from typing import Any


def layers_of(model: Any) -> Any:
    """Return the layers of a stock encoder, with or without a head, as an nn.ModuleList; none where it has no list."""
    from torch.nn import ModuleList

    body = model.base_model
    count = body.config.num_hidden_layers
    lists = (one for one in body.modules() if isinstance(one, ModuleList) and len(one) == count)
    return next(lists, ModuleList())  # ALBERT has one layer that is run many times


def linears_of(model: Any) -> list[tuple[str, Any]]:
    """Return the linear maps inside the layers, by their full names in the model, from the bottom to the top."""
    from torch.nn import Linear

    inside = {id(one) for one in layers_of(model).modules()}
    return [(name, one) for name, one in model.named_modules() if id(one) in inside and isinstance(one, Linear)]


def is_attention(name: str) -> bool:
    """Whether a linear map, by its full name, belongs to attention; the others are the feed-forward's."""
    *path, _ = name.split(".")
    return any("att" in part for part in path)
