"""How families of models write their replies: calls of tools, thoughts, text."""
