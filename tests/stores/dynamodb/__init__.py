"""Tests of the DynamoDB store, on a real engine and on a model of one."""
