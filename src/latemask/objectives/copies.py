"""The stream of ExLM: visible tokens, and behind them every expanded position several times, told apart by rotation.

B batch, V visible, T targets (start, the hidden tokens, end), k copies of each, N = kT slots, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latemask.families import Places
from latemask.families.rotary import with_copies
from latemask.objectives.inside import JoinedLayers


class JoinedCopies(JoinedLayers):
    """Layers over visible positions, number 0 at each, and copies 1 to k of every expanded one behind them."""

    def __init__(self, model: Any, layers: int, targets: int):
        super().__init__(model, layers, two_way=False)
        start, end = model.end_vectors.split(1)
        vectors = torch.cat((start, model.mask_vector.expand(targets - 2, -1), end))
        self.copies = model.config.copies
        self.vectors = vectors.repeat_interleave(self.copies, 0)
        self.numbers = torch.arange(1, self.copies + 1, device=vectors.device).repeat(targets)

    def run_late(self, visible: Tensor, positions: Tensor, expanded: Tensor) -> Tensor:
        """Let the copies join visible states [B, V, D], which do not see them; return theirs [B, N, D]."""
        return self.predicted(visible, self.vectors, positions, expanded.repeat_interleave(self.copies, 1), None)

    def run_whole(self, visible: Tensor, positions: Tensor, expanded: Tensor) -> Tensor:
        """The same where everything sees everything: every layer runs as it is."""
        stream, places = self.stream(visible, self.vectors, positions, expanded.repeat_interleave(self.copies, 1))
        for layer in self.layers:
            stream = self.family.run(layer, stream, places)
        return self.family.final_norm(self.encoder, stream[:, visible.shape[1] :])

    def places(self, stream: Tensor, positions: Tensor) -> Places:
        """Turn what stands at one position apart."""
        visible = self.numbers.new_zeros(stream.shape[1] - len(self.numbers))
        return with_copies(super().places(stream, positions), torch.cat((visible, self.numbers))[None])
