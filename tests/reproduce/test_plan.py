"""Which runs the tables need, checked against the paper's data and against recipes written out by hand."""

import json
import math
from pathlib import Path

import pytest
import torch

from mixmo import UserError
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime
from mixmo.engine.distributed import World
from mixmo.engine.preflight import check_fit
from mixmo.recipes import named
from mixmo.recipes.protocols import FACTS
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import paper, scores
from mixmo.reproduce.execute import run_here
from mixmo.reproduce.plan import Plan, derived_name, expand, missing, needed, trained
from mixmo.reproduce.report import printed
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.settings import check_settings, read_settings, settings_for
from mixmo.reproduce.store import Store, digest, run_name
from mixmo.runs.directory import Run


def cell(plan: Plan, row: str, column: int = 0) -> tuple[tuple[Recipe, ...], ...]:
    place = [r.label for r in plan.table.rows].index(row)
    return plan.cells[place, column].groups


@pytest.mark.parametrize("name", paper.names())
def test_every_printed_number_has_a_cell_at_the_papers_scale(name: str, tmp_path: Path) -> None:
    """Rows x columns are covered: the runs of each cell are planned, but where the paper has a dash."""
    table = paper.load(name)
    plan, runs = expand(table), needed([expand(table)], Store(tmp_path))
    assert plan.beyond == 0
    assert set(plan.cells) == {(i, j) for i in range(len(table.rows)) for j in range(len(table.columns))}
    for place in table.figures:
        assert plan.cells[place].planned
        if scores.source(plan.cells[place].score):
            assert all(recipe in runs for group in plan.cells[place].groups for recipe in group)
    assert bool(runs) == trained(table)


@pytest.mark.parametrize("scale", SCALES)
def test_a_table_never_mixes_scales(scale: str, tmp_path: Path) -> None:
    """All runs of a table have as many epochs, at the scale's batch, but for what a method itself says."""
    for name in paper.names():
        runs = needed([expand(paper.load(name), scale)], Store(tmp_path))
        by_dataset: dict[str, set[tuple[int, str]]] = {}
        for recipe in runs:
            by_dataset.setdefault(recipe.dataset, set()).add((recipe.epochs, recipe.precision))
        assert all(len(kinds) == 1 for kinds in by_dataset.values())
        if scale == "smoke":
            assert set(by_dataset) <= {"digits"}
        if scale in ("hour", "minutes"):
            assert max((recipe.width for recipe in runs), default=0) <= {"hour": 4, "minutes": 2}[scale]


def test_cells_of_the_main_table_name_their_recipes_and_seeds() -> None:
    plan = expand(paper.load("main-table"))
    assert plan.seeds == 3
    assert cell(plan, "Cut-MixMo b=4") == tuple(
        (named("cifar100/cut-mixmo").replace(repetition=4, seed=s),) for s in range(3)
    )
    assert cell(plan, "Vanilla", 3)[0][0] == named("cifar10/vanilla")
    assert cell(plan, "Mixup BA †")[0][0] == named("cifar100/mixup-ba")
    pairs = cell(plan, "DE (2 Nets) + CutMix")
    assert [[recipe.seed for recipe in pair] for pair in pairs] == [[0, 1], [1, 2], [0, 2]]
    assert {recipe for pair in pairs for recipe in pair} == {group[0] for group in cell(plan, "CutMix")}
    assert all(one.which == "best" for one in plan.cells.values())


