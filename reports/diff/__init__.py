"""Two sides held against each other: read, judged metric by metric, and shown.

Nothing is imported here, so that a command that needs one of the parts loads that one alone.
"""
