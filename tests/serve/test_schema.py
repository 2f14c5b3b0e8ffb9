"""The OpenAPI schema, fuzzed: no request makes the service fail, and answers are as described."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

OPERATIONS = [("/predict", "POST"), ("/mix", "POST"), ("/model", "GET"), ("/health", "GET"), ("/metrics", "GET")]


@pytest.fixture(scope="module")
def described(client: httpx.Client) -> Any:
    return schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


def test_every_operation_is_fuzzed(described: Any) -> None:
    found = [(made.ok().path, made.ok().method.upper()) for made in described.get_all_operations()]
    assert sorted(found) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "method"), OPERATIONS[:2])
def test_answers_are_as_the_schema_says(path: str, method: str, mode: Any, described: Any) -> None:
    statuses = set()

    @given(case=described[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def fuzz(case: Any) -> None:
        # What the schema allows may still be no image.
        response = case.call_and_validate(excluded_checks=[schemathesis.checks.positive_data_acceptance])
        statuses.add(response.status_code)

    fuzz()
    assert statuses <= {200, 400, 413, 415, 422}
    assert len(statuses) > 1


@pytest.mark.parametrize(("path", "method"), OPERATIONS[2:])
def test_descriptions_are_as_the_schema_says(path: str, method: str, described: Any) -> None:
    assert described[path][method].Case().call_and_validate().status_code == 200
