"""Signed requests to DynamoDB: connections, retries of reads, errors, the clock of AWS."""
