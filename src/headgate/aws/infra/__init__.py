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
    Progress,
    Stack,
    StackOperationError,
    list_stacks,
    open_port,
    status,
)
from headgate.aws.infra.cost import Cost, Load, Prices, cost
from headgate.aws.infra.options import (
    TEMPLATE_VERSION,
    StackOptions,
    cfn_template,
    namespace_policy,
    parameters,
)
from headgate.aws.infra.stack import Deleted, Deployed, delete, deploy, is_current, upgrade

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
