"""HTML reports of runs, a live page of all runs below a folder, and their list for the terminal.

One run: `run_data` reads its folder, `analysis` computes what is drawn from its logits, `run_report` lays out the
sections. Several: `comparison_report`. The files `*_charts` and `trade_offs` draw by `vega`; `page` makes the HTML;
`build` has the public function `mixmo.report`.
"""
