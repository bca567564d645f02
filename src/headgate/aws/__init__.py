"""What runs on AWS: the stream aggregator and the CloudFormation stack."""
