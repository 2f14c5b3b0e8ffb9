"""What is drawn of finished runs."""

import os
from pathlib import Path

import pytest
import torch
from matplotlib.colors import to_rgb

from mixmo.evaluation.analysis import columns, encoder_norms
from mixmo.plots import dynamics, filters
from mixmo.plots.style import COLOURS, run_names
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network


def test_lines_are_the_logged_values(runs: list[Run]) -> None:
    table, log = columns(runs[0]), runs[0].read_metrics()
    drawn = {panel.column: dynamics.lines(panel, table) for panel in dynamics.PANELS}
    assert drawn["test.ensemble.top1"] == [[100 * line["test"]["ensemble"]["top1"] for line in log]]
    assert drawn["test.ensemble.nllc"] == [[line["test"]["ensemble"]["nllc"] for line in log]]
    assert drawn["test.diversity.ratio_error"] == [[line["test"]["diversity"]["ratio_error"] for line in log]]
    members = [[100 * line["test"]["members"][m]["top1"] for line in log] for m in (0, 1)]
    assert drawn["test.members.*.top1"] == members


def test_single_networks_have_no_pairs(runs: list[Run]) -> None:
    table = columns(runs[1])
    assert [len(dynamics.lines(panel, table)) for panel in dynamics.PANELS] == [1, 1, 1, 0]
    texts = [text.get_text() for axes in dynamics.draw(runs[1:]).axes for text in axes.texts]
    assert "single networks: no pairs" in texts


def test_runs_and_members_have_different_line_styles(runs: list[Run]) -> None:
    figure = dynamics.draw(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cut-mixmo", "vanilla"]
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert len(set(colours)) == 2
    assert len({line.get_linestyle() for line in figure.axes[1].lines}) == 2  # the members of one run


def test_a_name_that_is_not_utf8_can_be_drawn() -> None:
    assert run_names([Path(os.fsdecode(b"run\xff"))]) == [r"run\udcff"]


@pytest.mark.parametrize("members", [1, 2, 3])
def test_channels_by_owner(members: int) -> None:
    norms = torch.rand(members, 16, generator=torch.Generator().manual_seed(members))
    order = filters.by_owner(norms)
    assert sorted(order.tolist()) == list(range(16))
    owners = norms[:, order].argmax(0).tolist()
    assert owners == sorted(owners)
    largest = norms[:, order].sort(dim=0, descending=True).values
    margins = (largest[0] - largest[1] if members > 1 else largest[0]).tolist()
    for m in range(members):
        own = [margin for margin, owner in zip(margins, owners, strict=True) if owner == m]
        assert own == sorted(own, reverse=True)


def test_bars_are_the_norms(runs: list[Run]) -> None:
    """The bars of a channel stand side by side around its place, each in its member's colour."""
    figure = filters.draw(runs)
    for axes, run in zip(figure.axes, runs, strict=True):
        norms_MC = encoder_norms(load_network(run, "last"))
        norms_MC = norms_MC[:, filters.by_owner(norms_MC)]
        width = 0.8 / len(norms_MC)
        wanted = [
            [c - 0.4 + m * width, width, norm, *to_rgb(COLOURS[m])]
            for m, norms_C in enumerate(norms_MC.tolist())
            for c, norm in enumerate(norms_C)
        ]
        drawn = [[bar.get_x(), bar.get_width(), bar.get_height(), *bar.get_facecolor()[:3]] for bar in axes.patches]
        assert drawn == [pytest.approx(bar, abs=1e-6) for bar in wanted]
        assert axes.get_xlim() == (-0.6, 15.6)  # of 16 channels
    two, one = figure.axes
    assert two.get_title(loc="left").startswith("cut-mixmo: separation 0.")
    assert one.get_title(loc="left") == "vanilla: one encoder"


def test_members_are_named_where_there_are_several(runs: list[Run]) -> None:
    """In any panel."""
    assert filters.draw(runs[1:]).legends == []
    for order in (runs, runs[::-1]):
        figure = filters.draw(order)
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["member 0", "member 1"]
        assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False, True]
