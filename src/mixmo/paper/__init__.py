"""The paper's tables and figures as data: what each compares, and every number it prints.

One file an entry in `tables/`, opened by its name. Numbers are as printed, in the unit of their column.
"""

from mixmo.paper.table import Column, Figure, Row, Table, load, names

__all__ = ["Column", "Figure", "Row", "Table", "load", "names"]
