"""Encoders for masked language modelling that transformers has and latemask does not open, each with the reason.

The names are transformers' model types. docs/families.md is made of this table; a test fails when transformers has a
model type that is neither here nor among the families.
"""

from __future__ import annotations

_NOT_BUILT = "could be opened, but has not been built:"
_WHOLE_ROW = "not exact when tokens are left out:"
_TWO_STACKS = "an encoder and a decoder; latemask pre-trains encoders alone"

REFUSED = {
    "albert": f"{_NOT_BUILT} its layers share one set of weights, and latemask takes the last layers for the [MASK]s",
    "bart": _TWO_STACKS,
    "big_bird": f"{_WHOLE_ROW} its attention is sparse over blocks of slots, which would no longer be the row's",
    "convbert": f"{_WHOLE_ROW} its layers convolve over neighbouring slots, which would no longer be the row's",
    "data2vec-text": f"{_NOT_BUILT} it is RoBERTa under another name",
    "deberta": f"{_NOT_BUILT} its projections are one matrix, and its distances and head are not deberta-v2's",
    "ernie": f"{_NOT_BUILT} it is BERT with a table of tasks",
    "esmc": f"{_NOT_BUILT} its layers norm queries and keys and scale their residuals, and its head differs",
    "flaubert": f"{_NOT_BUILT} its layers are lists of attentions and feed-forwards, not modules of their own",
    "fnet": f"{_WHOLE_ROW} it has a Fourier transform over the whole row in the place of attention",
    "funnel": f"{_WHOLE_ROW} it pools neighbouring slots from block to block",
    "ibert": f"{_NOT_BUILT} it is RoBERTa in layers made for integers",
    "jina_embeddings_v3": f"{_NOT_BUILT} it is BERT's layers with rotary positions and no gate",
    "layoutlm": "needs the place of every word on a page beside the text",
    "longformer": f"{_WHOLE_ROW} its attention is sparse over chunks of slots, which would no longer be the row's",
    "luke": "reads entities beside the words, and has attention of its own between the two",
    "mbart": _TWO_STACKS,
    "megatron-bert": f"{_NOT_BUILT} it is BERT with the norms before attention and feed-forward",
    "mobilebert": f"{_WHOLE_ROW} its input joins the words of neighbouring slots",
    "modernvbert": "sees pictures beside the text; its text part is a modernbert",
    "mra": f"{_WHOLE_ROW} its attention is an approximation by blocks of slots",
    "mvp": _TWO_STACKS,
    "neomme": "sees pictures beside the text, and its attention takes a token's own value out of what it attends to",
    "nystromformer": f"{_WHOLE_ROW} its attention is an approximation by means over segments of the row",
    "perceiver": "runs its layers on a few latents instead of the tokens, so no last layer sees [MASK]s",
    "reformer": f"{_WHOLE_ROW} its attention sees chunks of slots, some of them sorted by hashes",
    "rembert": f"{_NOT_BUILT} it is BERT with a narrow word table, and another wide one for the head",
    "roc_bert": "reads the shape and the sound of every Chinese character beside it",
    "roformer": f"{_NOT_BUILT} its rotary positions turn other pairs of numbers than those of the families here",
    "squeezebert": f"{_NOT_BUILT} its layers have grouped convolutions over single positions, with the width first",
    "tapas": "reads tables: every token needs its row and its column",
    "ultrabert": f"{_NOT_BUILT} it is ModernBERT's windows in EuroBERT's layers with another head, of two maps",
    "ultravbert": "sees pictures beside the text; its text part is an ultrabert",
    "xlm": f"{_NOT_BUILT} its layers are lists of attentions and feed-forwards, not modules of their own",
    "xlm-roberta-xl": f"{_NOT_BUILT} it is XLM-RoBERTa with the norms before attention and feed-forward",
    "xmod": "has an adapter for every language in its layers, and a row does not say which language it is in",
    "yoso": f"{_NOT_BUILT} its attention is an estimate by random hashes, with a kernel of its own",
}

STRANGERS_CODE = "its code comes with it (auto_map in config.json), and latemask never runs code of strangers"
