"""Errors of the service: a status and one sentence, sent as {"error": "..."}."""

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from mixmo.utils.text import printable

RETRY = {"Retry-After": "1"}


class RequestError(HTTPException):
    """An error that is sent to the client: a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)


def error_response(error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def quotable(text: str, most: int = 80) -> str:
    """Return text from a client without control characters, shortened to `most` characters.

    >>> quotable("a\\x1b[31mb.png"), quotable("abcd", 3)
    ('a\\\\x1b[31mb.png', 'ab…')
    """
    clean = printable(text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"
