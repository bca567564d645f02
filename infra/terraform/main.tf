# The same as src/headgate/aws/infra/template.yaml, whose comments say why. A test compares the two.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0" # recovery_period_in_days came with the last of 5
    }
  }
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  archives   = var.enable_aggregator && var.enable_audit_archival
  aggregator = "${var.name}-aggregator"
  role_arn   = try(aws_iam_role.aggregator[0].arn, var.aggregator_role_arn)
  tags       = merge(var.tags, { "headgate:stack" = "1" })
}

resource "aws_dynamodb_table" "this" {
  name                        = var.name
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "PK"
  range_key                   = "SK"
  stream_enabled              = true
  stream_view_type            = "NEW_AND_OLD_IMAGES"
  deletion_protection_enabled = var.enable_deletion_protection
  tags                        = local.tags

  dynamic "attribute" {
    for_each = concat(["PK", "SK"], flatten([for n in range(1, 5) : ["GSI${n}PK", "GSI${n}SK"]]))
    content {
      name = attribute.value
      type = "S"
    }
  }

  dynamic "global_secondary_index" {
    for_each = { GSI1 = "ALL", GSI2 = "KEYS_ONLY", GSI3 = "KEYS_ONLY", GSI4 = "KEYS_ONLY" }
    content {
      name            = global_secondary_index.key
      hash_key        = "${global_secondary_index.key}PK"
      range_key       = "${global_secondary_index.key}SK"
      projection_type = global_secondary_index.value
    }
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled                 = var.pitr_recovery_days != null
    recovery_period_in_days = var.pitr_recovery_days
  }
}

resource "aws_lambda_function" "aggregator" {
  count            = var.enable_aggregator ? 1 : 0
  depends_on       = [aws_cloudwatch_log_group.aggregator, aws_iam_role_policy.aggregator]
  function_name    = local.aggregator
  description      = "Counts usage from the table's stream and archives audit events that expire"
  runtime          = "python3.13"
  architectures    = ["arm64"]
  handler          = "headgate.aws.aggregator.lambda_handler.handle"
  role             = local.role_arn
  filename         = var.bundle_path
  source_code_hash = filebase64sha256(var.bundle_path)
  timeout          = var.lambda_timeout
  memory_size      = var.lambda_memory
  tags             = local.tags

  tracing_config {
    mode = var.enable_tracing ? "Active" : "PassThrough"
  }

  environment {
    variables = {
      HEADGATE_TABLE                = aws_dynamodb_table.this.name
      HEADGATE_WINDOWS              = var.snapshot_windows
      HEADGATE_USAGE_RETENTION_DAYS = tostring(var.usage_retention_days)
      HEADGATE_ARCHIVE_BUCKET       = try(aws_s3_bucket.archive[0].bucket, "")
      HEADGATE_SPLIT                = var.enable_splits ? "on" : "off"
      HEADGATE_LOG_LEVEL            = "INFO"
    }
  }
}

resource "aws_lambda_event_source_mapping" "aggregator" {
  count                              = var.enable_aggregator ? 1 : 0
  function_name                      = aws_lambda_function.aggregator[0].arn
  event_source_arn                   = aws_dynamodb_table.this.stream_arn
  starting_position                  = "TRIM_HORIZON"
  batch_size                         = 10000
  maximum_batching_window_in_seconds = var.batch_window_s
  bisect_batch_on_function_error     = true
  maximum_retry_attempts             = 10
  maximum_record_age_in_seconds      = 43200
  function_response_types            = ["ReportBatchItemFailures"]

  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.dead_letters[0].arn
    }
  }

  filter_criteria {
    filter {
      pattern = jsonencode({ dynamodb = { Keys = { SK = { S = ["#STATE"] } } } })
    }

    dynamic "filter" {
      for_each = local.archives ? [1] : []
      content {
        pattern = jsonencode({
          eventName    = ["REMOVE"]
          userIdentity = { principalId = ["dynamodb.amazonaws.com"] }
          dynamodb     = { Keys = { SK = { S = [{ prefix = "#AUDIT#" }] } } }
        })
      }
    }
  }
}

resource "aws_sqs_queue" "dead_letters" {
  count                     = var.enable_aggregator ? 1 : 0
  name                      = "${var.name}-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
  tags                      = local.tags
}

resource "aws_cloudwatch_log_group" "aggregator" {
  count             = var.enable_aggregator ? 1 : 0
  name              = "/aws/lambda/${local.aggregator}"
  retention_in_days = var.log_retention_days
  tags              = local.tags
}

resource "aws_s3_bucket" "archive" {
  count         = local.archives ? 1 : 0
  bucket_prefix = lower("${substr(var.name, 0, 20)}-archive-")
  tags          = local.tags
}

resource "aws_s3_bucket_public_access_block" "archive" {
  count                   = local.archives ? 1 : 0
  bucket                  = aws_s3_bucket.archive[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "archive" {
  count  = local.archives ? 1 : 0
  bucket = aws_s3_bucket.archive[0].id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "archive" {
  count  = local.archives ? 1 : 0
  bucket = aws_s3_bucket.archive[0].id

  rule {
    id     = "audit-to-glacier"
    status = "Enabled"

    filter {
      prefix = "audit/"
    }

    transition {
      days          = var.audit_archive_glacier_days
      storage_class = "GLACIER"
    }
  }

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}
