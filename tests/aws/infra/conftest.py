"""The store's own engine, for what is tested on a table without a stack."""

from tests.stores.dynamodb.conftest import _dynamo_engine, dynamo_endpoint

__all__ = ["_dynamo_engine", "dynamo_endpoint"]
