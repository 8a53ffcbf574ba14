"""Every weight is trained; its layers may be computed again on the way back, where transformers can."""

import pytest

from latemask import UserError


def test_layers_that_cannot_be_computed_again_are_a_line_and_leave_nothing(stock, tuned, tmp_path):
    with pytest.raises(UserError, match=r"cannot compute layers of 'mpnet' again; leave --checkpointing away"):
        tuned(stock("mpnet"), "full", checkpointing=True)
    assert not (tmp_path / "o").exists()
