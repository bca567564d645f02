"""The arithmetic of one limit: what has arrived since its epoch, continuously or by resets."""
