"""A cache's entries in a DynamoDB table, for the machines of a cluster; needs the extra `dynamodb`.

The table's partition key is the string `key`, a digest of the entry's key: DynamoDB takes 2,048
bytes of it. The entry's key is stored beside the value as `of`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict, runtime_checkable

from botocore.exceptions import BotoCoreError, ClientError

from svrl_jax.search.cache import CacheError, CacheKey


class _Text(TypedDict):
    S: str


class _Found(TypedDict, total=False):
    Item: Mapping[str, _Text]


@runtime_checkable
class DynamoClient(Protocol):
    """What is used of `boto3.client("dynamodb")`."""

    def get_item(
        self, *, TableName: str, Key: Mapping[str, _Text], ConsistentRead: bool
    ) -> _Found: ...

    def put_item(
        self,
        *,
        TableName: str,
        Item: Mapping[str, _Text],
        ConditionExpression: str,
        ExpressionAttributeNames: Mapping[str, str],
    ) -> object: ...

    def create_table(
        self, *, TableName: str, KeySchema: Sequence[Mapping[str, str]],
        AttributeDefinitions: Sequence[Mapping[str, str]], BillingMode: str,
    ) -> object: ...  # fmt: skip


def create_table(client: DynamoClient, table: str) -> None:
    """Creates a table for `DynamoStore`, billed by request; it may take some seconds to appear.

    Raises:
        CacheError: DynamoDB refuses, or cannot be reached.
    """
    try:
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    except (BotoCoreError, ClientError) as error:
        raise CacheError(f"DynamoDB table {table}: {_reason(error)}") from error


class DynamoStore:
    """Entries in one table. Reads are consistent: what one machine stored, another one finds."""

    def __init__(self, client: DynamoClient, table: str) -> None:
        """
        Args:
            client: `boto3.client("dynamodb")`, with its own time-outs and retries.
            table: as `create_table` makes it.
        """
        self._client = client
        self._table = table

    def get(self, key: CacheKey) -> str | None:
        """The entry, None if there is none.

        Raises:
            CacheError: DynamoDB fails, or the item is no entry.
        """
        try:
            found = self._client.get_item(
                TableName=self._table, Key={"key": _digest(key)}, ConsistentRead=True
            )
        except (BotoCoreError, ClientError) as error:
            raise CacheError(f"DynamoDB table {self._table}: {_reason(error)}") from error
        if "Item" not in found:
            return None
        item = found["Item"]
        if "value" not in item or "S" not in item["value"]:
            raise CacheError(f"DynamoDB table {self._table}: an item is no entry of this cache")
        return item["value"]["S"]

    def put(self, key: CacheKey, value: str) -> str:
        """Stores an entry unless there is one, and gives the one that then stands.

        Raises:
            CacheError: DynamoDB fails, or the entry is over its 400 KB.
        """
        try:
            self._client.put_item(
                TableName=self._table,
                Item={"key": _digest(key), "of": {"S": key.text()}, "value": {"S": value}},
                ConditionExpression="attribute_not_exists(#key)",
                # `key` is a reserved word
                ExpressionAttributeNames={"#key": "key"},
            )
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
                raise CacheError(f"DynamoDB table {self._table}: {_reason(error)}") from error
            stored = self.get(key)
            return value if stored is None else stored
        except BotoCoreError as error:
            raise CacheError(f"DynamoDB table {self._table}: {_reason(error)}") from error
        return value


def _digest(key: CacheKey) -> _Text:
    return {"S": hashlib.sha256(key.text().encode()).hexdigest()}


def _reason(error: BotoCoreError | ClientError) -> str:
    """What failed, without the request: it may hold credentials."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", "refused"))
    return type(error).__name__
