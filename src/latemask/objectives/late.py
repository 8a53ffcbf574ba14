"""Late masking (3ML): the encoder sees visible tokens only; the [MASK]s join later.

B batch, V visible, M masked, R corrupted (visible and predicted), P = M + R predicted, S = V + M, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from latemask.masking.masks import Masks, slots_of
from latemask.objectives import OBJECTIVES, Flops, Objective
from latemask.objectives.costs import head_flops, head_kept, input_flops, layers_of
from latemask.objectives.decoder_costs import DecoderCosts
from latemask.recipe import Recipe
from latemask.recipe.checks import out_of_range
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["inside", "self", "cross", "cross-only"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Join:
    """Where the [MASK]s join (late masking only)."""

    kind: Kind = "inside"
    """In the encoder's own last layers, or in a separate decoder that is thrown away."""
    layers: int = 2
    """How many layers see the [MASK]s."""
    two_way: bool = False
    """Let visible positions attend to [MASK]s, too (inside only)."""
    positions: Literal["relative", "absolute"] = "relative"
    """How a separate decoder knows positions: a learned bias over the distance, or its own table as in the paper."""
    mix: bool = False
    """Let each layer read its own mix of the outputs of all encoder layers, as in CrossMAE (cross-only only)."""
    apart: float = 0.0
    """Weight of a penalty while training: the squared cosine between the [MASK] vector and the encoder's output."""


