"""The model card: README.md with the metadata that the Hugging Face Hub reads, the scores, how to use it."""

from typing import Any

import yaml

from mixmo.calibration.posthoc import Calibration
from mixmo.hub.backbones import library
from mixmo.hub.origin import Origin
from mixmo.models.metadata import About

NAMES = {  # of our scores: (in the table, the Hub's metric)
    "top1": ("Top1", "accuracy"),
    "top5": ("Top5", "accuracy"),
    "nll": ("NLL", "nll"),
    "nllc": ("NLL, calibrated", "nll"),
    "ece": ("ECE", "expected_calibration_error"),
    "brier": ("Brier", "brier_score"),
}


def card(name: str, architecture: dict[str, Any], about: About | None, origin: Origin | None) -> str:
    """Return the text of README.md."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    scores = about.scores if about else {}
    dataset = (about.dataset if about else None) or "unknown"
    results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=NAMES[key][1] if key in NAMES else key,
            metric_name=NAMES[key][0] if key in NAMES else key,
            metric_value=value,
        )
        for key, value in scores.items()
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
    """Return the text after the metadata."""
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
    lines += [
        "",
        "## Images",
        f"Shorter side resized to {side} pixels, centre crop of {height} x {width}, {channels} channels; divided by "
        f"255, minus mean {values(about.mean)}, divided by standard deviation {values(about.std)}. `mixmo.predict` "
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
    """Return the table of the ensemble's scores, and of each member's where known."""
    members = origin.members if origin and len(origin.members) > 1 else ()
    heading = ["score", "ensemble" if origin else "value", *(f"member {i}" for i in range(len(members)))]
    return [
        f"Of the ensemble, the mean of its heads' logits, on {about.dataset or 'test data'}:",
        "",
        f"| {' | '.join(heading)} |",
        "|---" * len(heading) + "|",
        *(
            f"| {NAMES.get(key, (key,))[0]} | {' | '.join(f'{row[key]:.4f}' for row in (about.scores, *members))} |"
            for key in about.scores
        ),
        *([] if origin is None else ["", measured(origin)]),
    ]


def measured(origin: Origin) -> str:
    images, top1 = origin.first["images"], origin.first["top1"]
    return f"Measured {origin.measured}. Top1 of the ensemble on the first {images:g} test images: {top1:.4f}."


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
    """Return what was fitted, on which images, and what it guarantees."""
    if fitted is None:
        return ["None: probabilities are as trained."]
    lines = [f"Fitted on {fitted.samples} held-out images: temperature {fitted.temperature:.4f}."]
    if fitted.samples == 0:
        known = origin and origin.temperature
        lines = [f"Temperature {fitted.temperature:.4f}: {known or 'not fitted on held-out images'}."]
    if fitted.conformal:
        method, level = fitted.conformal.method, fitted.conformal.level
        lines += [f"Conformal prediction sets (`.sets`, {method}): target coverage {level:g}."]
    if fitted.selective:
        lines += [
            f"Selective prediction (`.abstain`): selective risk at most {100 * fitted.selective.risk:g} %, coverage "
            f"{100 * fitted.selective.coverage:.1f} % of the held-out images."
        ]
    return lines


def sentence(architecture: dict[str, Any]) -> str:
    """Return the architecture in a sentence.

    >>> sentence({"create": "wrn28_10", "members": 2, "folded": False})
    'wrn28_10 with 2 members.'
    """
    if "create" in architecture:
        name, members = architecture["create"], architecture["members"]
    else:
        source = library(architecture)
        name = architecture[source] if source else f"A {architecture['backbone']}"
        members = architecture["wrap"]["members"]
    folded = ", folded: one encoder, all heads" if architecture["folded"] else ""
    return f"{name} with {members} member{'s' if members > 1 else ''}{folded}."


def values(numbers: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{number:.4g}" for number in numbers) + ")"
