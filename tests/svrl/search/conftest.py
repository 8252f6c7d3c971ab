"""A DynamoDB on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer


def dynamo_client(url: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="eu-north-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(connect_timeout=1, read_timeout=20, retries={"total_max_attempts": 1}),
    )


@pytest.fixture(scope="session")
def dynamo() -> Iterator[Any]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield dynamo_client(f"http://{host}:{port}")
    finally:
        server.stop()
