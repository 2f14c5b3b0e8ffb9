"""The paper's tables and figures made again: plan, runs, scores, tables. `mixmo reproduce` is its command."""
