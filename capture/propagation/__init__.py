"""How capture reaches processes that inherit nothing from the launcher: one module for each system that starts them."""
