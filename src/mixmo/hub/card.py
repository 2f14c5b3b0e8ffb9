"""The model card: README.md with the metadata that the Hugging Face Hub reads, the scores, how to use it."""

from typing import Any

from mixmo.about import About

NAMES = {  # of our scores: (in the table, the Hub's metric)
    "top1": ("Top1", "accuracy"),
    "top5": ("Top5", "accuracy"),
    "nll": ("NLL", "nll"),
    "nllc": ("NLL, calibrated", "nll"),
    "ece": ("ECE", "expected_calibration_error"),
    "brier": ("Brier", "brier_score"),
}


def card(name: str, architecture: dict[str, Any], about: About | None) -> str:
    """The text of README.md."""
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
    content = f"---\n{data.to_yaml()}\n---\n\n{body(name, architecture, about)}"
    return str(ModelCard(content))


def body(name: str, architecture: dict[str, Any], about: About | None) -> str:
    """What a reader wants to know."""
    given = "" if "create" in architecture or "timm" in architecture else ", model=YOUR_BARE_MODEL"
    lines = [
        f"# {name}",
        "",
        f"{sentence(architecture)} Trained with MixMo (Ramé, Sun, Cord; ICCV 2021): one network that answers as an "
        "ensemble.",
        "",
        "```python",
        "import mixmo",
        "",
        f'net = mixmo.from_pretrained("{name}"{given})',
        "prediction = mixmo.predict(net, images)  # .probs .members .entropy .mutual_information .disagreement",
        "```",
    ]
    if about is None:
        return "\n".join(lines) + "\n"
    channels, height, width = about.size
    side = about.resize or min(height, width)
    lines += [
        "",
        "## Images",
        f"Shorter side resized to {side} pixels, centre cut out: {height} x {width}, {channels} channels; divided by "
        f"255, less mean {values(about.mean)}, over standard deviation {values(about.std)}. uint8 images given to "
        "`mixmo.predict` are normalised so.",
    ]
    if about.classes:
        some = ", ".join(about.classes[:10]) + (", ..." if len(about.classes) > 10 else "")
        lines += ["", f"{len(about.classes)} classes: {some}"]
    if about.scores:
        lines += [
            "",
            "## Scores",
            f"Of the ensemble, the mean of its heads' logits, on {about.dataset or 'test data'}:",
        ]
        lines += ["", "| score | value |", "|---|---|"]
        lines += [f"| {NAMES.get(key, (key,))[0]} | {value:.4f} |" for key, value in about.scores.items()]
    fitted = about.calibration
    lines += ["", "## Calibration"]
    if fitted is None:
        return "\n".join([*lines, "None: probabilities are as trained.", ""])
    lines += [f"Fitted on {fitted.samples} held-out images: temperature {fitted.temperature:.4f}."]
    if fitted.conformal:
        method, level = fitted.conformal.method, fitted.conformal.level
        lines += [f"Sets (`.sets`, {method}) hold the true class with probability {level:g}."]
    if fitted.selective:
        lines += [
            f"Answers that are not left out (`.abstain`) are wrong at most {100 * fitted.selective.risk:g} % of the "
            f"time; {100 * fitted.selective.coverage:.1f} % of the held-out images are answered."
        ]
    return "\n".join([*lines, ""])


def sentence(architecture: dict[str, Any]) -> str:
    """
    >>> sentence({"create": "wrn28_10", "members": 2, "folded": False})
    'wrn28_10 with 2 members.'
    """
    if "create" in architecture:
        name, members = architecture["create"], architecture["members"]
    else:
        name = architecture.get("timm") or f"A {architecture['backbone']}"
        members = architecture["wrap"]["members"]
    folded = ", folded: one encoder, all heads" if architecture["folded"] else ""
    return f"{name} with {members} member{'s' if members > 1 else ''}{folded}."


def values(numbers: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{number:.4g}" for number in numbers) + ")"
