"""The reference is the code's: made pages are current, written pages name everything there is."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import headgate
from headgate import repository as connect
from headgate.layers.stack import Layering
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "page"), [("library_reference", "api.md"), ("wire_reference", "wire.md")]
)
def test_a_made_page_is_current(name: str, page: str) -> None:
    assert (REFERENCE / page).read_text() == tool(name).reference(), f"python tools/{name}.py"


def test_the_picture_of_the_packages_shows_each_of_them() -> None:
    made = tool("architecture_svg")
    assert made.PICTURE.read_text() == made.picture(), "python -m tools.architecture_svg"
    drawn = {name for _, boxes in made.ROWS for names, *_ in boxes for name in names.split(", ")}
    there = {path.stem for path in (ROOT / "src/headgate").iterdir() if path.name[0] not in "_."}
    assert there - {"py"} == drawn


def test_every_public_name_and_call_says_what_it_promises() -> None:
    made = tool("library_reference")
    text = (REFERENCE / "api.md").read_text()
    silent = [name for name in headgate.__all__ if "__doc__" not in vars(getattr(headgate, name))]
    assert silent == []
    for name in headgate.__all__:
        assert f"`{name}`" in text or f"# {name}\n" in text, name
    for name in made.FACES:
        cls = getattr(headgate, name)
        for call, value in made.calls(cls):
            assert len(made.promise(value)) > 10, f"{name}.{call}"
            assert f"### {name}.{call}\n" in text


def test_every_field_of_every_message_is_on_the_page() -> None:
    text = (REFERENCE / "wire.md").read_text()
    for message in headgate_pb2.DESCRIPTOR.message_types_by_name.values():
        section = text.split(f"### {message.name} (gRPC)\n")[1].split("\n### ")[0]
        for field in message.fields:
            assert f"`{field.name}` | {field.number} |" in section, f"{message.name}.{field.name}"


def test_every_option_of_a_url_is_in_the_reference() -> None:
    text = (REFERENCE / "library.md").read_text()
    urls = text.split("## URLs")[1].split("\n## ")[0]
    for scheme in connect.OPENERS:
        base = scheme.replace("rediss+", "redis+")
        assert f"`{base}://" in urls, scheme
    offered = re.findall(r"request\.only\((.*?)\)", inspect.getsource(connect), re.DOTALL)
    options = {name for words in offered for name in re.findall(r'"(\w+)"', words)}
    assert {"buckets_max", "synchronous", "region"} <= options, "of every store that has some"
    for option in options | set(Layering.__slots__):
        assert f"`{option}`" in urls, option


def test_every_word_of_the_design_is_in_the_glossary() -> None:
    text = (REFERENCE / "glossary.md").read_text()
    for word in WORDS.split():
        assert re.search(rf"^\| [^|]*\b{word}\b", text, re.MULTILINE), word
    assert text.count("\n| ") - 1 <= 30, "fewer words of our own: use those of the field"


WORDS = """
Limit Entity Resource Bucket Demand Verdict Lease Store Catalog Ledger Repository Layer Plan
RequestPlan Port Shard Generation Slack Epoch Debt Credit Cascade
"""
