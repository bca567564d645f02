# statements.json.tftpl holds every statement; here it is only decided who gets which.

locals {
  statements = jsondecode(templatefile("${path.module}/statements.json.tftpl", {
    table_arn   = aws_dynamodb_table.this.arn
    log_arn     = try("${aws_cloudwatch_log_group.aggregator[0].arn}:*", "")
    queue_arn   = try(aws_sqs_queue.dead_letters[0].arn, "")
    archive_arn = try(aws_s3_bucket.archive[0].arn, "")
  }))

  usage           = [for s in local.statements.usage : s if !var.enable_aggregator]
  namespace_usage = [for s in local.statements.namespace_usage : s if !var.enable_aggregator]
  archive         = [for s in local.statements.archive : s if local.archives]

  policies = {
    app       = concat(local.statements.app, local.usage)
    read-only = concat(local.statements.read_only, local.archive)
    admin     = concat(local.statements.admin, local.archive)
    namespace = concat(local.statements.namespace, local.namespace_usage)
  }

  aggregator_policy = concat(
    local.statements.aggregator,
    [for s in local.statements.aggregator_split : s if var.enable_splits],
    [for s in local.statements.aggregator_archive : s if local.archives],
    [for s in local.statements.aggregator_trace : s if var.enable_tracing],
  )

  makes_aggregator_role = var.create_iam && var.enable_aggregator && var.aggregator_role_arn == null
}

resource "aws_iam_policy" "this" {
  for_each = { for name in keys(local.policies) : name => name if var.create_iam }
  name     = replace(var.policy_name_format, "{}", "${var.name}-${each.key}")
  policy   = jsonencode({ Version = "2012-10-17", Statement = local.policies[each.key] })
  tags     = local.tags
}

resource "aws_iam_role" "this" {
  for_each = {
    for name in ["app", "read-only", "admin"] : name => name
    if var.create_iam && var.create_iam_roles
  }
  name                 = replace(var.role_name_format, "{}", "${var.name}-${each.key}")
  permissions_boundary = var.permission_boundary
  tags                 = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = "sts:AssumeRole"
      Principal = {
        AWS = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"
      }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "this" {
  for_each   = aws_iam_role.this
  role       = each.value.name
  policy_arn = aws_iam_policy.this[each.key].arn
}

resource "aws_iam_role" "aggregator" {
  count                = local.makes_aggregator_role ? 1 : 0
  name                 = replace(var.role_name_format, "{}", local.aggregator)
  permissions_boundary = var.permission_boundary
  tags                 = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "lambda.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "aggregator" {
  count  = local.makes_aggregator_role ? 1 : 0
  name   = "aggregator"
  role   = aws_iam_role.aggregator[0].id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.aggregator_policy })
}