@OBJECTIVES.register("late")
class LateMasking(Objective):
    """A stock encoder pre-trained with [MASK]s that join `inside` its last layers or at a decoder."""

    section = "join"
    Options: type = Join
    called: dict[str, str] = {"kind": "join", "layers": "join_layers"}  # noqa: RUF012
    fused: dict[str, int] = {"key_value": 2}  # noqa: RUF012
    finish = "early"
    card = "late masking, the encoder saw only visible tokens"
    mask_note = """ This run never
showed the encoder its mask token, so `fill-mask` pipelines do not apply."""

    def problem(self, recipe: Recipe) -> str | None:
        """Some positions must be masked, and there must be layers to join."""
        encoder, join = recipe.encoder, recipe.options
        if problem := none_masked(recipe):
            return problem
        if join.layers < 1:
            return f"join.layers is {join.layers}; at least one layer must see the [MASK]s"
        known = encoder.init is None or encoder.ffn_width is not None  # else the layers will be the checkpoint's
        if join.kind == "inside" and known and join.layers > encoder.layers:
            return f"join.layers {join.layers} is more than encoder.layers {encoder.layers}; inside needs that many"
        if join.two_way and join.kind != "inside":
            return f"join.two_way is for join.kind inside; a '{join.kind}' decoder has its own layers"
        if join.mix and join.kind != "cross-only":
            return f"join.mix is for join.kind cross-only; '{join.kind}' has the encoder's last states in its stream"
        return out_of_range("join.apart", join.apart, "[0, inf)")

    # The batch

    def batch(self, ids: np.ndarray, masks: Masks, vocabulary: Vocabulary, options: Any) -> dict[str, np.ndarray]:
        """Hidden positions are not in the encoder's input at all.

        visible_ids, visible_positions [B, V]; masked_positions [B, M]; corrupted_slots [B, R], where predicted
        positions that stayed visible stand among the visible; labels [B, P], first of the masked, then the corrupted.
        """
        return {
            "visible_ids": np.take_along_axis(masks.ids, masks.visible, axis=1),
            "visible_positions": masks.visible,
            "masked_positions": masks.masked,
            "corrupted_slots": slots_of(masks.corrupted, masks.visible, ids.shape[1]),
            "labels": np.take_along_axis(ids, np.concatenate([masks.masked, masks.corrupted], axis=1), axis=1),
        }

    # The model

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        join = recipe.options
        return {
            "join": join.kind,
            "join_layers": join.layers,
            "two_way": join.two_way,
            "positions": join.positions,
            "mix": join.mix,
            "apart": join.apart,
            "length": recipe.max_length,
        }

    def add_weights(self, model: Any, settings: Any) -> None:
        """Add the [MASK] vector, and a decoder unless the [MASK]s join inside."""
        import torch

        if settings.join not in KINDS:
            raise ValueError(f"join must be one of {', '.join(KINDS)}, not {settings.join!r}")
        width, heads = settings.encoder.hidden_size, settings.encoder.num_attention_heads
        # Not a row of the word table: what a [MASK] is has nothing to do with what a word means.
        joins_as_a_word = settings.join == "inside"
        model.mask_vector = torch.nn.Parameter(torch.empty(model.words.shape[1] if joins_as_a_word else width))
        model.decoder = None
        if settings.join != "inside":
            from latemask.objectives.decoder import Decoder, MixingDecoder

            shape = (settings.join_layers, width, heads, settings.length, settings.positions)
            layers = settings.encoder.num_hidden_layers
            model.decoder = MixingDecoder(layers, *shape) if settings.mix else Decoder(settings.join, *shape)

    def start(self, model: Any) -> None:
        """Draw the [MASK] vector; a decoder knows how it starts."""
        model.mask_vector.normal_(std=model.config.initializer_range)
        if model.decoder is not None:
            model.decoder.start()

    def start_from(self, model: Any, vocabulary: Vocabulary) -> None:
        """Take what the encoder reads in the place of <mask>."""
        self.start_as_a_word(model, model.family.mask_input(model.encoder, vocabulary.mask), vocabulary)

    def start_as_a_word(self, model: Any, word: Tensor, vocabulary: Vocabulary) -> None:
        model.mask_vector.copy_(word if model.decoder is None else model.family.widened(model.encoder, word))

    def left_behind(self, weights: dict[str, Tensor], words: str, mask: int) -> dict[str, Tensor]:
        """The [MASK] vector becomes the row of <mask>, which nobody trained, where it stood among words."""
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(("mask_vector", "decoder."))}
        has_decoder = any(name.startswith("decoder.") for name in weights)
        if not has_decoder:
            kept[words] = kept[words].clone()
            kept[words][mask] = weights["mask_vector"]
        return kept

    def forward(
        self,
        model: Any,
        visible_ids: Tensor,
        visible_positions: Tensor,
        masked_positions: Tensor,
        corrupted_slots: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """Encode, join, predict."""
        encode = model.encode_each if model.config.mix else partial(model.encode, layers=self.layers_run_whole(model))
        visible = encode(visible_ids, visible_positions)
        where = (visible_positions, masked_positions, some(corrupted_slots))
        if model.decoder is not None:
            states = decoded(model, visible, model.mask_vector, *where)
        else:
            from latemask.objectives.inside import JoinedLayers

            joined = JoinedLayers(model, model.config.join_layers, model.config.two_way)
            states = joined.predicted(visible, model.mask_vector, *where)
        output = model.predict(states, labels)
        if model.config.apart and model.training and labels is not None:
            last = visible[-1] if model.config.mix else visible
            output.loss = output.loss + model.config.apart * likeness(model, last)
        return output

    def layers_run_whole(self, model: Any) -> int | None:
        return None if model.decoder is not None else model.config.encoder.num_hidden_layers - model.config.join_layers

    def fill_batch(self, ids: Tensor, is_mask: Tensor) -> dict[str, Tensor]:
        positions = ids.new_ones(ids.shape).cumsum(1) - 1
        return {
            "visible_ids": ids[~is_mask].view(len(ids), -1),
            "visible_positions": positions[~is_mask].view(len(ids), -1),
            "masked_positions": positions[is_mask].view(len(ids), -1),
        }

    # The cost

    def flops(self, recipe: Recipe, pruned: bool = True) -> Flops:
        """The encoder pays for visible tokens; [MASK]s for the layers that they join."""
        counts, head, decoder = recipe.counts, head_flops(recipe), self.decoder(recipe)
        if decoder is None:
            return Flops(input_flops(recipe, counts.visible + counts.masked) + self._inside(recipe, pruned), 0, head)
        layers = sum(layer.flops(counts.visible, counts.visible) for layer in layers_of(recipe))
        return Flops(input_flops(recipe, counts.visible) + layers, decoder.flops(pruned), head)

    def decoder(self, recipe: Recipe) -> DecoderCosts | None:
        """Return what the decoder of a recipe costs; None where the [MASK]s join inside."""
        join = recipe.options
        return None if join.kind == "inside" else DecoderCosts(recipe, join.kind, join.layers, join.positions, join.mix)

    def _inside(self, recipe: Recipe, pruned: bool) -> float:
        counts, layers = recipe.counts, layers_of(recipe)
        visible, masked = counts.visible, counts.masked
        stream, first = visible + masked, len(layers) - recipe.options.layers
        every, last = _attended(recipe)
        before = sum(layer.flops(visible, visible) for layer in layers[:first])
        joined = sum(layer.flops(stream, stream, every) for layer in layers[first:-1])
        end = layers[-1].flops(counts.predicted, stream, last) if pruned else layers[-1].flops(stream, stream, every)
        return before + joined + end

    def added_weights(self, recipe: Recipe) -> int:
        if decoder := self.decoder(recipe):
            return recipe.encoder.width + decoder.weights()
        return recipe.encoder.embedding_width or recipe.encoder.width

    def added_matrices(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        decoder = self.decoder(recipe)
        return decoder.matrices() if decoder else []

    def kept_numbers(self, recipe: Recipe, scores: bool) -> float:
        """Visible positions in the encoder; all of them where the [MASK]s have joined."""
        counts, layers = recipe.counts, layers_of(recipe)
        v, s = counts.visible, counts.visible + counts.masked
        before = 2 * v * recipe.encoder.width + head_kept(recipe)
        if decoder := self.decoder(recipe):
            return before + sum(layer.kept(v, scores) for layer in layers) + decoder.kept(scores)
        first, (every, at_last) = len(layers) - recipe.options.layers, _attended(recipe)
        last = layers[-1].kept_last(counts.predicted, s, scores, at_last)
        joined = sum(layer.kept_joined(s, scores, every) for layer in layers[first:-1]) + last
        return before + sum(layer.kept(v, scores) for layer in layers[:first]) + joined

    # Words

    def words(self, recipe: Recipe) -> list[str]:
        join = recipe.options
        apart = [f"apart {join.apart:g}"] if join.apart else []
        return [f"{join.kind} {join.layers}", *(["mix"] if join.mix else []), *apart]

    def where(self, recipe: Recipe) -> str:
        join = recipe.options
        return f"[MASK]s join {join.kind}, {join.layers} layer{'s' if join.layers > 1 else ''}"


def none_masked(recipe: Recipe) -> str | None:
    """Say that no position is hidden and predicted, at the beginning or at the end."""
    if min(recipe.at(0).counts.masked, recipe.at(1).counts.masked) < 1:
        return f"mask.random + mask.keep leave no position masked; {recipe.objective} masking needs some"
    return None


def some(slots: Tensor | None) -> Tensor | None:
    """Return slots [B, R], or None where there are none."""
    return slots if slots is not None and slots.shape[1] else None


def decoded(model: Any, encoded: Any, masks: Tensor, *where: Tensor | None) -> Tensor:
    """Let [MASK]s join the encoder's output at the decoder: states where something is predicted [B, P, D]."""
    model.decoder.saves_memory = model.is_gradient_checkpointing and model.training
    states: Tensor = model.decoder(encoded, masks, *where)
    return states


def likeness(model: Any, visible: Tensor) -> Tensor:
    """Return the mean squared cosine between the [MASK] vector and states [B, V, D], which are left as they are.

    The vector alone, as wide as the layers: positions are added to words as well.
    """
    from torch.nn import functional as F

    vector = model.mask_vector if model.decoder is not None else model.family.widened(model.encoder, model.mask_vector)
    return F.cosine_similarity(visible.detach().float(), vector.float(), dim=-1).square().mean()


def _attended(recipe: Recipe) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the parts of attention where [MASK]s have joined inside, from so many to so many; and of the last layer.

    The latter works only where something is predicted.
    """
    counts = recipe.counts
    stream = counts.visible + counts.masked
    if recipe.options.two_way:
        return [(stream, stream)], [(counts.predicted, stream)]
    of_masks = (counts.masked, stream)
    return [(counts.visible, counts.visible), of_masks], [(counts.corrupted, counts.visible), of_masks]
