"""The demo: a company with teams and keys, traffic, the service and its dashboard, in one command.

Everything in it is the real thing (store, limiter, layers, service); only the company is made up,
and the store has a switch that breaks it. Nothing outside this package can reach that switch.
"""
