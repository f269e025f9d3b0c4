"""Kinds of failure that users of such servers report, each case with the report that it came from.

A `report` is repository and number of a public issue; it is "" where none was found.
"""