def test_without_early_stopping_shares_all_runs_but_those_of_other_methods(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (set(needed([expand(paper.load(n))], store)) for n in ("main-table", "no-early-stopping"))

    def methods(recipes: set[Recipe]) -> set[str]:
        return {run_name(recipe).split("-w10")[0].split("-", 1)[1] for recipe in recipes}

    assert methods(second - first) == {"hard-patchup", "mimo-m3"}
    assert methods(first - second) == {"manifold-mixup", "resizemix"}


def test_what_the_table_varies_goes_before_the_method_and_the_method_before_what_it_has_in_common() -> None:
    plan = expand(paper.load("summary"))
    assert cell(plan, "w=4", 0)[0][0] == named("cifar100/vanilla").replace(width=4)  # no repetition
    assert cell(plan, "w=4", 12)[0][0] == named("cifar100/cut-mixmo").replace(width=4, repetition=4)
    assert len(cell(plan, "w=4", 18)[0]) == 2
    sweep = expand(paper.load("p"))
    assert cell(sweep, "p=0 (Linear-MixMo)")[0][0] == named("cifar100/linear-mixmo")
    assert cell(sweep, "p=0.5 (Cut-MixMo)")[0][0] == named("cifar100/cut-mixmo")
    assert cell(expand(paper.load("r")), "r=inf")[0][0].r == math.inf


def test_named_methods_are_found_again() -> None:
    """Tables 3, 4 and the width of Tiny ImageNet, by name."""
    assert cell(expand(paper.load("encoders-classifiers")), "2 encoders, 1 classifier")[0][0] == named(
        "cifar100/shared-head"
    )
    robust = expand(paper.load("cifar100-c"))
    assert cell(robust, "Cut-MixMo + AugMix")[0][0] == named("cifar100/cut-mixmo+augmix").replace(repetition=4)
    assert cell(robust, "DE (2 Nets) + AugMix")[0][0] == named("cifar100/augmix")
    tiny = expand(paper.load("tiny-imagenet"))
    assert cell(tiny, "Puzzle-Mix †")[0][0] == named("tiny-imagenet/puzzle-mix")
    assert cell(tiny, "Cut-MixMo b=4", 4)[0][0] == named("tiny-imagenet/cut-mixmo").replace(repetition=4, width=3)
    assert [r.seed for r in cell(tiny, "DE (4 Nets)")[0]] == [0, 1, 2, 3]


def test_dashes_are_not_planned(tmp_path: Path) -> None:
    runs = needed([expand(paper.load("main-table"))], Store(tmp_path))
    assert named("cifar100/gradaug") in runs
    assert named("cifar10/gradaug") not in runs


def test_settings_change_the_protocol_and_not_what_is_compared() -> None:
    plan = expand(paper.load("summary"), "hour", {"batch_size": 64, "width": 3})
    assert cell(plan, "w=4", 0)[0][0].width == 4
    assert cell(plan, "w=4", 0)[0][0].batch_size == 64
    mixed = expand(paper.load("main-table"), "paper", {"batch_size": 256, "width": 4})
    assert cell(mixed, "Cut-MixMo b=4")[0][0] == named("cifar100/cut-mixmo").replace(
        repetition=4, width=4, batch_size=256
    )
    assert cell(mixed, "Mixup BA †")[0][0].batch_size == 640


def test_ghosts_of_a_scale_belong_to_its_batch() -> None:
    def ghosts(scale: str, settings: dict[str, int]) -> set[tuple[int, int]]:
        plan = expand(paper.load("tiny-imagenet"), scale, settings)
        return {
            (recipe.batch_size, recipe.ghost) for c in plan.cells.values() for group in c.groups for recipe in group
        }

    assert ghosts("hour", {}) == {(256, 128)}
    assert ghosts("hour", {"batch_size": 64}) == {(64, 0)}
    assert ghosts("hour", {"batch_size": 64, "ghost": 32}) == {(64, 32)}
    assert ghosts("hour", {"ghost": 0}) == {(256, 0)}


def test_a_setting_that_changes_nothing_is_not_in_the_title_and_is_rejected_alone() -> None:
    both = expand(paper.load("summary"), "hour", {"batch_size": 64, "width": 3})
    assert both.settings == {"batch_size": 64}
    idle = expand(paper.load("p"), "hour", {"p": 0.3})
    assert idle == expand(paper.load("p"), "hour")
    with pytest.raises(UserError, match=r"--set p=0.3 changes nothing in p"):
        check_settings({"p": 0.3}, [idle])
    check_settings({"repetition": 2}, [expand(paper.load("p"), "hour", {"repetition": 2})])  # as most rows have it
    check_settings({"epochs": 1}, [expand(paper.load("weights"), "hour", {"epochs": 1})])  # nothing is trained
    check_settings({"width": 3}, [both, expand(paper.load("mixing"), "hour", {"width": 3})])
    with pytest.raises(UserError, match="given twice"):
        read_settings(["epochs=1", "epochs=2"])


@pytest.mark.parametrize(("scale", "width"), [("hour", 10), ("smoke", 3)])
def test_a_width_that_is_set_is_not_narrowed(scale: str, width: int) -> None:
    plan = expand(paper.load("mixing"), scale, {"width": width})
    assert {recipe.width for one in plan.cells.values() for group in one.groups for recipe in group} == {width}
    assert plan.beyond == 0
    varied = expand(paper.load("summary"), scale, {"width": width})
    assert varied == expand(paper.load("summary"), scale)


def test_the_settings_that_a_run_was_made_with_are_found() -> None:
    planned = [named("cifar100/vanilla").replace(width=width) for width in (2, 4)]
    kept = planned[1].replace(precision="bf16")
    assert settings_for(kept, planned) == settings_for(kept, planned[::-1]) == "--set precision=bf16"
    assert settings_for(kept.replace(batch_size=256), planned) == "--set batch_size=256 --set precision=bf16"
    assert settings_for(kept.replace(lr=0.3), planned) == ""


def test_scales_leave_out_what_is_too_wide() -> None:
    plan = expand(paper.load("summary"), "hour")
    assert plan.beyond == 4 * 20
    assert {plan.table.rows[i].label for i, _ in plan.cells} == {"w=2", "w=3", "w=4"}
    assert not expand(paper.load("imagenet"), "minutes").cells
    narrowed = expand(paper.load("summary"), "smoke")  # but the smallest one, at which only the way there is tried
    assert narrowed.beyond == 0
    widths = {recipe.width for c in narrowed.cells.values() for group in c.groups for recipe in group}
    assert max(widths) == SCALES["smoke"].protocols["cifar100"].widest


def test_figures_without_numbers_show_those_printed_elsewhere() -> None:
    width, repetition = paper.load("width"), paper.load("batch-repetition")
    assert printed(width, 5, 12) == paper.load("summary").figures[5, 12]  # Cut-MixMo Top1 at w=10: 85.40
    figure = printed(repetition, 8, 1)  # Cut-MixMo + CutMix, b = 4: printed as 52.4 in units of 1e-2
    assert figure is not None
    assert figure.value == pytest.approx(0.524)
    assert printed(repetition, 6, 0) is None  # b = 1 is drawn only
    split = paper.load("memory-split-cutmix")
    place = [row.label for row in split.rows].index("w=10 N=3")
    third = printed(split, place, 1)
    assert third is not None
    assert third == pytest.approx((0.464, 0.002))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch_size", "has no value"),
        ("batchsize=2", "did you mean 'batch_size'"),
        ("batch_size=many", "give a value of that kind"),
        ("seed=3", "--seeds N"),
        ("width=1.5", "give a value of that kind"),
        ("lr=[", "give a value of that kind"),
        ("lr=", "--set lr=: lr is such as 0.1; give a value"),
        ("size=all", "size is a whole number"),
        ("start=5", "start is a text"),
    ],
)
def test_settings_that_make_no_sense(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_settings([word])


def test_a_network_to_start_from_can_be_set() -> None:
    assert read_settings(["start=runs/vanilla", "size=null"]) == {"start": "runs/vanilla", "size": None}


def test_a_file_is_no_place_for_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; give a folder"):
        Store(tmp_path / "file")


def test_several_processes_do_not_claim_runs_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = World()
    pair.size = 2
    monkeypatch.setattr(Runtime, "world", lambda self: pair)
    with pytest.raises(UserError, match="one process; start it without torchrun"):
        run_here([named("digits/vanilla")], Store(tmp_path), Runtime(device="cpu"))


def test_the_last_ten_epochs_are_ten_epochs_where_not_all_were_scored(tmp_path: Path) -> None:
    lines = [{"epoch": epoch, "test": {"ensemble": {"top1": epoch / 100}}} for epoch in range(2, 21, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert scores.of_epochs("top1", Run(tmp_path, Recipe())) == pytest.approx((12 + 14 + 16 + 18 + 20) / 500)


def test_a_setting_that_a_row_cannot_have_names_the_row() -> None:
    with pytest.raises(UserError, match=r"main-table, MIMO b=4.*multiple"):
        expand(paper.load("main-table"), "paper", {"batch_size": 66})


def test_run_names_are_distinct_and_never_change() -> None:
    recipe = named("cifar100/cut-mixmo+cutmix").replace(width=4, precision="bf16", batch_size=256)
    assert run_name(recipe).startswith("cifar100-cut-mixmo+cutmix-w4-b2-s0-")
    assert len({digest(recipe.replace(seed=s, lr=lr)) for s in range(3) for lr in (0.1, 0.2)}) == 6
    # Written down: a hash that changes would lose what was trained under it.
    assert (
        run_name(named("cifar100/cut-mixmo").replace(width=4, repetition=4)) == "cifar100-cut-mixmo-w4-b4-s0-819fb96e"
    )
    names = [
        run_name(r) for n in paper.names() for c in expand(paper.load(n), "hour").cells.values() for r in c.groups[0]
    ]
    recipes = {r for n in paper.names() for c in expand(paper.load(n), "hour").cells.values() for r in c.groups[0]}
    assert len(set(names)) == len(recipes)


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_fits_its_data_set(scale: str, tmp_path: Path) -> None:
    """As a training checks it before it starts, on empty images of the right size, evenly of all classes."""
    plans = [expand(paper.load(name), scale, seeds=1) for name in paper.names()]
    runs = needed(plans, Store(tmp_path))
    assert len(runs) > 50
    for recipe in runs:
        facts = FACTS[recipe.dataset]
        channels, height, width = facts.size
        images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(facts.samples, height, width, channels)
        split = Split(images, torch.arange(facts.samples) % facts.classes)
        classes = tuple(map(str, range(facts.classes)))
        check_fit(recipe, Dataset(recipe.dataset, split, split, classes, (0.5,) * channels, (0.5,) * channels))


def test_seeds_come_after_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = missing(needed([expand(paper.load("main-table"))], store), store)
    assert [recipe.seed for recipe in runs] == sorted(recipe.seed for recipe in runs)


def test_what_was_derived_of_ensembles_needs_no_runs(tmp_path: Path) -> None:
    """The scores of a single run are its own: what lies beside it does not stand in for it."""
    store, plan = Store(tmp_path), expand(paper.load("best-ensembles"), "smoke")
    groups = {(cell, group) for cell in plan.cells.values() if cell.planned for group in cell.groups}
    everything = needed([plan], store)
    assert missing(everything, store) == list(everything)
    for cell, group in groups:
        store.keep(group, derived_name(cell), {})
    alone = {group[0] for _, group in groups if len(group) == 1}
    assert 0 < len(alone) < len(everything)
    assert set(missing(needed([plan], store), store)) == alone
