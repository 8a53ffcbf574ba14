"""`--method full`: every weight of encoder and head is trained."""

from latemask.evaluation.methods import METHODS, Method


@METHODS.register("full")
class Full(Method):
    """What a Method is unless it says otherwise."""
