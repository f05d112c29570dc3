"""The story of an engine's life, told on three real nodes: what is promised, done, measured and checked.

`photos` are the frames, `load` the clients, `truth` what each answer should have been, `acts` the story, `report` the
page. Every promise is a check with a sentence; one broken promise makes the exit code 1.
"""
