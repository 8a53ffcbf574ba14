"""What families have in common whose positions turn queries and keys: BERT's tables of positions are not there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latemask.families import Family, Places
from latemask.families.sight import Rotation
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe

if TYPE_CHECKING:
    from torch import Tensor

ONE_KIND = "every layer"
"""The kind of rotation, where all layers turn alike."""
_BY_LENGTH = ("dynamic", "longrope")
_COPY_BASE = 10_000.0  # ExLM's


class Rotary(Family):
    """An encoder with rotary positions."""

    def problem(self, encoder: EncoderRecipe) -> str | None:
        """Rotary positions turn pairs of numbers."""
        if (encoder.width // encoder.heads) % 2:
            return f"encoder.width / encoder.heads is {encoder.width // encoder.heads}; rotary positions need it even"
        return super().problem(encoder)

    def ffn_width(self, width: int) -> int:
        """A gated feed-forward has three matrices instead of two, so 8/3 x width costs what 4 x width does."""
        return max(round(8 / 3 * width / 32), 1) * 32 if self.facts.ffn_matrices == 3 else super().ffn_width(width)

    def check(self, config: Any) -> None:
        """Refuse rotations that are not the position's alone, and heads that are not the width's share."""
        for settings in _rotations(config):
            if (kind := settings.get("rope_type")) in _BY_LENGTH:
                raise UserError(
                    f"this encoder's rotary positions are of the kind '{kind}' (rope_parameters in config.json): they "
                    f"depend on how long the input is, which leaving hidden tokens out changes"
                )
        width = config.hidden_size // config.num_attention_heads
        if (getattr(config, "head_dim", None) or width) * config.num_attention_heads != config.hidden_size:
            raise UserError(
                f"this encoder's heads are {config.head_dim} wide (head_dim in config.json), and its width is "
                f"{config.hidden_size} for {config.num_attention_heads} of them; latemask opens even shares"
            )

    def shape(self, config: Any) -> dict[str, Any]:
        """Add the base of the rotary positions."""
        bases = [settings["rope_theta"] for settings in _rotations(config) if "rope_theta" in settings]
        return {**super().shape(config), "rotary_base": float(bases[0]) if bases else None}

    def stretch(self, config: Any, longest: int, rotary_base: float | None) -> None:
        """Positions are computed, so there may be more of them."""
        config.max_position_embeddings = longest
        if rotary_base is not None:
            self.turn_by(config, rotary_base)

    def turn_by(self, config: Any, base: float) -> None:
        """Let a config have another base."""
        config.rope_parameters["rope_theta"] = base

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        """Cosines and sines of the positions, the same for every layer."""
        return Places(positions, {ONE_KIND: encoder.rotary_emb(states, positions)}, None, ordered)


def rotary_settings(encoder: EncoderRecipe) -> dict[str, Any]:
    """Return the settings of a stock config whose layers all turn alike."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": encoder.rotary_base}}


def _rotations(config: Any) -> list[dict[str, Any]]:
    """Return the settings of every kind of layer; there is one, or a name for each."""
    settings = getattr(config, "rope_parameters", None) or {}
    of_kinds = [value for value in settings.values() if isinstance(value, dict)]
    return of_kinds or [settings]


def rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn queries or keys [B, H, S, D/H] by their positions."""
    import torch

    cos, sin = (part.unsqueeze(1) for part in rotation)
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return ((heads.float() * cos) + (turned.float() * sin)).to(heads.dtype)


def with_copies(places: Places, copies: Tensor) -> Places:
    """Return places that are told apart by the number of a copy [B, S], too; number 0 stays what it was, to the bit.

    Copies turn the slower half of the pairs, by frequencies of their own: scores depend on differences of positions
    and of numbers alone.
    """

    def turned(rotation: Rotation) -> Rotation:
        cos, sin = (part.float() for part in rotation)
        angles = _copy_angles(copies, cos.shape[-1])
        along, across = angles.cos(), angles.sin()
        both = cos * along - sin * across, sin * along + cos * across
        return both[0].to(rotation[0].dtype), both[1].to(rotation[1].dtype)

    rotations = {kind: turned(rotation) for kind, rotation in places.rotations.items()}
    return replace(places, rotations=rotations, distinct=False)


def _copy_angles(copies: Tensor, head_width: int) -> Tensor:
    """[B, S] → [B, S, D/H]: as `rotated` has it, the second half of a head is turned like the first."""
    import torch

    pairs = head_width // 2
    slow = pairs - pairs // 2
    frequencies = _COPY_BASE ** (-torch.arange(slow, device=copies.device) / slow)
    angles = copies[..., None] * torch.cat((frequencies.new_zeros(pairs - slow), frequencies))
    return torch.cat((angles, angles), dim=-1)


def start_near(queries: Tensor, keys: Tensor, head_width: int) -> None:
    """Set keys to queries: turned by their positions, equal vectors attract most at a distance of 0.

    Where heads share keys [D, D'], these are a mean of theirs, as long as each.
    """
    sharing = len(queries) // len(keys)
    grouped = queries.unflatten(0, (-1, sharing, head_width))
    keys.copy_(grouped.sum(1).flatten(0, 1) / sharing**0.5)


def start_passing(values: Tensor, outputs: Tensor, turn: Tensor, head_width: int) -> None:
    """Pass values through a turn and the output through its transpose; where heads share values, as much as fits."""
    sharing = outputs.shape[1] // len(values)
    values.copy_(turn[: len(values)])
    back = values.unflatten(0, (-1, 1, head_width)).expand(-1, sharing, -1, -1)
    outputs.copy_(back.flatten(0, 2).T / sharing)
