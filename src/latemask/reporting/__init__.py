"""A page to look at: what runs did, what their encoders score, what that says. Computes nothing new.

runs, scores → verdict            what was written → what can be compared → words
plots, page → comparing           figures → one HTML file; `latemask compare`, `latemask report`
"""

from latemask.reporting.comparing import compare, report, write_page

__all__ = ["compare", "report", "write_page"]
