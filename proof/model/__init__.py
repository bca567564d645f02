"""A semantic model of the DynamoDB that the store uses: pure, in memory, cheap to copy and hash.

`values` are attribute values and items, `grammar` the expression language, `engine` the operations
and the ports that a store can be opened on. It follows what AWS documents; `test_agrees` compares
it with a real engine on random programs.
"""
