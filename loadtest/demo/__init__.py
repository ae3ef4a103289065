"""``symphony demo``: a chat and a team of agents, with hints and without, on a deployment of its
own.

Who speaks when (`script`), what was seen of a turn (`seen`) and what all that comes to (`figures`,
`verdicts`) are pure. `deployment`, `chat` and `team` play it; `screen`, `plots` and `page` show it.
"""
