"""FLOPs in closed form, and the steps a budget pays for. No torch in the arithmetic."""

from latemask.budget.flops import Flops, sequence_flops, spent
from latemask.budget.steps import planned_steps, with_budget

__all__ = ["Flops", "planned_steps", "sequence_flops", "spent", "with_budget"]
