"""HTML reports of runs, a live page of all runs below a folder, and their list for the terminal.

One run: `found` reads its folder, `analysis` computes what is drawn from its logits, `one` lays out the sections.
Several: `many`. `vega` has the charts, `page` the HTML, `build` the public function `mixmo.report`.
"""
