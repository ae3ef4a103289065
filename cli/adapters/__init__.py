"""`symphony adapters`: what adapters there are, and bringing more."""
