"""Words to numbers: corpus, tokenizer, shards. Knows nothing of masks."""

from latemask.text.mixture import Mixture
from latemask.text.prepared import PreparedData
from latemask.text.preparing import prepare
from latemask.text.rows import TokenRows
from latemask.text.tokenizer import Vocabulary

__all__ = ["Mixture", "PreparedData", "TokenRows", "Vocabulary", "prepare"]
