"""Words to numbers: corpus, tokenizer, shards. Knows nothing of masks.

A task in this room is datatrove's: the work that one process does alone, on one group of pieces of the corpus.
"""

from latemask.text.mixture import Mixture
from latemask.text.prepared import PreparedData
from latemask.text.preparing import prepare
from latemask.text.rows import TokenRows
from latemask.text.tokenizer import Vocabulary

__all__ = ["Mixture", "PreparedData", "TokenRows", "Vocabulary", "prepare"]
