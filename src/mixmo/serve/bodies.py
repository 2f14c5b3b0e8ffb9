"""Parse the body of a request: form files or JSON."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from mixmo.serve.errors import RequestError, quotable
from mixmo.serve.images import Upload
from mixmo.serve.schema import Images

B = TypeVar("B", bound=BaseModel)
MOST_COMMAS = 10_000  # in JSON: a few megabytes of brackets would be parsed to gigabytes of objects and errors
EXAMPLE = "see /docs for an example"


async def read_uploads(request: Request, most: int) -> list[Upload]:
    """Return the images of a request, at most `most`."""
    kind = content_type(request)
    if kind == "multipart/form-data":
        return await _files(request, most)
    if kind != "application/json":
        given = f"'{quotable(kind)}'" if kind else "missing"
        raise RequestError(415, f"the content type is {given}; send files as multipart/form-data, or application/json")
    images = (await read_json(request, Images)).images
    if len(images) > most:
        raise too_many(most)
    return [Upload(None, image) for image in images]


async def read_json(request: Request, kind: type[B]) -> B:
    """Return the JSON of a request."""
    if content_type(request) != "application/json":
        raise RequestError(415, "the content type is not application/json; send JSON")
    body = await request.body()
    if body.count(b",") > MOST_COMMAS:
        raise RequestError(413, f"the JSON has more than {MOST_COMMAS:,} values; send fewer images")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise RequestError(400, f"the body is not JSON ({quotable(first['msg'])}); {EXAMPLE}") from None
        raise RequestError(422, invalid(first["loc"], first["msg"])) from None


def invalid(where: tuple[int | str, ...], message: str) -> str:
    """Return the error message of an invalid field."""
    place = quotable(".".join(map(str, where))) or "body"
    return f"{place}: {message[:1].lower()}{quotable(message[1:])}; {EXAMPLE}"


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def too_many(most: int) -> RequestError:
    return RequestError(413, f"a request may have at most {most} images; send the others in separate requests")


async def _files(request: Request, most: int) -> list[Upload]:
    parser = MultiPartParser(request.headers, request.stream(), max_files=most, max_fields=most)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_many(most) from None
        raise RequestError(400, f"the form cannot be read ({quotable(error.message)}); {EXAMPLE}") from None
    except KeyError:  # no boundary
        raise RequestError(400, f"the content type has no boundary; {EXAMPLE}") from None
    uploads = []
    try:
        for name, part in form.multi_items():
            if not isinstance(part, UploadFile):
                raise RequestError(422, f"the field '{quotable(name)}' is text; send image files with file names")
            uploads.append(Upload(part.filename or None, await part.read()))
    finally:
        await form.close()
    if not uploads:
        raise RequestError(422, "the form has no files; send at least one image in the field 'files'")
    return uploads
