"""The OpenAI-compatible server, in the extra llamaspec[serve].

`app.create_app` makes a Starlette application of a session; `running.serve` runs it.
"""
