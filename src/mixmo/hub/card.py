"""The model card: README.md with the metadata that the Hugging Face Hub reads, the scores, how to use it."""

from dataclasses import dataclass
from typing import Any

import yaml

from mixmo.calibration.posthoc import Calibration
from mixmo.hub.backbones import library
from mixmo.models.metadata import About

NAMES = {  # of our scores: (in the table, the Hub's metric)
    "top1": ("Top1", "accuracy"),
    "top5": ("Top5", "accuracy"),
    "nll": ("NLL", "nll"),
    "nllc": ("NLL, calibrated", "nll"),
    "ece": ("ECE", "expected_calibration_error"),
    "brier": ("Brier", "brier_score"),
}


@dataclass(frozen=True)
class Origin:
    """How a network was trained and measured, for config.json and the model card."""

    recipe: dict[str, Any]  # every field, as in the run's recipe.yaml
    epoch: str  # of the weights
    device: str  # of the training
    torch: str  # version of PyTorch
    minutes: float | None  # of training, where known
    parameters: int  # that were trained
    multiply_adds: int  # of one prediction
    measured: str  # how the scores were measured
    members: tuple[dict[str, float], ...]  # scores of each
    calibration: str | None  # what it was fitted on, where no validation images were held out
    first: dict[str, float]  # {"images": n, "top1": share} of the first n test images, a quick check


def card(name: str, architecture: dict[str, Any], about: About | None, origin: Origin | None) -> str:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    scores = about.scores if about else {}
    dataset = (about.dataset if about else None) or "unknown"
    task: dict[str, Any] = {"task_type": "image-classification", "dataset_type": dataset, "dataset_name": dataset}
    results = [
        EvalResult(**task, metric_type=metric, metric_name=title, metric_value=value)
        for key, value in scores.items()
        for title, metric in [NAMES.get(key, (key, key))]
    ]
    data = ModelCardData(
        library_name="mixmo",
        pipeline_tag="image-classification",
        tags=["mixmo", "ensemble", "uncertainty"],
        model_name=name if results else None,
        eval_results=results or None,
    )
    content = f"---\n{data.to_yaml()}\n---\n\n{body(name, architecture, about, origin)}"
    return str(ModelCard(content))


def body(name: str, architecture: dict[str, Any], about: About | None, origin: Origin | None) -> str:
    given = "" if "create" in architecture or library(architecture) else ", model=YOUR_BARE_MODEL"
    lines = [
        f"# {name}",
        "",
        f"{sentence(architecture)} Trained with MixMo (Ramé, Sun, Cord; ICCV 2021): one network that predicts as an "
        "ensemble.",
        "",
        "```python",
        "import mixmo",
        "",
        f'net = mixmo.from_pretrained("{name}"{given})',
        "prediction = mixmo.predict(net, images)  # .probs .members .entropy .mutual_information .disagreement",
        "```",
        *([] if given or about is None else ["", "```", f"mixmo predict {name} photos/ --format csv", "```"]),
    ]
    if about is None:
        return "\n".join(lines) + "\n"
    channels, height, width = about.size
    side = about.resize or min(height, width)
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (about.mean, about.std))
    lines += [
        "",
        "## Images",
        f"Shorter side resized to {side} pixels, centre crop of {height} x {width}, {channels} channels; divided by "
        f"255, minus mean ({mean}), divided by standard deviation ({std}). `mixmo.predict` "
        "prepares uint8 images like this.",
    ]
    if about.classes:
        some = ", ".join(about.classes[:10]) + (", ..." if len(about.classes) > 10 else "")
        lines += ["", f"{len(about.classes)} classes: {some}"]
    if about.scores:
        lines += ["", "## Scores", *scores_table(about, origin)]
    if origin is not None:
        lines += ["", "## Training", *training(origin)]
    return "\n".join([*lines, "", "## Calibration", *calibrated(about.calibration, origin), ""])


def scores_table(about: About, origin: Origin | None) -> list[str]:
    members = origin.members if origin and len(origin.members) > 1 else ()
    heading = ["score", "ensemble" if origin else "value", *(f"member {i}" for i in range(len(members)))]
    lines = [
        f"Of the ensemble, the mean of its heads' logits, on {about.dataset or 'test data'}:",
        "",
        f"| {' | '.join(heading)} |",
        "|---" * len(heading) + "|",
        *(
            f"| {NAMES.get(key, (key,))[0]} | {' | '.join(f'{row[key]:.4f}' for row in (about.scores, *members))} |"
            for key in about.scores
        ),
    ]
    if origin:
        first = "Top1 of the ensemble on the first {images:g} test images: {top1:.4f}.".format(**origin.first)
        lines += ["", f"Measured {origin.measured}. {first}"]
    return lines


def training(origin: Origin) -> list[str]:
    """Return epochs, batch, time and device in a sentence; then the whole recipe."""
    recipe = origin.recipe
    time = "" if origin.minutes is None else f"{origin.minutes:.0f} minutes "
    return [
        f"{recipe['epochs']} epochs of {recipe['dataset']}, batch {recipe['batch_size']}, batch repetition "
        f"b = {recipe['repetition']}, {time}on {origin.device} with PyTorch {origin.torch}. "
        f"These are the weights of {origin.epoch}. {origin.parameters:,} parameters, "
        f"{origin.multiply_adds / 1e9:.4f} G multiply-adds per image.",
        "",
        "The recipe, for `mixmo train RECIPE --config FILE`:",
        "```yaml",
        yaml.safe_dump(recipe, sort_keys=False).strip(),
        "```",
    ]


def calibrated(fitted: Calibration | None, origin: Origin | None) -> list[str]:
    if fitted is None:
        return ["None: probabilities are as trained."]
    images = "the {:,} test images" if origin and origin.calibration else "{:,} held-out images"
    lines = [f"Fitted on {images.format(fitted.samples)}: temperature {fitted.temperature:.4f}."]
    if fitted.samples == 0:
        lines = [f"Temperature {fitted.temperature:.4f}: not fitted on held-out images."]
    if fitted.conformal:
        method, level = fitted.conformal.method, fitted.conformal.level
        lines += [f"Conformal prediction sets (`.sets`, {method}): target coverage {level:g}."]
    if fitted.selective:
        lines += [
            f"Selective prediction (`.abstain`): selective risk at most {100 * fitted.selective.risk:g} %, coverage "
            f"{100 * fitted.selective.coverage:.1f} % of these images."
        ]
    if origin and origin.calibration:
        lines.append(origin.calibration)
    return lines


def sentence(architecture: dict[str, Any]) -> str:
    """Return the architecture in a sentence: "wrn28_10 with 2 members."."""
    if "create" in architecture:
        name, members = architecture["create"], architecture["members"]
    else:
        source = library(architecture)
        name = architecture[source] if source else f"A {architecture['backbone']}"
        members = architecture["wrap"]["members"]
    folded = ", folded: one encoder, all heads" if architecture["folded"] else ""
    return f"{name} with {members} member{'s' if members > 1 else ''}{folded}."
