variable "name" {
  description = "Of the table; everything else is named after it"
  type        = string
  default     = "headgate"

  validation {
    condition     = can(regex("^[a-zA-Z][a-zA-Z0-9-]{2,49}$", var.name))
    error_message = "3 to 50 letters, digits and -, beginning with a letter."
  }
}

variable "pitr_recovery_days" {
  description = "How far back the table can be restored; null turns point-in-time recovery off"
  type        = number
  default     = null
}

variable "enable_deletion_protection" {
  type    = bool
  default = false
}

variable "enable_aggregator" {
  description = "Whether usage is counted from the table's stream"
  type        = bool
  default     = true
}

variable "bundle_path" {
  description = "The function's code: `headgate lambda-export aggregator.zip` writes it"
  type        = string
  default     = "aggregator.zip"
}

variable "snapshot_windows" {
  type    = string
  default = "hourly,daily"
}

variable "usage_retention_days" {
  type    = number
  default = 90
}

variable "audit_retention_days" {
  description = "How long audit events are kept; it is in the URL that apps open"
  type        = number
  default     = 90
}

variable "enable_splits" {
  description = "Whether the aggregator splits hot buckets, for which it may write balances"
  type        = bool
  default     = false
}

variable "batch_window_s" {
  description = "Seconds that changes are collected for; usage is late by that, and cheaper"
  type        = number
  default     = 60
}

variable "lambda_timeout" {
  type    = number
  default = 60
}

variable "lambda_memory" {
  type    = number
  default = 256
}

variable "log_retention_days" {
  type    = number
  default = 30
}

variable "enable_tracing" {
  type    = bool
  default = false
}

variable "enable_audit_archival" {
  description = "Whether audit events go to S3 when they expire; needs the aggregator"
  type        = bool
  default     = true
}

variable "audit_archive_glacier_days" {
  type    = number
  default = 90
}

variable "enable_alarms" {
  type    = bool
  default = true
}

variable "alarm_sns_topic" {
  type    = string
  default = null
}

variable "lambda_duration_threshold_pct" {
  type    = number
  default = 80
}

variable "create_iam" {
  description = "Whether policies, and the aggregator's role, are made here"
  type        = bool
  default     = true
}

variable "create_iam_roles" {
  description = "Whether there are also roles with the app, read-only and admin policies"
  type        = bool
  default     = false
}

variable "aggregator_role_arn" {
  type    = string
  default = null
}

variable "permission_boundary" {
  description = "The ARN of the policy that bounds every role made here"
  type        = string
  default     = null
}

variable "role_name_format" {
  type    = string
  default = "{}"
}

variable "policy_name_format" {
  type    = string
  default = "{}"
}

variable "tags" {
  type    = map(string)
  default = {}
}
