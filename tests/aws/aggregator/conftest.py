"""A table with its stream and aggregator, and a bucket of objects, for one test each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from headgate.aws.aggregator.open import open_objects
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.core.runtime import run
from tests.aws.aggregator.kit import Rig

_numbers = itertools.count()


@pytest.fixture
def rig(endpoint: str) -> Iterator[Rig]:
    found = Rig(endpoint)
    yield found
    run(found.close())


@pytest.fixture
def bucket(endpoint: str) -> str:
    name = f"archive-{os.getpid()}-{next(_numbers)}"
    service = BotoService("s3", region="us-east-1", endpoint=endpoint, blocking=True)
    run(service.call("create_bucket", Bucket=name))
    run(service.close())
    return name


@pytest.fixture
def objects(endpoint: str, bucket: str) -> Iterator[S3Objects]:
    found = open_objects(bucket, "us-east-1", endpoint, blocking=True)
    yield found
    run(found.close())
