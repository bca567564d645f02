"""The engines that the tests of the stores start serve the proof, too."""

from tests.stores.dynamodb.conftest import _dynamo_engine, dynamo_endpoint
from tests.stores.redis.conftest import redis_server, redis_url

__all__ = ["_dynamo_engine", "dynamo_endpoint", "redis_server", "redis_url"]
