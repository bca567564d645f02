"""headgate on AWS: one stack with a table, and what counts usage from its stream.

port = open_port(region="eu-west-1")
deploy(port, "limits", StackOptions(enable_alarms=False), report=print)
"""

from headgate.infra.bundle import Bundle, build, lambda_export
from headgate.infra.costing import Cost, Load, cost
from headgate.infra.looking import Progress, Stack, list_stacks, status
from headgate.infra.options import StackOptions
from headgate.infra.policies import namespace_policy
from headgate.infra.port import Port, open_port
from headgate.infra.prices import Prices
from headgate.infra.removal import Deleted, delete
from headgate.infra.stack import Deployed, deploy, is_current, upgrade
from headgate.infra.template import TEMPLATE_VERSION, cfn_template, parameters
from headgate.infra.trouble import (
    AwsRefused,
    AwsUnreachable,
    InfrastructureNotFoundError,
    StackOperationError,
)

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
