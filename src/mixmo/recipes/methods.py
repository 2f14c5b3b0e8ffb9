"""The methods of the paper's tables: only what each changes in the protocol of its data set."""

from typing import Any, NamedTuple


class Method(NamedTuple):
    summary: str
    changes: dict[str, Any]


SINGLE = {"members": 1, "mask": "sum", "p": 0.0, "repetition": 1}

METHODS = {
    "vanilla": Method("one ordinary network", SINGLE),
    "mimo": Method("MIMO: encodings summed, kappa = 1/M", {"mask": "sum", "p": 0.0, "r": 1.0}),
    "linear-mixmo": Method("Linear-MixMo: encodings interpolated, kappa ~ Beta(2, 2)", {"mask": "linear", "p": 0.0}),
    "cut-mixmo": Method("Cut-MixMo: a patch of one encoding pasted onto the other", {}),
}
