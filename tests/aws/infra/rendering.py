"""The template as CloudFormation would see it: short forms, conditions and names resolved."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import yaml

from headgate.aws.infra import StackOptions, cfn_template, parameters

ACCOUNT = "123456789012"
STACK = "limits"
PSEUDO = {
    "AWS::StackName": STACK,
    "AWS::Partition": "aws",
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": "eu-west-1",
}
NOTHING = object()
TABLE_ARN = f"arn:aws:dynamodb:eu-west-1:{ACCOUNT}:table/{STACK}"
ARCHIVE_ARN = "arn:aws:s3:::the-archive"


class _Reader(yaml.SafeLoader):
    pass


def _short(loader: Any, suffix: str, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        if suffix == "GetAtt":
            value = value.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Reader.add_multi_constructor("!", _short)


@functools.cache
def read() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(cfn_template(), _Reader)
    return found


class Rendered:
    """What a stack of these options would consist of."""

    def __init__(self, options: StackOptions | None = None, **given: str) -> None:
        self.template = read()
        defaults = {k: str(v.get("Default", "")) for k, v in self.template["Parameters"].items()}
        chosen = parameters(options or StackOptions())
        self.parameters = {**defaults, **chosen, "CodeKey": "a.zip", **given}
        self.conditions: dict[str, bool] = {}
        for name in self.template["Conditions"]:
            self._decided(name)
        self.resources: dict[str, dict[str, Any]] = {
            name: self._filled(resource)
            for name, resource in self.template["Resources"].items()
            if "Condition" not in resource or self.conditions[resource["Condition"]]
        }

    def statements(self, name: str) -> list[dict[str, Any]]:
        """Those of a managed policy, or of all that a role has inline."""
        properties = self.resources[name]["Properties"]
        if "PolicyDocument" in properties:
            return list(properties["PolicyDocument"]["Statement"])
        return [s for one in properties["Policies"] for s in one["PolicyDocument"]["Statement"]]

    def _decided(self, name: str) -> bool:
        if name not in self.conditions:
            self.conditions[name] = self._is_true(self.template["Conditions"][name])
        return self.conditions[name]

    def _is_true(self, rule: Mapping[str, Any]) -> bool:
        ((kind, value),) = rule.items()
        match kind:
            case "Condition":
                return self._decided(value)
            case "Fn::Not":
                return not self._is_true(value[0])
            case "Fn::And":
                return all(self._is_true(part) for part in value)
            case "Fn::Equals":
                left, right = (str(self._filled(part)) for part in value)
                return left == right
        raise AssertionError(kind)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, list):
            filled = [self._filled(part) for part in value]
            return [part for part in filled if part is not NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((kind, inner),) = value.items()
            match kind:
                case "Ref":
                    return self._named(inner)
                case "Fn::GetAtt":
                    return self._attribute(*inner)
                case "Fn::Sub":
                    return re.sub(r"\$\{([^}]+)\}", lambda m: str(self._part(m[1])), inner)
                case "Fn::If":
                    return self._filled(inner[1] if self._decided(inner[0]) else inner[2])
        filled = {key: self._filled(part) for key, part in value.items()}
        return {key: part for key, part in filled.items() if part is not NOTHING}

    def _part(self, name: str) -> Any:
        return self._attribute(*name.split(".")) if "." in name else self._named(name)

    def _named(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NOTHING
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self.parameters:
            return self.parameters[name]
        assert name in self.template["Resources"], name
        return STACK if name == "Table" else f"<{name}>"

    def _attribute(self, resource: str, attribute: str) -> str:
        assert resource in self.template["Resources"], resource
        known = {("Table", "Arn"): TABLE_ARN, ("ArchiveBucket", "Arn"): ARCHIVE_ARN}
        return known.get((resource, attribute), f"<{resource}.{attribute}>")


def plain(value: Any) -> Any:
    """The value with its truths in the words of JSON policies."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return str(value).lower() if isinstance(value, bool) else value
