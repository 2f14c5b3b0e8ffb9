"""mixmo serve [MODEL|model.onnx] [--host HOST] [--port PORT] [--calibrate-on FOLDER]"""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.calibration_options import add_calibration
from mixmo.cli.predict import calibrated
from mixmo.engine import Runtime
from mixmo.evaluation.models import open_models
from mixmo.hub.loading import MODEL
from mixmo.hub.shipped import shipped
from mixmo.recipes.fields import PORT
from mixmo.serve.settings import Limits
from mixmo.utils.errors import UserError

if TYPE_CHECKING:
    from mixmo.serve.backends import Backend

TOKEN = "MIXMO_TOKEN"


def main(arguments: list[str]) -> None:
    into = parser("serve", "Serve predictions over HTTP, with a page to try the network and to mix two images.")
    into.add_argument("model", nargs="?", type=Path, help=f"{MODEL}, or an ONNX file (default: {shipped()[0]})")
    into.add_argument(
        "--host", default="127.0.0.1", help=f"address to listen on; other machines need a token, set in ${TOKEN}"
    )
    into.add_argument("--port", type=Annotated[int, PORT], default=8000, help="port to listen on; 0: any free port")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of a run's weights")
    into.add_argument("--device", default="auto", help="device to predict on")
    add_calibration(into, "calibration")
    into.add_fields(Limits, "limits")
    parsed = parse(into, arguments)
    limits = Limits(**{name: getattr(parsed, name) for name in Limits.__dataclass_fields__})
    token = os.environ.get(TOKEN, "")
    try:
        from mixmo.serve.app import create_app
        from mixmo.serve.server import address, allowed_hosts, bind, check_exposure, run
    except ImportError as error:
        raise UserError(f"serving needs {error.name}, which is not installed; pip install 'mixmo[serve]'") from error
    check_exposure(parsed.host, token)
    with bind(parsed.host, parsed.port) as listening:
        backend = open_backend(parsed)
        app = create_app(backend, limits, token=token, hosts=allowed_hosts(parsed.host, token))

        def ready() -> None:
            at = address(listening)
            print(f"serving {backend.name} ({backend.runtime}, {backend.device}) at {at}", flush=True)
            print(f"the API is described at {at}/docs; Ctrl-C stops the service", file=sys.stderr)

        run(app, listening, ready, limits.max_seconds)


def open_backend(parsed: Namespace) -> "Backend":
    """Open the given model: an ONNX file, or networks with their calibration."""
    from mixmo.serve.backends import OnnxBackend, TorchBackend

    if parsed.model is not None and parsed.model.suffix == ".onnx":
        if any(value is not None for value in (parsed.calibrate_on, parsed.sets, parsed.level, parsed.risk)):
            raise UserError("an ONNX file keeps the calibration of its export; calibrate the network before exporting")
        return OnnxBackend(parsed.model)
    parsed.model = parsed.model or Path(shipped()[0])
    models = open_models([parsed.model], parsed.which, Runtime(device=parsed.device).resolve())
    name = parsed.model.name if parsed.model.is_absolute() else str(parsed.model)  # clients must not see paths
    return TorchBackend([model.net for model in models], name, calibrated(models, parsed))
