"""HTTP: connections, middleware, and what a request says outside its body."""
