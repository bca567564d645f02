"""headgate on AWS: one stack with a table, and what counts usage from its stream.

port = open_port(region="eu-west-1")
deploy(port, "limits", StackOptions(enable_alarms=False), report=print)
"""

from headgate.aws.infra.bundle import Bundle, build, lambda_export
from headgate.aws.infra.control_plane import (
    AwsRefused,
    AwsUnreachable,
    InfrastructureNotFoundError,
    Port,
    StackOperationError,
    open_port,
)
from headgate.aws.infra.cost import Cost, Load, Prices, cost
from headgate.aws.infra.inspect import Progress, Stack, list_stacks, status
from headgate.aws.infra.options import StackOptions
from headgate.aws.infra.remove import Deleted, delete
from headgate.aws.infra.stack import Deployed, deploy, is_current, upgrade
from headgate.aws.infra.template import TEMPLATE_VERSION, cfn_template, namespace_policy, parameters

__all__ = [
    "TEMPLATE_VERSION",
    "AwsRefused",
    "AwsUnreachable",
    "Bundle",
    "Cost",
    "Deleted",
    "Deployed",
    "InfrastructureNotFoundError",
    "Load",
    "Port",
    "Prices",
    "Progress",
    "Stack",
    "StackOperationError",
    "StackOptions",
    "build",
    "cfn_template",
    "cost",
    "delete",
    "deploy",
    "is_current",
    "lambda_export",
    "list_stacks",
    "namespace_policy",
    "open_port",
    "parameters",
    "status",
    "upgrade",
]
