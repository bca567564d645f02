"""Version 1: fields are only ever added."""
