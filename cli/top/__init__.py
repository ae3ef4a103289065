"""`symphony top`: the deployment, live, in a terminal."""
