"""Reads the stream of a DynamoDB table: usage history, the archive of audit events, early splits.

It runs as a Lambda function (`lambda_handler.handle`) or as a process of its own (`consumer`).
"""
