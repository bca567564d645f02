"""From a request to a decision, whatever protocol it came by."""
