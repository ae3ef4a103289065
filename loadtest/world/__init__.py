"""The whole deployment in virtual time: every production service, on a bad network, with bad
machines.

A seed gives the same run again. See docs/reliability.md for what is checked.

From below: a `SimDeployment` is all that a process knows of the world; on it stand the processes
(`loadtest.sim.services`), and in front of them the `clients`; a `World` is all of them together;
`run` lets time pass in it, `unleash` does its faults to it, and `rest` looks at what is left.
"""
