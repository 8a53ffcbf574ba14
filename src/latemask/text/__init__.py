"""Words to numbers: corpus, tokenizer, shards. Knows nothing of masks."""

from latemask.text.prepared import PreparedData
from latemask.text.preparing import prepare
from latemask.text.shards import TokenRows
from latemask.text.tokenizer import Vocabulary

__all__ = ["PreparedData", "TokenRows", "Vocabulary", "prepare"]
