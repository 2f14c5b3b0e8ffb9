"""The bodies of requests and responses, for validation and for the OpenAPI documentation."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mixmo.data.decode import LISTED

Probability = Annotated[float, Field(ge=0, le=1.0001)]  # rounding may exceed 1
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
BASE64 = f"An image file ({LISTED}) in base64, or a data URL."


class Strict(BaseModel):
    """An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class Images(Strict):
    """Images as JSON."""

    images: list[str] = Field(min_length=1, description=BASE64)


class Mixture(Strict):
    """Two images and how they are mixed."""

    images: list[str] = Field(
        min_length=2, max_length=2, description=f"A and B. {BASE64} Images of the network's input size are not resized."
    )
    mask: str = Field("cut", description="One of the masks of GET /model.")
    ratio: Unit = Field(0.5, description="Share of A, kappa.")
    x: Unit = Field(0.5, description="Position of the region, from left to right (cut, horizontal).")
    y: Unit = Field(0.5, description="Position of the region, from top to bottom (cut, vertical).")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the random numbers of the other masks.")


class Class(BaseModel):
    """A class and its probability."""

    label: str
    probability: Probability


class Predicted(BaseModel):
    """The prediction of one image. Entropies are in nats."""

    name: str | None = Field(description="File name, if there is one.")
    label: str = Field(description="Predicted class of the ensemble.")
    index: int = Field(ge=0, description="Index of the predicted class.")
    probability: Probability
    calibrated_probability: Probability | None = Field(description="Probability at the fitted temperature, or null.")
    entropy: float = Field(description="Entropy of the ensemble's probabilities: total uncertainty.")
    mutual_information: float = Field(description="Mutual information of class and member, in nats.")
    disagreement: float = Field(description="Share of member pairs that predict different classes.")
    set: list[str] | None = Field(description="Conformal prediction set, most probable first; null if not fitted.")
    abstain: bool | None = Field(description="Whether selective prediction abstains; null if not fitted.")
    ensemble: list[Class] = Field(description="Most probable classes of the ensemble.")
    members: list[list[Class]] = Field(description="Most probable classes of each member.")
    input: str | None = Field(None, description="What the network reads, as a PNG data URL; with `input=true`.")


class Predictions(BaseModel):
    """One prediction per image, in the order of the request."""

    model: str
    predictions: list[Predicted]


class Head(BaseModel):
    """The prediction of one head for a mixed image."""

    reads: str = Field(description="The image that this member encodes: A or B.")
    share: float = Field(description="Realised share of that image, kappa.")
    classes: list[Class]


class Mixed(BaseModel):
    """Two images in one forward pass."""

    ratio: float = Field(description="Realised share of A.")
    picture: str = Field(description="The mixture on pixels, as a PNG data URL; the network mixes encodings.")
    heads: list[Head]


class Model(BaseModel):
    """The served network."""

    name: str
    runtime: str
    device: str
    members: int
    classes: list[str]
    size: list[int] = Field(description="Channels, height and width of its input.")
    dataset: str | None
    scores: dict[str, float]
    calibration: dict[str, Any] | None
    masks: list[str] = Field(description="Masks of POST /mix; empty if inputs cannot be mixed.")
    not_mixable_because: str | None
    limits: dict[str, float | None]
    samples: list[str]
    version: str


class Health(BaseModel):
    """Status of the service."""

    status: str


class Error(BaseModel):
    """What was wrong, in one sentence."""

    error: str


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a path, for its documentation."""
    return {status: {"model": Error} for status in statuses}


UPLOAD = {  # of POST /predict, which takes two types
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary", "contentMediaType": "image/*"},
                            "description": f"Image files: {LISTED}.",
                        }
                    },
                }
            },
            "application/json": {"schema": Images.model_json_schema()},
        },
    }
}
MIX = {"requestBody": {"required": True, "content": {"application/json": {"schema": Mixture.model_json_schema()}}}}
