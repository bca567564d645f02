output "url" {
  description = "What a limiter opens"
  value = join("", [
    "dynamodb://${var.name}?audit_days=${var.audit_retention_days}",
    "&usage_days=${var.usage_retention_days}",
    var.enable_aggregator ? "&usage=stream" : "",
  ])
}

output "table_arn" {
  value = aws_dynamodb_table.this.arn
}

output "stream_arn" {
  value = aws_dynamodb_table.this.stream_arn
}

output "aggregator_arn" {
  value = try(aws_lambda_function.aggregator[0].arn, null)
}

output "dead_letters_url" {
  value = try(aws_sqs_queue.dead_letters[0].url, null)
}

output "archive_bucket" {
  value = try(aws_s3_bucket.archive[0].bucket, null)
}

output "policy_arns" {
  value = { for name, policy in aws_iam_policy.this : name => policy.arn }
}

output "role_arns" {
  value = { for name, role in aws_iam_role.this : name => role.arn }
}
