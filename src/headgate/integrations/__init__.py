"""headgate in front of web apps, around outgoing calls and around language models.

One module per framework, loaded only when imported: none of them is a dependency of headgate.
"""
