"""Real engines under fire: processes hammer a few buckets while they, the engine and the
connections between them are killed, stopped and cut; then what everybody was given is held against
the promises.

`./run proof fire` runs it for as long as you like; the tests run each attack for a few seconds.
"""
