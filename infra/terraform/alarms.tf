locals {
  alarm_defaults = { period = 300, evaluation_periods = 1, threshold = 0 }

  function_alarms = {
    aggregator-errors = {
      namespace  = "AWS/Lambda", metric = "Errors", statistic = "Sum"
      dimensions = { FunctionName = local.aggregator }
    }
    aggregator-duration = {
      namespace          = "AWS/Lambda", metric = "Duration", statistic = "Maximum"
      dimensions         = { FunctionName = local.aggregator }
      evaluation_periods = 2
      threshold          = floor(var.lambda_timeout * 1000 * var.lambda_duration_threshold_pct / 100)
    }
    aggregator-behind = {
      namespace          = "AWS/Lambda", metric = "IteratorAge", statistic = "Maximum"
      dimensions         = { FunctionName = local.aggregator }
      evaluation_periods = 3
      threshold          = 900000
    }
    dead-letters = {
      namespace  = "AWS/SQS", metric = "ApproximateNumberOfMessagesVisible", statistic = "Maximum"
      dimensions = { QueueName = "${var.name}-dead-letters" }
    }
  }

  table_alarms = {
    write-throttles = {
      namespace          = "AWS/DynamoDB", metric = "WriteThrottleEvents", statistic = "Sum"
      dimensions         = { TableName = var.name }
      period             = 60
      evaluation_periods = 5
      threshold          = 10
    }
    read-throttles = {
      namespace          = "AWS/DynamoDB", metric = "ReadThrottleEvents", statistic = "Sum"
      dimensions         = { TableName = var.name }
      period             = 60
      evaluation_periods = 5
      threshold          = 10
    }
  }

  all_alarms = merge(local.table_alarms, local.function_alarms)

  alarms = {
    for name, alarm in local.all_alarms : name => merge(local.alarm_defaults, alarm)
    if var.enable_alarms && (var.enable_aggregator || contains(keys(local.table_alarms), name))
  }
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-${each.key}"
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = each.value.period
  evaluation_periods  = each.value.evaluation_periods
  threshold           = each.value.threshold
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = compact([var.alarm_sns_topic])
  ok_actions          = compact([var.alarm_sns_topic])
  tags                = local.tags
}
